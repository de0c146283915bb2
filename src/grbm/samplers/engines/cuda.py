"""The walk on a CUDA device: products on tensor cores, tails fused in Triton, the whole chain one CUDA graph.

Its coordinates and buffers are those of `cuda_buffers.py`, its kernels those of `kernels.py`. They also run in Triton's
interpreter on a CPU (TRITON_INTERPRET=1), which is how they are tested without a GPU.
"""

import functools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional

from grbm.core.randomness import Rng
from grbm.model import Energy, TemperedEnergy
from grbm.samplers.chains import Chains, Walk, Walked
from grbm.samplers.engines import cuda_given, cuda_ladder
from grbm.samplers.engines.cuda_buffers import Buffers, Part, Shape, grid, product, set_for
from grbm.samplers.engines.definition import Engine, Measured, Sums
from grbm.samplers.engines.kernels import LIMIT, acceptance, visible_tail
from grbm.samplers.moves import Moves


class _Tail(NamedTuple):
    """Sums over hidden units by chain (C,)."""

    softplus: Tensor  # Σ_j softplus(ℓ_j)
    log_p: Tensor  # log p(h | v), where acceptance is joint


class Walker(Buffers):
    """Buffers of one `Shape`, and the walk over them."""

    def __init__(self, shape: Shape) -> None:
        _, C, N, M, T = shape[:5]
        super().__init__(C, N, M, shape.precision, shape.device)
        self.shape, room = shape, self.room
        counted = 0 if shape.burn_in is None else T - shape.burn_in
        self.ring = max(2, min(counted + 1, 8))  # states that one product sums
        self.keep_p = shape.mean_field or shape.probabilities
        self.shrink, self.noise_std = room(shape.n_moves, N), room(shape.n_moves, N)
        self.u, self.operand = room(self.ring, C, N), room(self.ring, C, N, kind=self.kind)
        self.h, self.p = (room(self.ring if keep else 1, C, M, kind=self.kind) for keep in (True, self.keep_p))
        self.adjusted = shape.adjust_from is not None
        adjusted = C if self.adjusted else 0
        self.parts = self.room_for_parts(adjusted * (1 + shape.joint))  # of Σ_j softplus, and of Σ_j h_j ℓ_j
        self.more = room(adjusted)
        self.prob, self.accepted, self.accept_chain = room(adjusted), room(adjusted, kind=torch.bool), room(adjusted)

    def run(self) -> None:
        """The walk from the start in slot 0; it ends in slot n_steps % ring."""
        s = self.shape
        self.clear()
        self.accept_chain.zero_()
        self.operand[0].copy_(self.u[0].clamp(-LIMIT.value, LIMIT.value))
        if not s.given:
            self._hidden(0, 0)
        first, draw = (0 if s.burn_in == -1 else 1), int(not s.given)
        drive = found = None
        if self.adjusted:
            logits = product(self.operand[0], self.V) + self.c
            softplus = functional.softplus(logits, threshold=40.0).sum(1)
            drive, found = self._drive(0), _Tail(softplus, (self.h[0].float() * logits).sum(1) - softplus)
        for t in range(s.n_steps):
            old, new = t % self.ring, (t + 1) % self.ring
            if new == 0:
                self._sum(first, self.ring)
                first = 0
            if s.burn_in is not None and t < s.burn_in:
                first = new + 1
            d = self._drive(old) if drive is None else drive
            k = t if s.n_moves > 1 else 0
            visible_tail[grid(s.n_chains, s.n_visible, self.tail)](
                self.u[old], d, d, d, self.shrink[k], self.noise_std[k], self.state, draw, self.u[new],
                self.operand[new], s.n_chains, s.n_chains, s.n_visible, False, **self.tail,
            )  # fmt: skip
            self._hidden(new, draw + 1)
            if s.adjust_from is not None:
                drive, found = self._adjust(t, old, new, draw, d, found)
            draw += 2 if s.adjust_from is None or t < s.adjust_from else 3
        self._sum(first, s.n_steps % self.ring + 1)

    def _drive(self, slot: int) -> Tensor:
        return self.drive(self.p[slot] if self.shape.mean_field else self.h[slot])

    def _adjust(self, t: int, old: int, new: int, draw: int, d: Tensor, found: Any) -> tuple[Tensor, "_Tail"]:
        """Take step t, or stay; the drive and the sums over hidden units of what is then in slot ``new``."""
        s = self.shape
        sums = self.parts.sum(1)
        moved_d, moved = self._drive(new), _Tail(sums[: s.n_chains], sums[-s.n_chains :] - sums[: s.n_chains])
        assert s.adjust_from is not None
        if t < s.adjust_from:
            return moved_d, moved
        k = t if s.n_moves > 1 else 0
        if s.joint:
            self.more.copy_((1 - 1 / s.temperature) * (found.log_p - moved.log_p))
        acceptance[(triton.cdiv(s.n_chains, self.tail["BM"]),)](
            self.u[old], self.u[new], d, moved_d, found.softplus, moved.softplus, self.more, self.shrink[k],
            self.noise_std[k], self.state, draw, self.prob, self.accepted, s.temperature, s.n_chains, s.n_visible,
            **self.tail,
        )  # fmt: skip
        self.accept_chain += self.prob
        taken = self.accepted[:, None]
        for x in (self.u, self.operand, self.h) + ((self.p,) if self.keep_p else ()):
            x[new] = torch.where(taken, x[new], x[old])
        kept = (torch.where(self.accepted, a, b) for a, b in zip(moved, found, strict=True))
        return torch.where(taken, moved_d, d), _Tail(*kept) if s.joint else _Tail(next(kept), moved.log_p)

    def _hidden(self, slot: int, draw: int) -> None:
        p = self.p[slot] if self.keep_p else None
        part: Part = ("joint" if self.shape.joint else "softplus") if self.adjusted else ""
        self.draw_hidden(self.operand[slot], draw, self.h[slot], p, self.shape.n_chains, part, self.parts)

    def _sum(self, first: int, last: int) -> None:
        """Add the states in slots first..last − 1."""
        s = self.shape
        if s.burn_in is None or first >= last:
            return
        u = self.u[first:last].view(-1, s.n_visible)
        h = (self.p if s.probabilities else self.h)[first:last].view(-1, s.n_hidden)
        self.add(u, self.operand[first:last].view(-1, s.n_visible), h)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)
