"""The verbs of an engine, and their definition in PyTorch."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, Rng, normal, uniform
from grbm.model import GRBM, Energy, TemperedEnergy
from grbm.model.censoring import Interval
from grbm.model.reference import Reference
from grbm.samplers.chains import Chains, Walk, Walked, gather, start_chains
from grbm.samplers.moments import Pooled
from grbm.samplers.moves import Moves, move_step

Measured = tuple[Tensor, Tensor, Tensor, Interval | None]  # `grbm.samplers.conditional.GivenHidden`
Followers = list[tuple[Tensor, Tensor, float]]  # parameters, their rates () and their floors
Sums = tuple[Tensor, Tensor]  # of means and their squares, by chain (C, N) float64


class Jumping(NamedTuple):
    """The sweep and the jump of a step of `grbm.samplers.global_moves.GlobalMoves`."""

    n_moves: int  # between the sweep over hidden units and the jump
    J: Tensor  # of the hidden units' marginal (M, M)
    alone: Tensor  # log-odds of each hidden unit where no other one is on (M,)
    q: Reference  # from which jumps are proposed


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

    def descend(self, followers: Followers, factor: Tensor, broken: Tensor | None) -> None:
        """Let each parameter x follow ``factor`` () times its gradient downhill, by its rate, and not below its floor.

        Where ``broken`` () is true nothing moves.
        """
        for x, rate, least in followers:
            assert x.grad is not None
            moved = (x - x.grad * (rate * factor)).clamp(min=least)
            x.copy_(moved if broken is None else torch.where(broken, x, moved))

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

    def run_jumps(self, energy: Energy, moves: Moves, jumping: Jumping, walk: Walk, rng: Rng) -> Walked | None:
        """Make a walk of `grbm.samplers.global_moves.GlobalMoves`, with these moves between sweeps and jumps."""
        return None

    def sweep(self, J: Tensor, alone: Tensor, h: Tensor, beta: float, rng: Rng) -> Tensor:
        """Draw each unit of h (C, M) in turn, with log-odds ``alone`` (M,) + ``beta`` J h, without itself."""
        # On where the log-odds exceed the logit of a uniform number.
        bar = ((uniform(h.shape, h, rng).logit() - alone) / beta).T.contiguous()
        h = h.T.contiguous()  # a unit is a row, so that its chains lie together
        field, own = J @ h, J.diagonal()[:, None] * h
        for j in range(len(h)):
            new = (field[j] - own[j] > bar[j]).to(h.dtype)
            field.addr_(J[j], new - h[j])
            h[j] = new
        return h.T.contiguous()

    def anneal(
        self, J: Tensor, c: Tensor, h: Tensor, betas: Tensor, share: float, rng: Rng
    ) -> tuple[Tensor, Tensor] | None:
        """Anneal populations of 64 hidden states h (C, M) as `grbm.samplers.collapsed.anneal` does, along ``betas``.

        One whose effective part falls below ``share`` is resampled. Returns what each makes of log Z, less that at the
        first β (K,), float64, and the states.
        """
        return None

    def free_energy(self, energy: Energy, v: Tensor) -> Tensor:
        """F(v) in nats, per sample: (..., N) -> (...). Engines need not give its gradients."""
        return energy.free_energy(v)

    def draw(self, kind: str, shape: tuple[int, int], like: Tensor, rng: Rng) -> Tensor:
        """Draws for chains, "normal" or "uniform" (C, n)."""
        return (normal if kind == "normal" else uniform)(shape, like, rng)


class LearningEngine(Engine, ABC):
    """An engine that also makes both phases of an update at once."""

    @abstractmethod
    def learn(
        self, model: GRBM, energy: Energy, moves: Moves, data: Walk, walk: Walk, rng: Blocks, first: int, *,
        centred: bool,
    ) -> tuple[Tensor, Pooled, Tensor]:  # fmt: skip
        """Make both phases and leave the gradient in ``model``.

        The walk at the ``data``, of no steps, has draw number ``first``; the chains' goes on from where ``rng`` is.
        Returns the chains' last visible units (C, N), what is pooled, and the norm of the gradient.
        """


def counters(rng: Rng, n_chains: int, n_draws: int) -> dict[str, int]:
    """Where the chains' counter-based numbers begin; ``rng`` goes on behind ``n_draws`` of them."""
    assert not isinstance(rng, torch.Generator)
    philox = rng.philox(n_chains)
    found = {"key": int(philox.key), "first_chain": philox.first_chain, "first_draw": philox.draw}
    rng.draw += n_draws
    return found
