# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The walk on a CUDA device: products on tensor cores, tails fused in Triton, the whole chain one CUDA graph.

It runs in the coordinates u = (v − μ)/σ, in which a step is u' = d + shrink (u − d) + (noise_std/σ) ξ with d = V h and
V = W/σ, and the logits are Vᵀu + c with c = b + Wᵀ(μ/σ²). So a product sees nothing but numbers of the order of one,
however small σ is, and its operands may be float16: h is exact in it, and since d and the logits share the rounded V,
what is sampled is a GRBM with weights rounded to 11 bits. Logits, u, sums and parameters stay float32. (bfloat16, at
the same speed, would err eight times as much; the range that float16 lacks is cut off at LIMIT standard deviations.)

The kernels also run in Triton's interpreter on a CPU (TRITON_INTERPRET=1), which is how they are tested without a GPU.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional

from grbm.model import Energy
from grbm.moments import Moments, MomentSum
from grbm.options import Precision
from grbm.randomness import Blocks, Philox
from grbm.samplers.chains import Chains, Walked
from grbm.samplers.engines.kernels import LIMIT, acceptance, hidden_fused, hidden_tail, visible_tail
from grbm.samplers.engines.tile_table import Product, Tile, tile_for
from grbm.samplers.moves import Moves

# Sizes from the arithmetic of an H100 (one wave of tiles at the paper's MNIST size), for devices without a table.
TILE: Tile = {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}
TAIL: Tile = {"BM": 16, "BN": 64}


class Shape(NamedTuple):
    """What a graph is captured for: all that is not a number on the device."""

    n_chains: int
    n_visible: int
    n_hidden: int
    n_steps: int
    n_moves: int
    burn_in: int | None
    mean_field: bool
    probabilities: bool
    given: bool
    adjust_from: int | None  # steps from which on moves are accepted or rejected
    temperature: float  # at which they are
    precision: Precision
    device: torch.device


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32, whatever its operands are."""
    if a.dtype == torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


class Replay:
    """A walk over fixed buffers, from the second time on as a CUDA graph: the first compiles the kernels.

    It does not hold the walk, which holds it: buffers on a GPU must not wait for a garbage collector.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.times = device, 0
        self.graph: Any = None

    def __call__(self, run: Callable[[], None]) -> None:
        self.times += 1
        if self.device.type != "cuda" or self.times == 1:
            run()
            return
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            self.graph = graph
        self.graph.replay()


def grid(n_rows: int, n_units: int, tile: Tile) -> tuple[int, int]:
    """Tiles of an array (rows, units)."""
    return triton.cdiv(n_rows, tile["BM"]), triton.cdiv(n_units, tile["BN"])


def draw_hidden(
    precision: Precision, operand: Tensor, V: Tensor, c: Tensor, beta: Tensor | None, state: Tensor, draw: int,
    h: Tensor, p: Tensor, parts: Tensor, n_chains: int, keep_p: bool, part: str, tile: Tile,
) -> None:  # fmt: skip
    """h (rows, M) given the ``operand`` (rows, N), its probabilities, and by tile the ``parts`` that are asked for."""
    (C, N), M = operand.shape, len(c)
    if precision == "fast":
        hidden_fused[grid(C, M, tile)](
            operand, V, c, beta, state, draw, h, p, parts, C, n_chains, N, M, parts.shape[1], keep_p, part, **tile,
        )  # fmt: skip
    else:
        logits = product(operand, V)
        hidden_tail[grid(C, M, TAIL)](
            logits, c, beta, state, draw, h, p, parts, C, n_chains, M, parts.shape[1], keep_p, part, **TAIL,
        )  # fmt: skip