def walker(shape: Shape) -> Walker:
    """The one for this shape; each walk overwrites its buffers."""
    return Walker(shape)


class Cuda(Engine):
    """The kernels on a GPU: chains under one untempered energy, and ladders. The host waits for nothing."""

    name = "fused"

    def run(self, energy: Energy, moves: Moves, walk: Walk, rng: Rng) -> Walked:
        v, n_steps, burn_in, _, given = walk
        if energy.is_tempered or v.ndim != 2:
            return super().run(energy, moves, walk, rng)
        C, W = len(v), energy.W
        adjust_from = moves.adjust_from if moves.adjust_from is not None and moves.adjust_from < n_steps else None
        n_adjusted = 0 if adjust_from is None else n_steps - adjust_from
        test = {"temperature": moves.temperature, "joint": moves.joint} if n_adjusted else {}
        w = walker(Shape.of(energy, moves, walk, mean_field=moves.mean_field, adjust_from=adjust_from, **test))
        sigma = w.begin(energy, rng, C, (given is None) + 2 * n_steps + n_adjusted)
        w.shrink.copy_(moves.shrink)
        w.noise_std.copy_(moves.noise_std / sigma)
        w.u[0].copy_((v - energy.mu) / sigma)
        if given is not None:
            w.h[0].copy_(given.h)
            w.p[0].copy_(given.h_prob)
        with set_for(energy.precision, W.device):
            w.replay(w.run)
        slot = n_steps % w.ring
        last_v = energy.mu + sigma * w.u[slot]
        chains = Chains(last_v, w.h[slot].to(W, copy=True), energy.hidden_logits(last_v).sigmoid())
        accept_prob = w.accept_chain / n_adjusted if n_adjusted else None
        accept_rate = None if accept_prob is None else accept_prob.mean()
        sums = None if burn_in is None else w.sums_in_v(energy.mu, sigma, C * (n_steps - burn_in))
        return Walked(chains, sums, accept_prob, accept_rate)

    def run_ladder(self, ladder: TemperedEnergy, moves: Moves, walk: Walk, rng: Rng) -> Walked | None:
        return cuda_ladder.run_ladder(ladder, moves, walk, rng) if moves.is_plain else None

    def run_given(self, energy: Energy, measured: Measured, walk: Walk, rng: Rng) -> tuple[Chains, Sums | None] | None:
        if energy.is_tempered or walk.v.ndim != 2 or not len(walk.v):
            return None
        return cuda_given.run_given(energy, measured, walk, rng)
