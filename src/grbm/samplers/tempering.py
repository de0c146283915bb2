"""Parallel tempering: replicas of the chain along a ladder from a Gaussian base to the model."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from grbm.model import Base, Energy
from grbm.randomness import Blocks, Rng, seed_of
from grbm.samplers import native
from grbm.samplers.chains import Chains, Sampler, Step, StepInfo
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.metropolis import accept
from grbm.samplers.run import run

PILOT_CHAINS, PILOT_STEPS, PILOT_ROUNDS = 64, 50, 8  # of `ParallelTempering.tuned`; half of each round is burn-in


@dataclass(frozen=True)
class ParallelTempering(Sampler):
    """R replicas at inverse temperatures 0 = β_0 < ... < β_{R−1} = 1; each step swaps neighbours, then moves all.

    Replica r has energy (1 − β_r) E_0 + β_r E_1, where E_0 is the base and E_1 the model, so a swap of neighbouring
    states (v, h) is accepted with log A = (β_{r+1} − β_r) (D_{r+1} − D_r), D = E_1 − E_0; even
    pairs first, then odd ones.
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

    @property
    def exact(self) -> bool:
        return self.sampler.exact

    def betas(self) -> Tensor:
        """The inverse temperatures (R,), float64."""
        if self.ladder is not None:
            return torch.tensor(self.ladder, dtype=torch.float64)
        return torch.linspace(0, 1, self.n_replicas, dtype=torch.float64) ** self.power

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """All replicas at the base, (R, C, N)."""
        return on_device(self.base, energy).sample((self.n_replicas, n_chains), rng)

    def start(self, energy: Energy, v: Tensor, rng: Rng) -> Chains:
        """From v (C, N), copied to every replica, or from each replica's own (R, C, N)."""
        if v.ndim == 2:
            v = v.expand(self.n_replicas, *v.shape)
        ladder = energy.temper(self.betas().to(energy.W), on_device(self.base, energy))
        return _target(self.sampler.start(ladder, v, rng))

    def persistent(self, chains: Chains) -> Tensor:
        replicas: Chains = chains.state
        return replicas.v

    def adapted(self, energy: Energy, swap_rate: Tensor) -> "ParallelTempering":
        if self.adapt == 0:
            return self
        return replace(self, ladder=tuple(even_out(self.betas(), swap_rate, self.adapt).tolist()))

    @property
    def memory(self) -> dict[str, Tensor]:
        return {} if self.ladder is None else {"ladder": self.betas()}

    def recalling(self, memory: dict[str, Tensor]) -> "ParallelTempering":
        return replace(self, ladder=tuple(memory["ladder"].tolist())) if "ladder" in memory else self

    def tuned(self, energy: Energy, *, seed: int = 0) -> "ParallelTempering":
        """With a ladder for ``energy`` whose neighbours swap half of the time, by eight pilot runs from the base.

        The rejections of all pairs together (the communication barrier of Syed et al. 2022) hardly depend on the
        ladder, and R − 1 = twice that many makes the most round trips for the work. At most 64 replicas.
        """
        if self.adapt == 0:
            return self
        sampler = self
        rng = Blocks(seed_of(seed, "ladder"), 1, device=energy.W.device)
        v = sampler.noise(energy, PILOT_CHAINS, rng)
        for _ in range(PILOT_ROUNDS):
            v = sampler.persistent(run(energy, sampler, v, PILOT_STEPS // 2, rng).chains)
            walked = run(energy, sampler, v, PILOT_STEPS // 2, rng)
            assert walked.swaps is not None
            rate = walked.swaps.rate().cpu()
            rungs = min(64, max(2, math.ceil(2 * float((1 - rate).sum())) + 1))
            better = even_out(sampler.betas(), rate, 1.0, rungs)
            nearest = (better[:, None] - sampler.betas()).abs().argmin(1)
            v = sampler.persistent(walked.chains)[nearest.to(v.device)]
            sampler = replace(sampler, ladder=tuple(better.tolist()))
        return sampler

    def bind(self, energy: Energy, n_steps: int) -> Step:
        base, betas = on_device(self.base, energy), self.betas().to(energy.W)
        gaps = betas.diff()[:, None]  # (R − 1, 1)
        ladder = energy.temper(betas, base)
        move, moves = self.sampler.bind(ladder, n_steps), self.sampler.moves(ladder, n_steps)

        def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
            replicas = chains.state
            difference = energy.energy(replicas.v, replicas.h) - base.energy(replicas.v)
            rungs = torch.arange(self.n_replicas, device=difference.device)[:, None].expand_as(difference)
            order, rates = rungs, torch.zeros_like(difference[1:])
            for first in (0, 1):  # even pairs, then odd pairs
                decision = accept(gaps * difference.gather(0, order).diff(dim=0), rng)
                exchange = torch.zeros_like(rungs)
                exchange[:-1][first::2] += decision.accepted[first::2].long()
                exchange[1:][first::2] -= decision.accepted[first::2].long()
                order = order.gather(0, rungs + exchange)
                rates[first::2] = decision.accept_prob[first::2]
            rows = (order * order.shape[1] + torch.arange(order.shape[1], device=order.device)).flatten()
            v, h = (x.flatten(0, 1).index_select(0, rows).view_as(x) for x in (replicas.v, replicas.h))
            # Cache and probabilities belong to the old rungs; moves that neither use nor keep them make new ones.
            keeps = moves is None or moves.mean_field or moves.adjust_from is not None
            swapped = Chains(v, h, ladder.hidden_logits(v).sigmoid() if keeps else replicas.h_prob)
            if moves is not None and not isinstance(rng, torch.Generator) and native.serves(ladder):
                walked = native.run(ladder, moves.part(t, t + 1), v, 1, rng, given=swapped)
                replicas, accept_prob = walked.chains, walked.accept_prob
            else:
                replicas, info = move(swapped, t, rng)
                accept_prob = info.accept_prob
            return _target(replicas), StepInfo(None if accept_prob is None else accept_prob[-1], rates)

        return step


def even_out(betas: Tensor, swap_rate: Tensor, share: float, n_replicas: int | None = None) -> Tensor:
    """A ladder whose neighbours reject equally often, by linear interpolation of the rejections summed up to each β.

    ``share`` below 1 goes only that part of the way, for ladders of the same length.
    """
    n_replicas = n_replicas or len(betas)
    rejected = (1 - swap_rate.double().cpu()).clamp_min(1e-3)  # where all is accepted, rungs must not fall together
    summed = torch.cat([rejected.new_zeros(1), rejected.cumsum(0)])
    wanted = torch.linspace(0, 1, n_replicas, dtype=torch.float64) * summed[-1]
    even = torch.from_numpy(np.interp(wanted.numpy(), summed.numpy(), betas.numpy()))
    even[0], even[-1] = 0.0, 1.0
    return even if n_replicas != len(betas) else torch.lerp(betas, even, share)


def on_device(base: Base | None, energy: Energy) -> Base:
    """The base, or N(0, I) for None, on the energy's device."""
    if base is None:
        return Base(torch.zeros_like(energy.W[:, 0]), torch.ones_like(energy.W[:, 0]))
    return Base(base.mean.to(energy.W), base.var.to(energy.W))


def _target(replicas: Chains) -> Chains:
    return Chains(replicas.v[-1], replicas.h[-1], replicas.h_prob[-1], replicas)