class Walker:
    """Buffers of one `Shape`, the walk over them, and on a GPU its graph."""

    def __init__(self, shape: Shape) -> None:
        C, N, M, T = shape[:4]
        self.shape, device = shape, shape.device
        self.kind = torch.float16 if shape.precision == "fast" else torch.float32
        counted = 0 if shape.burn_in is None else T - shape.burn_in
        self.ring = max(2, min(counted + 1, 8))  # states that one product sums
        self.keep_p = shape.mean_field or shape.probabilities
        self.tile = tile_for(Product(C, N, M), device, TILE)

        def room(*size: int, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=kind, device=device)

        self.state = room(3, kind=torch.int64)
        self.V, self.Vt, self.c = room(N, M, kind=self.kind), room(M, N, kind=self.kind), room(M)
        self.shrink, self.noise_std = room(shape.n_moves, N), room(shape.n_moves, N)
        self.u, self.operand = room(self.ring, C, N), room(self.ring, C, N, kind=self.kind)
        self.h, self.p = (room(self.ring if keep else 1, C, M, kind=self.kind) for keep in (True, self.keep_p))
        self.sum_u, self.sum_u2, self.sum_h, self.sum_uh = room(N), room(N), room(M), room(N, M)
        self.adjusted = shape.adjust_from is not None
        adjusted = C if self.adjusted else 0
        self.parts = room(adjusted, triton.cdiv(M, TAIL["BN"]))  # of Σ_j softplus, by tile
        self.prob, self.accepted, self.accept_chain = room(adjusted), room(adjusted, kind=torch.bool), room(adjusted)
        self.replay = Replay(device)

    def run(self) -> None:
        """The walk from the start in slot 0; it ends in slot n_steps % ring."""
        s = self.shape
        for total in (self.sum_u, self.sum_u2, self.sum_h, self.sum_uh, self.parts, self.accept_chain):
            total.zero_()
        self.operand[0].copy_(self.u[0].clamp(-LIMIT.value, LIMIT.value))
        if not s.given:
            self._hidden(0, 0)
        first, draw = (0 if s.burn_in == -1 else 1), int(not s.given)
        drive = softplus = None
        if self.adjusted:
            drive = self._drive(0)
            softplus = functional.softplus(product(self.operand[0], self.V) + self.c, threshold=40.0).sum(1)
        for t in range(s.n_steps):
            old, new = t % self.ring, (t + 1) % self.ring
            if new == 0:
                self._sum(first, self.ring)
                first = 0
            if s.burn_in is not None and t < s.burn_in:
                first = new + 1
            d = self._drive(old) if drive is None else drive
            k = t if s.n_moves > 1 else 0
            visible_tail[grid(s.n_chains, s.n_visible, TAIL)](
                self.u[old], d, d, d, self.shrink[k], self.noise_std[k], self.state, draw, self.u[new],
                self.operand[new], s.n_chains, s.n_chains, s.n_visible, False, **TAIL,
            )  # fmt: skip
            self._hidden(new, draw + 1)
            if s.adjust_from is not None:
                drive, softplus = self._adjust(t, old, new, draw, d, softplus)
            draw += 2 if s.adjust_from is None or t < s.adjust_from else 3
        self._sum(first, s.n_steps % self.ring + 1)

    def _drive(self, slot: int) -> Tensor:
        return product(self.p[slot] if self.shape.mean_field else self.h[slot], self.Vt)

    def _adjust(self, t: int, old: int, new: int, draw: int, d: Tensor, softplus: Any) -> tuple[Tensor, Tensor]:
        """Take step t, or stay; the drive of what is then in slot ``new``, and its Σ_j softplus."""
        s = self.shape
        moved_d, moved_softplus = self._drive(new), self.parts.sum(1)
        assert s.adjust_from is not None
        if t < s.adjust_from:
            return moved_d, moved_softplus
        k = t if s.n_moves > 1 else 0
        acceptance[(triton.cdiv(s.n_chains, TAIL["BM"]),)](
            self.u[old], self.u[new], d, moved_d, softplus, moved_softplus, self.shrink[k], self.noise_std[k],
            self.state, draw, self.prob, self.accepted, s.temperature, s.n_chains, s.n_visible, **TAIL,
        )  # fmt: skip
        self.accept_chain += self.prob
        taken = self.accepted[:, None]
        for x in (self.u, self.operand, self.h) + ((self.p,) if self.keep_p else ()):
            x[new] = torch.where(taken, x[new], x[old])
        return torch.where(taken, moved_d, d), torch.where(self.accepted, moved_softplus, softplus)

    def _hidden(self, slot: int, draw: int) -> None:
        draw_hidden(
            self.shape.precision, self.operand[slot], self.V, self.c, None, self.state, draw, self.h[slot],
            self.p[slot if self.keep_p else 0], self.parts, self.shape.n_chains, self.keep_p,
            "softplus" if self.adjusted else "", self.tile,
        )  # fmt: skip

    def _sum(self, first: int, last: int) -> None:
        """Add the states in slots first..last − 1."""
        s = self.shape
        if s.burn_in is None or first >= last:
            return
        u = self.u[first:last].view(-1, s.n_visible)
        h = (self.p if s.probabilities else self.h)[first:last].view(-1, s.n_hidden)
        self.sum_u += u.sum(0)
        self.sum_u2 += u.square().sum(0)
        self.sum_h += h.sum(0, dtype=torch.float32)
        self.sum_uh += product(self.operand[first:last].view(-1, s.n_visible).T, h)


