"""Annealed chains from the base to the model, with importance weights and resampling."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, Rng, uniform
from grbm.model import Base, Energy, base_for
from grbm.samplers.chains import Chains, Composed, Sampler, Step, StepInfo, start_chains
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.sampling import run_chains


class Weights(NamedTuple):
    """Importance weights of annealed chains since the last resampling, and the estimate of log Z so far."""

    log_weight: Tensor  # (C,) float64
    log_z: Tensor  # scalar float64, up to and including the last resampling


@dataclass(frozen=True)
class Annealed(Composed):
    """Chains start at the base and follow β_t = (t/T)^power up to the model over the T steps of the walk.

    Before each move the weight of a chain grows by F_{β_t}(v) − F_{β_{t+1}}(v) (annealed importance sampling, Neal
    2001); chains are resampled (systematically) when the effective sample size falls below ``resample_below`` of their
    number, and before the last move, so that the returned chains have equal weight. Weighting gives every mode its
    mass, which no chain from noise finds by mixing. ``chains.state.log_z`` estimates log Z: unbiased for Z, so low on
    average for log Z.

    Parameters
    ----------
    base : Base, optional
        Start of the path; by default N(0, I), which fits standardised data.
    sampler : Sampler
        The transition at each β.
    power : float
        Exponent of the path; above 1 spends more steps near the base, where the free energy changes most.
    resample_below : float
        Share of the chains.
    """

    base: Base | None = None
    sampler: Sampler = field(default_factory=Gibbs)
    power: float = 2.0
    resample_below: float = 0.5

    anneals = True
    exact = False  # its chains are right in the limit of many chains or steps

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ValueError(f"power must be above 0, got {self.power}.")

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        return base_for(self.base, energy).sample((n_chains,), rng)

    def start(self, energy: Energy, v: Tensor, rng: Rng) -> Chains:
        """Chains at v, which must be draws from the base for the weights to mean anything."""
        base = base_for(self.base, energy)
        beginning = energy.temper(energy.W.new_zeros(()), base)
        log_z = base.log_z(energy.n_hidden)
        return start_chains(beginning, v, rng)._replace(state=Weights(log_z.new_zeros(len(v)), log_z))

    def bind(self, energy: Energy, n_steps: int) -> Step:
        base = base_for(self.base, energy)
        betas = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64) ** self.power

        def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
            before, after = (energy.temper(betas[k].to(energy.W), base) for k in (t, t + 1))
            v, (log_weight, log_z) = chains.v, chains.state
            log_weight = log_weight + (before.free_energy(v) - after.free_energy(v)).double()
            log_mean, ess = importance(log_weight)
            if t == n_steps - 1 or ess < self.resample_below * len(v):
                log_z = log_z + log_mean
                v = v[systematic(log_weight, rng)]
                log_weight = torch.zeros_like(log_weight)
            walked = run_chains(after, self.sampler, v, 1, rng)
            return walked.chains._replace(state=Weights(log_weight, log_z)), StepInfo(walked.accept_prob)

        return step


def importance(log_weight: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the mean weight, and the effective number of chains, from log weights (C,).

    The latter is (Σ w)²/Σ w² (Kong 1992): C where all weights are equal, 1 where one chain has it all.
    """
    total = log_weight.logsumexp(0)
    return total - math.log(len(log_weight)), torch.exp(2 * total - (2 * log_weight).logsumexp(0))


def systematic(log_weight: Tensor, rng: Rng) -> Tensor:
    """Indices (C,) of a systematic resampling: chain i appears C w_i times on average, give or take less than one."""
    first = rng.generators[0] if isinstance(rng, Blocks) else rng  # one number for all chains
    return spaced(log_weight, uniform((1,), log_weight, first, chain_axis=-1))


def spaced(log_weight: Tensor, offset: Tensor) -> Tensor:
    """`systematic` by its random number in [0, 1), of shape (1,)."""
    n = len(log_weight)
    cumulative = log_weight.softmax(0).cumsum(0)
    points = (torch.arange(n, dtype=torch.float64, device=log_weight.device) + offset) / n
    return torch.searchsorted(cumulative, points).clamp_max(n - 1)
