"""Parallel tempering: replicas of the chain along a ladder from a Gaussian base to the model."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from grbm.core.randomness import Blocks, Rng, seed_of
from grbm.model import Base, Energy, TemperedEnergy, base_for
from grbm.samplers.chains import Chains, Composed, Ladder, Sampler, Step, StepInfo, Walk, Walked, top_of
from grbm.samplers.engines import engine_for
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.moves import MoveSampler, moves_of
from grbm.samplers.sampling import run_chains
from grbm.samplers.updates import Decision, accept

PILOT_CHAINS, PILOT_STEPS, PILOT_ROUNDS = 64, 50, 8  # of `ParallelTempering.tuned`; half of each round is burn-in


@dataclass(frozen=True)
class ParallelTempering(Composed):
    """R replicas at inverse temperatures 0 = β_0 < ... < β_{R−1} = 1; each step swaps neighbours, then moves all.

    Replica r has energy (1 − β_r) E_0 + β_r E_1, where E_0 is the base and E_1 the model, so a swap of neighbouring
    states (v, h) is accepted with log A = (β_{r+1} − β_r) (D_{r+1} − D_r), D = E_1 − E_0; even pairs first, then odd.
    The returned chains are those at β = 1; ``state`` holds all replicas as Chains with a leading axis (R, C, ·).

    The ladder starts as (r/(R − 1))^power and adapts so that all neighbours swap equally often (Syed et al. 2022):
    during learning a little at every update, for a finished model by `tuned`, which also finds the number of replicas.

    Parameters
    ----------
    base : Base, optional
        Where β = 0; by default N(0, I), which fits standardised data.
    n_replicas, power
        The ladder to start from.
    sampler : Sampler
        What moves each replica; exact if it is.
    adapt : float
        How far the ladder goes at every update towards the one that the last swaps ask for; 0 keeps it as it is.
    ladder : tuple of float, optional
        The inverse temperatures themselves, in place of ``n_replicas`` and ``power``.
    """

    base: Base | None = None
    n_replicas: int = 14
    power: float = 1.5
    sampler: Sampler = field(default_factory=Gibbs)
    adapt: float = 0.02
    ladder: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.n_replicas < 2:
            raise ValueError(f"n_replicas must be at least 2, got {self.n_replicas}.")
        if not self.power > 0:
            raise ValueError(f"power must be above 0, got {self.power}.")
        if not 0 <= self.adapt <= 1:
            raise ValueError(f"adapt must be between 0 and 1, got {self.adapt}.")
        if self.sampler.anneals:
            raise ValueError("The replicas cannot be moved by an annealed path.")
        if self.ladder is not None:
            rungs = list(self.ladder)
            if len(rungs) < 2 or rungs[0] != 0 or rungs[-1] != 1 or sorted(set(rungs)) != rungs:
                raise ValueError(f"A ladder must rise from 0 to 1, got {rungs}.")
            object.__setattr__(self, "n_replicas", len(rungs))

    def betas(self) -> Tensor:
        """The inverse temperatures (R,), float64."""
        if self.ladder is not None:
            return torch.tensor(self.ladder, dtype=torch.float64)
        return torch.linspace(0, 1, self.n_replicas, dtype=torch.float64) ** self.power

    def _energies(self, energy: Energy) -> TemperedEnergy:
        """Energies of all replicas, of which the last is ``energy``."""
        return energy.temper(self.betas(), base_for(self.base, energy))

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """All replicas at the base, (R, C, N)."""
        return base_for(self.base, energy).sample((self.n_replicas, n_chains), rng)

    def start(self, energy: Energy, v: Tensor, rng: Rng) -> Chains:
        """From v (C, N), copied to every replica, or from each replica's own (R, C, N)."""
        if v.ndim == 2:
            v = v.expand(self.n_replicas, *v.shape)
        return top_of(self.sampler.start(self._energies(energy), v, rng))

    def persistent(self, chains: Chains) -> Tensor:
        return chains.state.v

    def bridge(self) -> Ladder:
        return Ladder(self.base, self.betas())

    def adapted(self, energy: Energy, swap_rate: Tensor) -> "ParallelTempering":
        if self.adapt == 0:
            return self
        return replace(self, ladder=tuple(even_out(self.betas(), swap_rate, self.adapt).tolist()))

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.ladder is None else {"ladder": self.betas()}

    def with_state(self, state_dict: dict[str, Tensor]) -> "ParallelTempering":
        return replace(self, ladder=tuple(state_dict["ladder"].tolist())) if "ladder" in state_dict else self

    def tuned(self, energy: Energy, *, seed: int = 0) -> "ParallelTempering":
        """Find a ladder for ``energy`` whose neighbours swap half of the time, by eight pilot runs from the base.

        The rejections of all pairs together (the communication barrier of Syed et al. 2022) hardly depend on the
        ladder, and R − 1 = twice that many makes the most round trips for the work. At most 64 replicas.
        """
        if self.adapt == 0:
            return self
        sampler = self
        rng = Blocks(seed_of(seed, "ladder"), 1, device=energy.W.device)
        v = sampler.noise(energy, PILOT_CHAINS, rng)
        for _ in range(PILOT_ROUNDS):
            v = sampler.persistent(run_chains(energy, sampler, v, PILOT_STEPS // 2, rng).chains)
            walked = run_chains(energy, sampler, v, PILOT_STEPS // 2, rng)
            assert walked.swaps is not None
            rate = walked.swaps.rate().cpu()
            rungs = min(64, max(2, math.ceil(2 * float((1 - rate).sum())) + 1))
            better = even_out(sampler.betas(), rate, 1.0, rungs)
            nearest = (better[:, None] - sampler.betas()).abs().argmin(1)
            v = sampler.persistent(walked.chains)[nearest.to(v.device)]
            sampler = replace(sampler, ladder=tuple(better.tolist()))
        return sampler

    def bind(self, energy: Energy, n_steps: int) -> Step:
        ladder = self._energies(energy)
        base, gaps = ladder.base, ladder.beta.flatten().diff()[:, None]  # (R − 1, 1)
        move, stale = _mover(self.sampler, ladder, n_steps)

        def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
            replicas: Chains = chains.state
            difference = energy.energy(replicas.v, replicas.h) - base.energy(replicas.v)

            def decide(order: Tensor, first: int) -> Decision:
                decision = accept(gaps * difference.gather(0, order).diff(dim=0), rng)
                return Decision(decision.accepted[first::2], decision.accept_prob[first::2])

            order, swap_prob = swap_neighbours(decide, difference)
            v, h = (in_order(x, order) for x in (replicas.v, replicas.h))
            swapped = Chains(v, h, replicas.h_prob if stale else ladder.hidden_logits(v).sigmoid())
            replicas, info = move(swapped, t, rng)
            return top_of(replicas), StepInfo(None if info.accept_prob is None else info.accept_prob[-1], swap_prob)

        return step

    def at_once(self, energy: Energy, walk: Walk, rng: Rng) -> Walked | None:
        if not isinstance(self.sampler, MoveSampler):
            return None
        v, ladder = walk.v, self._energies(energy)
        moves = moves_of(self.sampler, ladder, walk.n_steps)
        replicas: Chains | None = None if walk.given is None else walk.given.state
        v = replicas.v if replicas is not None else v.expand(self.n_replicas, *v.shape) if v.ndim == 2 else v
        return engine_for(energy.W, rng).run_ladder(ladder, moves, walk._replace(v=v, given=replicas), rng)


def _mover(sampler: Sampler, ladder: TemperedEnergy, n_steps: int) -> tuple[Step, bool]:
    """The step that moves all replicas, and whether it needs no ``h_prob`` of the old states.

    Cache and probabilities belong to the old rungs; moves that neither use nor keep them make new ones.
    """
    if not isinstance(sampler, MoveSampler):
        return sampler.bind(ladder, n_steps), False
    moves = moves_of(sampler, ladder, n_steps)

    def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
        found = engine_for(ladder.W, rng).run(ladder, moves.part(t, t + 1), Walk(chains.v, 1, given=chains), rng)
        return found.chains, StepInfo(found.accept_prob)

    return step, moves.is_plain


def swap_neighbours(decide: Callable[[Tensor, int], Decision], like: Tensor) -> tuple[Tensor, Tensor]:
    """Swap the states of neighbouring replicas, even pairs first, then odd ones.

    ``decide(order, first)`` says for the pairs (first, first + 1), (first + 2, first + 3), ... which swap, where
    replica r holds the state that was number ``order[r]`` before. ``like`` (R, C) has the dtype of probabilities.

    Returns the order after both (R, C), see `in_order`, and with what probability each pair was to swap (R − 1, C).
    """
    replicas = torch.arange(len(like), device=like.device)[:, None].expand_as(like)
    order, swap_prob = replicas, torch.zeros_like(like[1:])
    for first in (0, 1):
        decision = decide(order, first)
        exchange = torch.zeros_like(replicas)
        exchange[:-1][first::2] += decision.accepted.long()
        exchange[1:][first::2] -= decision.accepted.long()
        order = order.gather(0, replicas + exchange)
        swap_prob[first::2] = decision.accept_prob
    return order, swap_prob


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """x (R, C, ·) with state ``order[r, c]`` of chain c in the place of replica r."""
    rows = (order * order.shape[1] + torch.arange(order.shape[1], device=order.device)).flatten()
    return x.flatten(0, 1).index_select(0, rows).view_as(x)


def even_out(betas: Tensor, swap_rate: Tensor, share: float, n_replicas: int | None = None) -> Tensor:
    """A ladder whose neighbours reject equally often, by linear interpolation of the rejections summed up to each β.

    ``share`` below 1 goes only that part of the way, for ladders of the same length.
    """
    n_replicas, old = n_replicas or len(betas), betas.numpy()
    rejected = 1 - swap_rate.double().cpu().numpy()
    rejected = np.maximum(rejected, 1e-3)  # where all is accepted, rungs must not fall together
    summed = np.concatenate(([0.0], rejected.cumsum()))
    even = np.interp(np.linspace(0, 1, n_replicas) * summed[-1], summed, old)
    even[0], even[-1] = 0.0, 1.0
    return torch.from_numpy(even if n_replicas != len(old) else old + share * (even - old))