@functools.lru_cache(maxsize=8)
def walker(shape: Shape) -> Walker:
    """The one for this shape; each walk overwrites its buffers."""
    with torch.inference_mode(False):
        return Walker(shape)


@contextlib.contextmanager
def set_for(precision: Precision, device: torch.device) -> Iterator[None]:
    """PyTorch's switches for a walk: the current device, and TF32 with "high" ("highest" is as PyTorch is set)."""
    modern = hasattr(torch.backends.cuda.matmul, "fp32_precision")
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        if precision != "high" or device.type != "cuda":
            yield
            return
        before = torch.backends.cuda.matmul.fp32_precision if modern else torch.get_float32_matmul_precision()
        change: Any = _set_modern if modern else torch.set_float32_matmul_precision
        change("tf32" if modern else "high")
        try:
            yield
        finally:
            change(before)


def _set_modern(value: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = value


def set_numbers(w: Any, energy: Energy, philox: Philox) -> Tensor:
    """What a walk's kernels read: where random numbers begin, V and c. Returns σ."""
    signed = philox.key - (1 << 64) if philox.key >> 63 else philox.key
    for place, number in enumerate((signed, philox.first_chain, philox.draw)):
        w.state[place].fill_(number)  # a kernel's argument, where a copy from the host would wait
    sigma = energy.var.sqrt()
    V = (energy.W / sigma[:, None]).clamp(-LIMIT.value, LIMIT.value)
    w.V.copy_(V)
    w.Vt.copy_(V.T)
    w.c.copy_(energy.hidden_logits(energy.mu))
    return sigma


def run_moves(
    energy: Energy,
    moves: Moves,
    v: Tensor,
    n_steps: int,
    rng: Blocks | Philox,
    *,
    given: Chains | None = None,
    burn_in: int | None = None,
    probabilities: bool = False,
) -> Walked:
    """`grbm.samplers.engines.run_moves` on a GPU, for what `serves` says. The host waits for nothing."""
    C, N = v.shape
    precision = energy.precision
    M, W, device = energy.n_hidden, energy.W, energy.W.device
    adjust_from = moves.adjust_from if moves.adjust_from is not None and moves.adjust_from < n_steps else None
    shape = Shape(
        n_chains=C, n_visible=N, n_hidden=M, n_steps=n_steps, n_moves=len(moves.shrink), burn_in=burn_in,
        mean_field=moves.mean_field, probabilities=probabilities, given=given is not None,
        adjust_from=adjust_from, temperature=moves.temperature if adjust_from is not None else 1.0, precision=precision,
        device=device,
    )  # fmt: skip
    w = walker(shape)
    philox = rng.philox(C) if isinstance(rng, Blocks) else rng
    sigma = set_numbers(w, energy, philox)
    w.shrink.copy_(moves.shrink)
    w.noise_std.copy_(moves.noise_std / sigma)
    w.u[0].copy_((v - energy.mu) / sigma)
    if given is not None:
        w.h[0].copy_(given.h)
        w.p[0].copy_(given.h_prob)
    with set_for(precision, device):
        w.replay(w.run)
    n_adjusted = 0 if adjust_from is None else n_steps - adjust_from
    rng.draw += (given is None) + 2 * n_steps + n_adjusted
    slot = n_steps % w.ring
    last_v = energy.mu + sigma * w.u[slot]
    chains = Chains(last_v, w.h[slot].to(W, copy=True), energy.hidden_logits(last_v).sigmoid())
    accept_prob = w.accept_chain / n_adjusted if n_adjusted else None
    accept_rate = None if accept_prob is None else accept_prob.mean()
    if burn_in is None:
        return Walked(chains, None, accept_prob, accept_rate)
    sums = sums_in_v(w, energy.mu, sigma, C * (n_steps - burn_in))
    return Walked(chains, sums, accept_prob, accept_rate)


def sums_in_v(w: Any, mu: Tensor, sigma: Tensor, count: int) -> MomentSum:
    """A walker's sums over ``count`` states in u = (v − μ)/σ, as sums in v."""
    u, u2, h = sigma * w.sum_u, sigma.square() * w.sum_u2, w.sum_h.clone()
    sums = (
        u + count * mu,
        u2 + 2 * mu * u + count * mu.square(),
        h,
        torch.outer(mu, h).addcmul_(sigma[:, None], w.sum_uh),
    )
    return MomentSum.of(Moments(*(x[None] for x in sums)), count)


def serves(energy: Energy, moves: Moves, v: Tensor, n_steps: int) -> bool:
    """Whether `run_moves` can do this walk: chains under one untempered energy."""
    plain = energy.beta is None and v.ndim == 2
    return plain and energy.W.is_cuda and energy.W.dtype == torch.float32
