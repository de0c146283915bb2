"""The walk of chains on a CUDA device: products on tensor cores, tails fused in Triton, all of it one CUDA graph."""

import functools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional

from grbm.core.randomness import Rng
from grbm.model import Energy
from grbm.samplers.chains import Walk
from grbm.samplers.engines.cuda_buffers import ROOM, Buffers, Part, Shape, product
from grbm.samplers.engines.kernels import acceptance, walk_on_chip
from grbm.samplers.moves import Moves

ON_CHIP, CHAINS = (64, 256), 16  # visible and hidden units of machines that one kernel walks; chains of a block of it


class _Tail(NamedTuple):
    """Sums over hidden units by chain (C,)."""

    softplus: Tensor  # Σ_j softplus(ℓ_j)
    log_p: Tensor  # log p(h | v), where acceptance is joint


class Walker(Buffers):
    """Buffers of one `Shape`, and the walk over them; it ends in slot ``slot`` of states."""

    def __init__(self, shape: Shape) -> None:
        _, C, N, M, T = shape[:5]
        super().__init__(C, N, M, shape.precision, shape.device)
        self.shape, room = shape, self.room
        self.adjusted = shape.adjust_from is not None
        self.keep_p = shape.mean_field or shape.probabilities
        is_plain = shape.precision == "fast" and not (self.adjusted or self.keep_p)
        self.on_chip = is_plain and all(a <= b for a, b in zip((N, M), ON_CHIP, strict=True))
        self.in_turn = shape.burn_in is None and not self.on_chip  # states alternate between two slots
        size = max(1, C) * (4 * N + self.kind.itemsize * (N + M * (1 + self.keep_p)))  # bytes of a step's states
        self.ring = 2 if self.in_turn else max(2, min(T, int(ROOM / size)) + 1)  # a start, and what one product sums
        self.slot = 0
        self.shrink, self.noise_std = room(shape.n_moves, N), room(shape.n_moves, N)
        self.u, self.operand = room(self.ring, C, N), room(self.ring, C, N, kind=self.kind)
        self.h, self.p = (room(self.ring if keep else 1, C, M, kind=self.kind) for keep in (True, self.keep_p))
        adjusted = C if self.adjusted else 0
        self.parts = self.room_for_parts(adjusted * (1 + shape.joint))  # of Σ_j softplus, and of Σ_j h_j ℓ_j
        self.more = room(adjusted)
        self.prob, self.accepted, self.accept_chain = room(adjusted), room(adjusted, kind=torch.bool), room(adjusted)
        self.found: tuple[Tensor, _Tail] | None = None  # where walks are adjusted: the drive of a state, and its sums

    def prepare(self, energy: Energy, moves: Moves, walk: Walk, rng: Rng) -> Tensor:
        """Fill in all that a walk begins with. Returns σ."""
        s, given = self.shape, walk.given
        n_adjusted = 0 if s.adjust_from is None else s.n_steps - s.adjust_from
        sigma = self.begin(energy, rng, s.n_chains, (given is None) + 2 * s.n_steps + n_adjusted)
        self.shrink.copy_(moves.shrink)
        torch.div(moves.noise_std, sigma, out=self.noise_std)
        self.start(walk.v, energy, self.u[0], self.operand[0])
        if given is not None:
            self.h[0].copy_(given.h)
            self.p[0].copy_(given.h_prob)
        return sigma

    def accept_prob(self) -> Tensor | None:
        """Mean over the steps of a walk by chain (C,); None where nothing is rejected."""
        s = self.shape
        return None if s.adjust_from is None else self.accept_chain / (s.n_steps - s.adjust_from)

    def run(self) -> None:
        """The walk from the start in u[0]: stretches of steps whose states fit into the slots, and their sums."""
        s = self.shape
        self.clear()
        self.accept_chain.zero_()
        if not s.given:
            self._hidden(0, 0)
        if self.adjusted:
            logits = product(self.operand[0], self.V) + self.c
            softplus = functional.softplus(logits, threshold=40.0).sum(1)
            self.found = self._drive(0), _Tail(softplus, (self.h[0].float() * logits).sum(1) - softplus)
        self.slot, draw, done = 0, int(not s.given), 0
        if s.burn_in == -1:
            self._sum(0, 1)
        while done < s.n_steps:
            n = s.n_steps if self.in_turn else min(self.ring - 1, s.n_steps - done)
            if self.slot:
                for x in (self.u, self.operand, self.h) + ((self.p,) if self.keep_p else ()):
                    x[0].copy_(x[self.slot])
                self.slot = 0
            draw = self._stretch(done, n, draw)
            if s.burn_in is not None:
                self._sum(max(1, s.burn_in - done + 1), n + 1)
            done += n

    def _stretch(self, done: int, n: int, draw: int) -> int:
        """Take the ``n`` steps after ``done`` of them, from slot 0; returns where random numbers go on."""
        s = self.shape
        if self.on_chip:
            first, rows = (done, s.n_visible) if s.n_moves > 1 else (0, 0)
            walk_on_chip[(triton.cdiv(s.n_chains, CHAINS),)](
                self.V, self.c, self.shrink[first:], self.noise_std[first:], self.state, draw, self.u, self.operand,
                self.h, s.n_chains, s.n_visible, s.n_hidden, n, rows, CHAINS, *ON_CHIP, num_warps=8,
            )  # fmt: skip
            self.slot = n
            return draw + 2 * n
        for t in range(done, done + n):
            old, new = self.slot, 1 - self.slot if self.in_turn else self.slot + 1
            d, k = self._drive(old) if self.found is None else self.found[0], t if s.n_moves > 1 else 0
            self.move(d, self.u[old], self.shrink[k], self.noise_std[k], draw, self.u[new], self.operand[new])
            self._hidden(new, draw + 1)
            if self.found is not None:
                self.found = self._adjust(t, old, new, draw, self.found)
            draw += 2 if s.adjust_from is None or t < s.adjust_from else 3
            self.slot = new
        return draw

    def _drive(self, slot: int) -> Tensor:
        return self.drive(self.p[slot] if self.shape.mean_field else self.h[slot])

    def _adjust(self, t: int, old: int, new: int, draw: int, before: tuple[Tensor, _Tail]) -> tuple[Tensor, _Tail]:
        """Take step t, or stay; the drive and the sums over hidden units of what is then in slot ``new``."""
        s, (d, found) = self.shape, before
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
        """Add the states in slots first..last − 1, if there are any."""
        if first < last:
            h = (self.p if self.shape.probabilities else self.h)[first:last].view(-1, self.n_hidden)
            u, operand = (x[first:last].view(-1, self.n_visible) for x in (self.u, self.operand))
            self.add(u, operand, h)


def shape_of(energy: Energy, moves: Moves, walk: Walk) -> Shape:
    """The shape of a walk ([R,] C, N) by these moves."""
    adjust_from = moves.adjust_from if moves.adjust_from is not None and moves.adjust_from < walk.n_steps else None
    test: dict[str, Any] = {} if adjust_from is None else {"temperature": moves.temperature, "joint": moves.joint}
    return Shape.of(energy, moves, walk, mean_field=moves.mean_field, adjust_from=adjust_from, **test)


@functools.lru_cache(maxsize=4)
@torch.inference_mode(False)
def walker(shape: Shape) -> Walker:
    """The one for this shape; each walk overwrites its buffers."""
    return Walker(shape)
