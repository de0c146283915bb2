"""The verbs of an engine, and their definition in PyTorch."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Rng, normal, uniform
from grbm.model import Base, Energy, TemperedEnergy
from grbm.model.censoring import Interval
from grbm.samplers.chains import Chains, Walk, Walked, gather, start_chains
from grbm.samplers.moves import Moves, move_step

Measured = tuple[Tensor, Tensor, Tensor, Interval | None]  # `grbm.samplers.conditional.GivenHidden`
Sums = tuple[Tensor, Tensor]  # of means and their squares, by chain (C, N) float64


class Followed(NamedTuple):
    """Chains at the end of a path."""

    log_weight: Tensor  # (C,) float64
    v: Tensor  # (C, N)


class Engine:
    """Run walks in plain PyTorch, for every device and dtype. Faster engines override some of the methods.

    What is defined step by step elsewhere gives None where an engine cannot do it in one call. No engine but this one
    is given a `torch.Generator`: only `grbm.core.randomness.Blocks` and `grbm.core.randomness.Philox` have numbers for
    others.
    """

    name = "pytorch"

    def run(self, energy: Energy, moves: Moves, walk: Walk, rng: Rng) -> Walked:
        """Make a walk of these moves, one for each step or one for all."""
        chains = start_chains(energy, walk.v, rng) if walk.given is None else walk.given._replace(v=walk.v)
        return gather(energy, move_step(energy, moves), chains, walk, rng)

    def run_ladder(self, ladder: TemperedEnergy, moves: Moves, walk: Walk, rng: Rng) -> Walked | None:
        """Make a walk of `ParallelTempering`: replicas v (R, C, N) have the energies ``ladder``.

        Sums are of the states at β = 1, and so are the chains that come back; all replicas are their ``state``.
        """
        return None

    def run_given(self, energy: Energy, measured: Measured, walk: Walk, rng: Rng) -> tuple[Chains, Sums | None] | None:
        """Make a walk of `grbm.samplers.conditional.Conditional`: v given h has mean m + g (y − m) and a deviation of
        its own, and may be truncated to intervals.

        With a burn-in that mean and its square are summed over steps.
        """
        return None

    def anneal(self, energy: Energy, base: Base, betas: Tensor, v: Tensor, rng: Rng, *, back: bool) -> Followed | None:
        """Do what `grbm.samplers.path.follow` does."""
        return None

    def sweep(self, J: Tensor, bar: Tensor, h: Tensor) -> Tensor | None:
        """Do what `grbm.samplers.collapsed.Boltzmann.definition` does: h (C, M) after a draw of each unit."""
        return None

    def draw(self, kind: str, shape: tuple[int, int], like: Tensor, rng: Rng) -> Tensor:
        """Draws for chains, "normal" or "uniform" (C, n)."""
        return (normal if kind == "normal" else uniform)(shape, like, rng)


def counters(rng: Rng, n_chains: int, n_draws: int) -> dict[str, int]:
    """Where the chains' counter-based numbers begin; ``rng`` goes on behind ``n_draws`` of them."""
    assert not isinstance(rng, torch.Generator)
    philox = rng.philox(n_chains)
    found = {"key": philox.key, "first_chain": philox.first_chain, "first_draw": philox.draw}
    rng.draw += n_draws
    return found
