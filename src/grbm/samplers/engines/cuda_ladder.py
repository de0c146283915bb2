"""Parallel tempering on a CUDA device: all replicas, their swaps and moves, in one CUDA graph.

In the coordinates of `cuda_buffers.py`, u = (v − μ)/σ with the model's own μ and σ, replica r has the logits
β_r (Vᵀu + c) and the drive offset_r + gain_r ∘ (V h): so replicas share each product, and are rows of it.
The definition is ParallelTempering.bind (samplers/tempering.py).
"""

import functools

import torch
import triton

from grbm.core.randomness import Rng
from grbm.model import TemperedEnergy
from grbm.samplers.chains import Chains, Swaps, Walk, Walked, top_of
from grbm.samplers.engines.cuda_buffers import Buffers, Shape, grid, product, set_for
from grbm.samplers.engines.kernels import LIMIT, differences, swap, visible_tail
from grbm.samplers.moves import Moves


class Walker(Buffers):
    """Buffers of one `Shape`, and the walk over them; rows are the chains of the first replica, then of the next."""

    def __init__(self, shape: Shape) -> None:
        R, C, N, M = shape[:4]
        rows = R * C
        super().__init__(rows, N, M, shape.precision, shape.device)
        self.shape, room = shape, self.room
        self.order, self.accepted = room(rows, kind=torch.int64), room(R - 1, C, kind=torch.int64)
        self.beta, self.gaps, self.difference = room(R), room(R - 1), room(rows)
        self.offset, self.gain = room(R, N), room(R, N)
        self.shrink, self.noise_std = room(shape.n_moves, R, N), room(shape.n_moves, R, N)
        self.stretch, self.shift = room(N), room(N)  # (v − mean of the base)/its deviation = stretch u + shift
        self.u, self.swapped_u, self.operand = room(rows, N), room(rows, N), room(rows, N, kind=self.kind)
        self.h, self.swapped_h = room(rows, M, kind=self.kind), room(rows, M, kind=self.kind)
        self.p = room(rows, M, kind=self.kind) if shape.probabilities else None
        self.parts = self.room_for_parts(rows)  # of Σ_j h_j ℓ_j

    def run(self) -> None:
        """The walk from the start in u; it ends there."""
        s, tail, C, N, rows = self.shape, self.tail, self.shape.n_chains, self.n_visible, self.rows
        self.clear()
        self.accepted.zero_()
        self.operand.copy_(self.u.clamp(-LIMIT.value, LIMIT.value))
        if s.given:  # the sum that a draw would have left
            logits = product(self.operand, self.V) + self.c
            self.parts.zero_()
            self.parts[:, 0] = (self.h * logits).sum(1)
        else:
            self._hidden(0)
        draw = int(not s.given)
        self._sum(-1)
        for t in range(s.n_steps):
            differences[(triton.cdiv(rows, tail["BM"]),)](
                self.u, self.stretch, self.shift, self.parts, self.difference, rows, N, self.parts.shape[1], **tail,
            )  # fmt: skip
            swap[(triton.cdiv(C, tail["BM"]),)](
                self.difference, self.gaps, self.state, draw, self.order, self.accepted, C, s.n_replicas, tail["BM"],
            )  # fmt: skip
            torch.index_select(self.u, 0, self.order, out=self.swapped_u)
            torch.index_select(self.h, 0, self.order, out=self.swapped_h)
            k = t if s.n_moves > 1 else 0
            visible_tail[grid(rows, N, tail)](
                self.swapped_u, self.drive(self.swapped_h), self.offset, self.gain, self.shrink[k],
                self.noise_std[k], self.state, draw + 2, self.u, self.operand, rows, C, N, True, **tail,
            )  # fmt: skip
            self._hidden(draw + 3)
            draw += 4
            self._sum(t)

    def _hidden(self, draw: int) -> None:
        C = self.shape.n_chains
        self.draw_hidden(self.operand, draw, self.h, self.p, C, "drive", self.parts, self.beta)

    def _sum(self, t: int) -> None:
        """Add the states at β = 1 after step ``t``, where they count."""
        s = self.shape
        if s.burn_in is None or t < s.burn_in:
            return
        top = slice((s.n_replicas - 1) * s.n_chains, None)
        self.add(self.u[top], self.operand[top], (self.h if self.p is None else self.p)[top])


@functools.lru_cache(maxsize=4)
@torch.inference_mode(False)
def walker(shape: Shape) -> Walker:
    """The one for this shape; each walk overwrites its buffers."""
    return Walker(shape)


def run_ladder(ladder: TemperedEnergy, moves: Moves, walk: Walk, rng: Rng) -> Walked:
    """A walk of `ParallelTempering`, as `Engine.run_ladder`; the host waits for nothing."""
    v, n_steps, burn_in, _, given = walk
    energy, base, (R, C, N), M = ladder.untempered, ladder.base, v.shape, ladder.n_hidden
    w = walker(Shape.of(energy, moves, walk))
    sigma = w.begin(energy, rng, C, (given is None) + 4 * n_steps)
    w.beta.copy_(ladder.beta.flatten())
    w.gaps.copy_(ladder.beta.flatten().diff())
    w.offset.copy_(((ladder.mu - energy.mu) / sigma).view(R, N))
    w.gain.copy_(ladder.gain.view(R, N))
    w.stretch.copy_(sigma / base.var.sqrt())
    w.shift.copy_((energy.mu - base.mean) / base.var.sqrt())
    for room, x in ((w.shrink, moves.shrink), (w.noise_std, moves.noise_std / sigma)):
        room.copy_(x.reshape(len(x), -1, N))
    w.u.view(R, C, N).copy_((v - energy.mu) / sigma)
    if given is not None:
        w.h.view(R, C, M).copy_(given.h)
        if w.p is not None:
            w.p.view(R, C, M).copy_(given.h_prob)
    with set_for(energy.precision, energy.W.device):
        w.replay(w.run)
    last_v = energy.mu + sigma * w.u.view(R, C, N)
    h = w.h.view(R, C, M).to(energy.W, copy=True)
    replicas = Chains(last_v, h, ladder.hidden_logits(last_v).sigmoid())
    swaps = Swaps(w.accepted.sum(1).double(), n_steps * C) if n_steps else None
    sums = None if burn_in is None else w.sums_in_v(energy.mu, sigma, C * (n_steps - burn_in))
    return Walked(top_of(replicas), sums, swaps=swaps)
