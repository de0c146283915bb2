"""Chains under measurements on a CUDA device: block Gibbs on p(v, h | y), in one CUDA graph.

In the coordinates of `cuda_buffers.py`, u = (v − μ)/σ, the mean of v given h and y is d + g (y' − d) with y' the
measurement in them, and its deviation s/σ. The definition is `GivenHidden` (samplers/conditional.py).
"""

import functools
from typing import NamedTuple

import torch

from grbm.core.options import Precision
from grbm.core.randomness import Rng
from grbm.model import Energy
from grbm.samplers.chains import Chains, Walk
from grbm.samplers.engines.cuda_buffers import Buffers, grid, set_for
from grbm.samplers.engines.definition import Measured, Sums
from grbm.samplers.engines.kernels import LIMIT, given_tail


class Shape(NamedTuple):
    """Sizes and settings that a CUDA graph is captured for."""

    n_chains: int
    n_visible: int
    n_hidden: int
    n_steps: int
    burn_in: int | None
    given: bool
    within: bool
    precision: Precision
    device: torch.device


class Walker(Buffers):
    """Buffers of one `Shape`, and the walk over them."""

    def __init__(self, shape: Shape) -> None:
        C, N, M = shape[:3]
        super().__init__(C, N, M, shape.precision, shape.device)
        self.shape, room = shape, self.room
        self.y, self.share, self.std, self.mean, self.u = (room(C, N) for _ in range(5))
        ends = (C if shape.within else 1, N)
        self.low, self.high = room(*ends), room(*ends)
        self.operand, self.h = room(C, N, kind=self.kind), room(C, M, kind=self.kind)
        self.parts = self.room_for_parts(0)
        summed = (0 if shape.burn_in is None else C, N)
        self.total, self.squares = (room(*summed, kind=torch.float64) for _ in range(2))

    def run(self) -> None:
        """The walk from the start in u; it ends there."""
        s = self.shape
        self.total.zero_()
        self.squares.zero_()
        self.operand.copy_(self.u.clamp(-LIMIT.value, LIMIT.value))
        if not s.given:
            self._hidden(0)
        draw = int(not s.given)
        for t in range(s.n_steps):
            given_tail[grid(s.n_chains, s.n_visible, self.tail)](
                self.drive(self.h), self.y, self.share, self.std, self.low, self.high, self.state, draw, self.mean,
                self.u, self.operand, s.n_chains, s.n_visible, s.within, **self.tail,
            )  # fmt: skip
            self._sum(t - 1)  # the mean is that given the state before
            self._hidden(draw + 1)
            draw += 2
        if s.burn_in is not None:
            torch.lerp(self.drive(self.h), self.y, self.share, out=self.mean)
            self._sum(s.n_steps - 1)

    def _hidden(self, draw: int) -> None:
        self.draw_hidden(self.operand, draw, self.h, None, self.shape.n_chains, "", self.parts)

    def _sum(self, t: int) -> None:
        """Add the mean of v given the hidden units after step ``t``, and its square, where they count."""
        if self.shape.burn_in is not None and t >= self.shape.burn_in:
            mean = self.mean.double()
            self.total += mean
            self.squares += mean.square()


@functools.lru_cache(maxsize=4)
@torch.inference_mode(False)
def walker(shape: Shape) -> Walker:
    """The one for this shape; each walk overwrites its buffers."""
    return Walker(shape)


def run_given(energy: Energy, measured: Measured, walk: Walk, rng: Rng) -> tuple[Chains, Sums | None]:
    """A walk of `Conditional`, as `Engine.run_given`; the host waits for nothing."""
    v, n_steps, burn_in, _, given = walk
    (C, N), M, (y, share, std, within) = v.shape, energy.n_hidden, measured
    kinds = given is not None, within is not None, energy.precision, energy.W.device
    w = walker(Shape(C, N, M, n_steps, burn_in, *kinds))
    sigma = w.begin(energy, rng, C, (given is None) + 2 * n_steps)
    for room, x in ((w.u, v), (w.y, y), *(() if within is None else ((w.low, within.low), (w.high, within.high)))):
        room.copy_((x - energy.mu) / sigma)
    w.share.copy_(share)
    w.std.copy_(std / sigma)
    if given is not None:
        w.h.copy_(given.h)
    with set_for(energy.precision, energy.W.device):
        w.replay(w.run)
    last_v = energy.mu + sigma * w.u
    if within is not None:
        last_v = torch.minimum(torch.maximum(last_v, within.low), within.high)
    if n_steps:
        last_v = torch.where(std > 0, last_v, y)
    chains = Chains(last_v, w.h.to(energy.W, copy=True), energy.hidden_logits(last_v).sigmoid())
    if burn_in is None:
        return chains, None
    n, mu, sigma = n_steps - burn_in, energy.mu.double(), sigma.double()
    total, squares = sigma * w.total, sigma.square() * w.squares
    return chains, (total + n * mu, squares + 2 * mu * total + n * mu.square())
