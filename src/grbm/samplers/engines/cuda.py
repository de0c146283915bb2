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
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from grbm.model import Energy
from grbm.moments import Moments, MomentSum
from grbm.options import Precision
from grbm.randomness import ROUNDS, Blocks, Philox
from grbm.samplers.chains import Chains, Walked
from grbm.samplers.moves import Moves

# Sizes from the arithmetic of an H100 (one wave of tiles at the paper's MNIST size), not yet tuned on one.
TILE: dict[str, int] = {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}
TAIL: dict[str, int] = {"BM": 16, "BN": 64}
PHILOX_ROUNDS = tl.constexpr(ROUNDS)
LIMIT = tl.constexpr(60000.0)


# ------------------------------------------------------------------------------------------------------------- kernels


@triton.jit
def _words(state, rows, first_unit, draw, BM: tl.constexpr, BN: tl.constexpr):
    """Philox words 0..3 of the counters (BM, BN/4) of BM chains and BN units; ``state`` is (key, chain, draw)."""
    shape: tl.constexpr = (BM, BN // 4)
    c0 = tl.broadcast_to((first_unit // 4 + tl.arange(0, BN // 4))[None, :], shape).to(tl.uint32)
    c1 = tl.broadcast_to((tl.load(state + 1).to(tl.int32) + rows)[:, None], shape).to(tl.uint32)
    c2 = tl.full(shape, 0, tl.uint32) + (tl.load(state + 2).to(tl.int32) + draw).to(tl.uint32)
    return tl.philox(tl.load(state), c0, c1, c2, tl.zeros(shape, tl.uint32), PHILOX_ROUNDS)


@triton.jit
def _by_unit(w0, w1, w2, w3, BM: tl.constexpr, BN: tl.constexpr):
    """Numbers by counter in the order of their units, 64 j + 16 w + lane: four of (BM, BN/4) -> (BM, BN)."""
    by_counter = tl.join(tl.join(w0, w1), tl.join(w2, w3))  # (BM, 16 j + lane, low bit of w, high bit of w)
    split = tl.reshape(by_counter, (BM, BN // 64, 16, 2, 2))
    return tl.reshape(tl.permute(split, (0, 1, 4, 3, 2)), (BM, BN))


@triton.jit
def _uniform(word):
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def _normals(radius, angle):
    r = tl.sqrt(-2.0 * tl.log(((radius >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10))  # 2^-31
    a = _uniform(angle) * 6.283185307179586
    return r * tl.cos(a), r * tl.sin(a)


@triton.jit
def _draw_hidden(
    logits, state, draw, h, p, part, rows, first, C, M, n_parts,
    KEEP_P: tl.constexpr, ADJUST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """h ~ Bernoulli(sigmoid(logits)) for a tile (BM, BN), its probabilities, and its ``part`` of Σ_j softplus."""
    units = first + tl.arange(0, BN)
    w0, w1, w2, w3 = _words(state, rows, first, draw, BM, BN)
    prob = tl.sigmoid(logits)
    on = _uniform(_by_unit(w0, w1, w2, w3, BM, BN)) < prob
    places = rows[:, None].to(tl.int64) * M + units[None, :]
    inside = (rows[:, None] < C) & (units[None, :] < M)
    tl.store(h + places, tl.where(on, 1.0, 0.0).to(h.dtype.element_ty), inside)
    if KEEP_P:
        tl.store(p + places, prob.to(p.dtype.element_ty), inside)
    if ADJUST:
        softplus = tl.maximum(logits, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(logits)))
        summed = tl.sum(tl.where(inside, softplus, 0.0), 1)
        tl.store(part + rows * n_parts + first // BN, summed, rows < C)


@triton.jit(do_not_specialize=["draw"])
def hidden_tail(
    logits, c, state, draw, h, p, part, C, M, n_parts,
    KEEP_P: tl.constexpr, ADJUST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """h from products (C, M) that were made elsewhere."""
    rows, first = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN
    units = first + tl.arange(0, BN)
    inside = (rows[:, None] < C) & (units[None, :] < M)
    x = tl.load(logits + rows[:, None].to(tl.int64) * M + units[None, :], inside, 0.0)
    x += tl.load(c + units, units < M, 0.0)[None, :]
    _draw_hidden(x, state, draw, h, p, part, rows, first, C, M, n_parts, KEEP_P, ADJUST, BM, BN)


@triton.jit(do_not_specialize=["draw"])
def hidden_fused(
    u, V, c, state, draw, h, p, part, C, N, M, n_parts,
    KEEP_P: tl.constexpr, ADJUST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """h from u (C, N) and V (N, M) in half precision: product, bias, sigmoid and draw without leaving the chip."""
    rows, first = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN
    units, ks = first + tl.arange(0, BN), tl.arange(0, BK)
    left, right = u + rows[:, None].to(tl.int64) * N, V + units[None, :]
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, N, BK):
        inner = k + ks
        a = tl.load(left + inner[None, :], (rows[:, None] < C) & (inner[None, :] < N), 0.0)
        b = tl.load(right + inner[:, None].to(tl.int64) * M, (inner[:, None] < N) & (units[None, :] < M), 0.0)
        sums = tl.dot(a, b, sums)
    sums += tl.load(c + units, units < M, 0.0)[None, :]
    _draw_hidden(sums, state, draw, h, p, part, rows, first, C, M, n_parts, KEEP_P, ADJUST, BM, BN)


@triton.jit
def _noise(state, rows, first, draw, BM: tl.constexpr, BN: tl.constexpr):
    """ξ of a tile (BM, BN) of chains and visible units."""
    w0, w1, w2, w3 = _words(state, rows, first, draw, BM, BN)
    z0, z1 = _normals(w0, w1)
    z2, z3 = _normals(w2, w3)
    return _by_unit(z0, z1, z2, z3, BM, BN)


@triton.jit(do_not_specialize=["draw"])
def visible_tail(u, d, shrink, noise_std, state, draw, moved, operand, C, N, BM: tl.constexpr, BN: tl.constexpr):
    """u' = d + shrink (u − d) + noise_std ξ (C, N), and its copy as the next product's operand."""
    rows, first = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN
    units = first + tl.arange(0, BN)
    inside = (rows[:, None] < C) & (units[None, :] < N)
    places = rows[:, None].to(tl.int64) * N + units[None, :]
    xi = _noise(state, rows, first, draw, BM, BN)
    drive = tl.load(d + places, inside, 0.0)
    keep = tl.load(shrink + units, units < N, 0.0)[None, :]
    std = tl.load(noise_std + units, units < N, 0.0)[None, :]
    new = drive + keep * (tl.load(u + places, inside, 0.0) - drive) + std * xi
    tl.store(moved + places, new, inside)
    tl.store(operand + places, tl.clamp(new, -LIMIT, LIMIT).to(operand.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["draw"])
def acceptance(
    u, moved, d, moved_d, softplus, moved_softplus, shrink, noise_std, state, draw, prob, taken, temperature, C, N,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """With what probability each chain takes its move from u, drawn by ``draw``, and whether it does (Eq. 12)."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    falls = tl.load(moved_softplus + rows, rows < C, 0.0) - tl.load(softplus + rows, rows < C, 0.0)  # F(u) − F(u')
    log_q = tl.zeros((BM,), tl.float32)
    for first in range(0, N, BN):
        units = first + tl.arange(0, BN)
        inside = (rows[:, None] < C) & (units[None, :] < N)
        places = rows[:, None].to(tl.int64) * N + units[None, :]
        old, new = tl.load(u + places, inside, 0.0), tl.load(moved + places, inside, 0.0)
        keep = tl.load(shrink + units, units < N, 0.0)[None, :]
        std = tl.load(noise_std + units, units < N, 1.0)[None, :]
        drive = tl.load(moved_d + places, inside, 0.0)
        there, back = _noise(state, rows, first, draw, BM, BN), (old - (drive + keep * (new - drive))) / std
        log_q += 0.5 * tl.sum(tl.where(inside, there * there - back * back, 0.0), 1)
        falls += 0.5 * tl.sum(old * old - new * new, 1)
    log_ratio = falls / temperature + log_q
    probability = tl.where(log_ratio >= 0, 1.0, tl.where(log_ratio > -87.0, tl.exp(log_ratio), 0.0))  # NaN: 0
    word, _, _, _ = _words(state, rows, 0, draw + 2, BM, 64)
    drawn = tl.sum(tl.where((tl.arange(0, 16) == 0)[None, :], _uniform(word), 0.0), 1)
    tl.store(prob + rows, probability, rows < C)
    tl.store(taken + rows, drawn < probability, rows < C)


# ------------------------------------------------------------------------------------------------------------- the walk


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


class Walker:
    """Buffers of one `Shape`, the walk over them, and on a GPU its graph."""

    def __init__(self, shape: Shape) -> None:
        C, N, M, T = shape[:4]
        self.shape, device = shape, shape.device
        self.kind = torch.float16 if shape.precision == "fast" else torch.float32
        counted = 0 if shape.burn_in is None else T - shape.burn_in
        self.ring = max(2, min(counted + 1, 8))  # states that one product sums
        self.keep_p = shape.mean_field or shape.probabilities

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
        self.graph: Any = None

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
            visible_tail[self._grid(s.n_visible, TAIL)](
                self.u[old], d, self.shrink[k], self.noise_std[k], self.state, draw, self.u[new], self.operand[new],
                s.n_chains, s.n_visible, **TAIL,
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
        s = self.shape
        C, N, M = s.n_chains, s.n_visible, s.n_hidden
        h, p = self.h[slot], self.p[slot if self.keep_p else 0]
        if s.precision == "fast":
            hidden_fused[self._grid(M, TILE)](
                self.operand[slot], self.V, self.c, self.state, draw, h, p, self.parts, C, N, M, self.parts.shape[1],
                self.keep_p, self.adjusted, **TILE,
            )  # fmt: skip
            return
        logits = product(self.operand[slot], self.V)
        hidden_tail[self._grid(M, TAIL)](
            logits, self.c, self.state, draw, h, p, self.parts, C, M, self.parts.shape[1],
            self.keep_p, self.adjusted, **TAIL,
        )  # fmt: skip

    def _grid(self, n_units: int, tile: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(self.shape.n_chains, tile["BM"]), triton.cdiv(n_units, tile["BN"])

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

    def replay(self) -> None:
        """`run`, from the second time on as a CUDA graph: the first compiles the kernels."""
        if self.shape.device.type != "cuda":
            self.run()
        elif self.graph is None:
            self.run()
            self.graph = False
        else:
            if self.graph is False:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.run()
                self.graph = graph
            self.graph.replay()


@functools.lru_cache(maxsize=8)
def walker(shape: Shape) -> Walker:
    """The one for this shape; each walk overwrites its buffers."""
    with torch.inference_mode(False):
        return Walker(shape)


@contextlib.contextmanager
def _set_for(shape: Shape) -> Iterator[None]:
    """PyTorch's switches for a walk: the current device, and TF32 with "high" ("highest" is as PyTorch is set)."""
    modern = hasattr(torch.backends.cuda.matmul, "fp32_precision")
    with torch.cuda.device(shape.device) if shape.device.type == "cuda" else contextlib.nullcontext():
        if shape.precision != "high" or shape.device.type != "cuda":
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
    signed = philox.key - (1 << 64) if philox.key >> 63 else philox.key
    for place, number in enumerate((signed, philox.first_chain, philox.draw)):
        w.state[place].fill_(number)  # a kernel's argument, where a copy from the host would wait
    sigma = energy.var.sqrt()
    V = (W / sigma[:, None]).clamp(-LIMIT.value, LIMIT.value)
    w.V.copy_(V)
    w.Vt.copy_(V.T)
    w.c.copy_(energy.hidden_logits(energy.mu))
    w.shrink.copy_(moves.shrink)
    w.noise_std.copy_(moves.noise_std / sigma)
    w.u[0].copy_((v - energy.mu) / sigma)
    if given is not None:
        w.h[0].copy_(given.h)
        w.p[0].copy_(given.h_prob)
    with _set_for(shape):
        w.replay()
    n_adjusted = 0 if adjust_from is None else n_steps - adjust_from
    rng.draw += (given is None) + 2 * n_steps + n_adjusted
    slot = n_steps % w.ring
    last_v = energy.mu + sigma * w.u[slot]
    chains = Chains(last_v, w.h[slot].to(W, copy=True), energy.hidden_logits(last_v).sigmoid())
    accept_prob = w.accept_chain / n_adjusted if n_adjusted else None
    accept_rate = None if accept_prob is None else accept_prob.mean()
    if burn_in is None:
        return Walked(chains, None, accept_prob, accept_rate)
    count = C * (n_steps - burn_in)
    mu, u, u2, h = energy.mu, sigma * w.sum_u, sigma.square() * w.sum_u2, w.sum_h.clone()
    sums = (
        u + count * mu,
        u2 + 2 * mu * u + count * mu.square(),
        h,
        torch.outer(mu, h).addcmul_(sigma[:, None], w.sum_uh),
    )
    return Walked(chains, MomentSum.of(Moments(*(x[None] for x in sums)), count), accept_prob, accept_rate)


def serves(energy: Energy, moves: Moves, v: Tensor, n_steps: int) -> bool:
    """Whether `run_moves` can do this walk: chains under one untempered energy."""
    plain = energy.beta is None and v.ndim == 2
    return plain and energy.W.is_cuda and energy.W.dtype == torch.float32
