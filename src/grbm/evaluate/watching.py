"""Held-out log-likelihood while a model learns, in nats per row: how good it is now, when it was best, when to stop."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, seed_of
from grbm.data.frame import Frame
from grbm.data.weighting import mean_and_error
from grbm.evaluate.ais import LogZ
from grbm.evaluate.bridging import from_ladder, from_log_weights, from_reference
from grbm.learning.quasi_newton import LEAST, averaging
from grbm.learning.state import TrainState
from grbm.model import GRBM, Base, base_for
from grbm.model.reference import Reference
from grbm.samplers import Sampler, run_chains

BURN_IN = 4  # steps from learning's own chains to the model that is looked at
STATES = 8  # of every chain at a look
CHAINS = 256  # annealed ones, and of a ladder where learning left none
DRAWS = 2048  # of the reference
LITTLE = 0.01  # nats that a machine must be better by than a full-covariance Gaussian, of data without clusters


class Nats(NamedTuple):
    """The log-likelihood of held-out rows, in the units of the model."""

    update: int
    mean: float
    error: float  # that of the rows and that of log Z together
    log_z: LogZ


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that are not learned from, on which a model is validated.

    Of rows with gaps the likelihood is that of the known values, by draws of what fills them
    (`grbm.fitting.observed.completed`).
    """

    rows: Tensor  # (n, K) as the machine sees them; where some have gaps, (n, S, K): S draws of each
    offsets: Tensor | None = None  # (n, S), log of the factor of each draw's exp(−F)
    weights: Tensor | None = None  # (n,), number of rows that each stands for; None: all alike
    log_det: float = 0.0  # mean of log |dz/dx|, which is added for nats in the units of the data

    def __len__(self) -> int:
        return len(self.rows)

    def log_prob(self, free_energy: Callable[[Tensor], Tensor]) -> Tensor:
        """log p + log Z of each row, for a model's free energy: (n,) float64."""
        found = -free_energy(self.rows).double()
        return found if self.offsets is None else (found + self.offsets.to(found)).logsumexp(1)


class Watch:
    """Validates the averaged parameters. log Z is from a round's own draws where enough count, else from new chains.

    A look is a function of the state of training alone, so a resumed run sees what one never interrupted saw. The
    ``sampler``, `GlobalMoves` or `ParallelTempering`, moves the chains and says where log Z is known.
    """

    def __init__(self, sampler: Sampler, unseen: HeldOut, *, seed: int = 0) -> None:
        if sampler.bridge() is None:
            raise ValueError(f"{type(sampler).__name__} has neither a reference nor a ladder that would give log Z.")
        self.sampler, self.unseen, self.seed = sampler, unseen, seed

    def look(self, state: TrainState) -> Nats:
        """Score the model as it is now: by what a round has drawn, where this tells, or by chains."""
        model, log_z = state.average or state.model, self._from_round(state)
        if log_z is None:
            seed = seed_of(self.seed, "watch", state.update)
            log_z = log_z_of(model, self.sampler, state.persistent, seed=seed)
        return score(model, log_z, self.unseen)._replace(update=state.update)

    @torch.no_grad()
    def _from_round(self, state: TrainState) -> LogZ | None:
        """log Z from draws of the model that a round ended with; None where there are none, or too few tell.

        Bennett's ratio gives that of the model, and weights of its draws how much more that of the average is.
        """
        drawn = state.drawn
        if drawn is None or drawn.log_weights is None:
            return None
        log_z = from_log_weights(drawn.log_weights)
        if state.average is None:
            return log_z
        v, log_q = drawn.draws
        average = averaging(state.average.freeze().to(torch.float64))(v, log_q)
        if average.share < LEAST:
            return None
        log_w, moved = -drawn.free_energy - log_q, -average.free_energy - log_q
        more = float(moved.logsumexp(0) - log_w.logsumexp(0))
        error = log_z.error + float((moved.softmax(0) - log_w.softmax(0)).norm())  # both are of the same draws
        return log_z._replace(log_z=log_z.log_z + more, error=error, lower=log_z.lower + more, upper=log_z.upper + more)


