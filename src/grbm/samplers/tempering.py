"""Parallel tempering: replicas of the chain along a ladder from a Gaussian base to the model."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from grbm.model import Base, Energy
from grbm.randomness import Rng
from grbm.samplers import native
from grbm.samplers.chains import Chains, Sampler, Step, StepInfo
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.metropolis import accept


@dataclass(frozen=True)
class ParallelTempering(Sampler):
    """R replicas at inverse temperatures β_r = (r/(R − 1))^power; each step swaps neighbours, then moves every replica.

    Replica r has energy (1 − β_r) E_0 + β_r E_1, where E_0 is the base and E_1 the model, so a swap of neighbouring
    states (v, h) is accepted with log A = (β_{r+1} − β_r) (D_{r+1} − D_r), D = E_1 − E_0; even
    pairs first, then odd ones.
    The returned chains are those at β = 1; ``state`` holds all replicas as Chains with a leading axis (R, C, ·).

    Parameters
    ----------
    base : Base, optional
        Where β = 0; by default N(0, I), which fits standardised data.
    n_replicas, power
        The ladder.
    sampler : Sampler
        What moves each replica; exact if it is.
    """

    base: Base | None = None
    n_replicas: int = 14
    power: float = 1.5
    sampler: Sampler = field(default_factory=Gibbs)

    def __post_init__(self) -> None:
        if self.n_replicas < 2:
            raise ValueError(f"n_replicas must be at least 2, got {self.n_replicas}.")
        if not self.power > 0:
            raise ValueError(f"power must be above 0, got {self.power}.")
        if self.sampler.anneals:
            raise ValueError("The replicas cannot be moved by an annealed path.")

    @property
    def exact(self) -> bool:
        return self.sampler.exact

    def betas(self) -> Tensor:
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

    def bind(self, energy: Energy, n_steps: int) -> Step:
        base, betas = on_device(self.base, energy), self.betas().to(energy.W)
        base_energy = energy.temper(betas.new_zeros(()), base)
        gaps = betas.diff()[:, None]  # (R − 1, 1)
        ladder = energy.temper(betas, base)
        move, moves = self.sampler.bind(ladder, n_steps), self.sampler.moves(ladder, n_steps)

        def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
            replicas = chains.state
            difference = energy.energy(replicas.v, replicas.h) - base_energy.energy(replicas.v, replicas.h)
            rungs = torch.arange(self.n_replicas, device=difference.device)[:, None].expand_as(difference)
            order, rates = rungs, torch.zeros_like(difference[1:])
            for first in (0, 1):  # even pairs, then odd pairs
                decision = accept(gaps * difference.gather(0, order).diff(dim=0), rng)
                exchange = torch.zeros_like(rungs)
                exchange[:-1][first::2] += decision.accepted[first::2].long()
                exchange[1:][first::2] -= decision.accepted[first::2].long()
                order = order.gather(0, rungs + exchange)
                rates[first::2] = decision.accept_prob[first::2]
            v, h = (x.gather(0, order[..., None].expand_as(x)) for x in (replicas.v, replicas.h))
            # Cache and probabilities belong to the old rungs; moves that neither use nor keep them make new ones.
            keeps = moves is None or moves.mean_field or moves.adjust_from is not None
            swapped = Chains(v, h, ladder.hidden_logits(v).sigmoid() if keeps else replicas.h_prob)
            if moves is not None and not isinstance(rng, torch.Generator) and native.serves(ladder):
                walked = native.run(ladder, moves.part(t, t + 1), v, 1, rng, given=swapped)
                replicas, accept_prob = walked.chains, walked.accept_prob
            else:
                replicas, info = move(swapped, t, rng)
                accept_prob = info.accept_prob
            return _target(replicas), StepInfo(None if accept_prob is None else accept_prob[-1], rates.mean(-1))

        return step


def on_device(base: Base | None, energy: Energy) -> Base:
    """The base, or N(0, I) for None, on the energy's device."""
    if base is None:
        return Base(torch.zeros_like(energy.W[:, 0]), torch.ones_like(energy.W[:, 0]))
    return Base(base.mean.to(energy.W), base.var.to(energy.W))


def _target(replicas: Chains) -> Chains:
    return Chains(replicas.v[-1], replicas.h[-1], replicas.h_prob[-1], replicas)