@torch.no_grad()
def log_z_of(
    model: GRBM,
    sampler: Sampler,
    start: Tensor | None = None,
    *,
    n_states: int = STATES,
    n_draws: int = DRAWS,
    seed: int = 0,
) -> LogZ:
    """log Z from chains of a sampler that knows where it begins: `GlobalMoves` or `ParallelTempering`.

    Chains of the first begin where annealed hidden units are (`grbm.samplers.collapsed`): those that learning left may
    have missed a mode. Those of the second go on from ``start``, or begin at noise. ``n_states`` of each count, and as
    many draws of the reference as ``n_draws``.
    """
    energy = model.freeze()
    rng = Blocks(seed, 1, device=energy.W.device)
    bridge, v = sampler.bridge(), sampler.anew(energy, CHAINS, rng)
    if v is None:
        v = sampler.noise(energy, CHAINS, rng) if start is None else start
    states = []
    for k in range(BURN_IN + n_states):
        v = sampler.persistent(run_chains(energy, sampler, v, 1, rng).chains)
        states += [v] if k >= BURN_IN else []
    if isinstance(bridge, Reference):
        reference = bridge.to(energy.W)
        return from_reference(energy, reference, reference.sample(n_draws, rng), torch.stack(states))
    assert bridge is not None
    return from_ladder(energy, base_for(bridge.base, energy), bridge.betas.to(energy.W.device), torch.stack(states))


@torch.no_grad()
def score(model: GRBM, log_z: LogZ, unseen: HeldOut) -> Nats:
    """The mean log-likelihood of ``unseen`` rows, in the units of the model."""
    mean, error = mean_and_error(unseen.log_prob(model.free_energy) - log_z.log_z, unseen.weights)
    return Nats(0, mean, math.hypot(error, log_z.error), log_z)


@torch.no_grad()
def gaussian_log_prob(frame: Frame, rows: Tensor) -> Tensor:
    """log p of rows (..., K) under the Gaussian of the frame, at its contrasts: (...) float64, on the CPU."""
    rows = rows.double().cpu()
    base = Base(*(x.to(rows) for x in frame.base))
    return -frame.contrasts.to(rows).free_energy(rows, base.energy) - base.log_z(0)


def gaussian_score(frame: Frame, unseen: HeldOut) -> float:
    """The mean log-likelihood of rows under the Gaussian of the frame, in nats, in the units of the model."""
    return mean_and_error(unseen.log_prob(lambda z: -gaussian_log_prob(frame, z)), unseen.weights)[0]


@torch.no_grad()
def is_gaussian_enough(frame: Frame, model: GRBM, best: Nats, unseen: HeldOut, seen: Tensor) -> bool:
    """Whether a full-covariance Gaussian describes ``unseen`` rows as well as the model, which has ``best`` nats there.

    That is, better, there or on all rows, ``seen`` ones (n, K) among them: the few may lack what is rare in the many.
    Or, where the reference has found no clusters, no worse by more than two standard errors of the difference, or 0.01
    nats: the best of many looks is a little too good, and a machine that learns noise is worse than none.
    """
    gaussian, log_z, weights = partial(gaussian_log_prob, frame), best.log_z.log_z, unseen.weights
    apart = unseen.log_prob(model.free_energy).cpu() - log_z - unseen.log_prob(lambda z: -gaussian(z))
    among_seen = -model.free_energy(seen).double().cpu() - log_z - gaussian(seen)
    if float(among_seen.sum() + (apart if weights is None else weights.cpu() * apart).sum()) < 0:
        return True
    mean, error = mean_and_error(apart, weights)
    found_nothing = frame.reference is not None and len(frame.reference.weights) == 1 and len(unseen) > 1
    return mean < (max(LITTLE, 2 * error) if found_nothing else 0.0)
