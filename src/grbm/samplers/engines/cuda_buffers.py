"""Parts of every walk on a CUDA device: its coordinates, buffers, products, sums, tiles and graph.

A walk runs in the coordinates u = (v − μ)/σ, in which a step is u' = d + shrink (u − d) + (noise_std/σ) ξ with d = V h
and V = W/σ, and the logits are Vᵀu + c with c = b + Wᵀ(μ/σ²). So a product sees nothing but numbers of the order of
one, however small σ is, and its operands may be float16: h is exact in it, and since d and the logits share the
rounded V, what is sampled is a GRBM with weights rounded to 11 bits. Logits, u, sums and parameters stay float32.
(bfloat16, at the same speed, would err eight times as much; the range that float16 lacks is cut off at LIMIT standard
deviations.)
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import triton
from torch import Tensor

from grbm.core.options import Precision
from grbm.core.randomness import Rng
from grbm.model import Energy
from grbm.samplers.chains import Walk
from grbm.samplers.engines.kernels import (
    LIMIT,
    column_sums,
    drive_parts,
    hidden_fused,
    hidden_tail,
    noise,
    visible_fused,
    visible_tail,
)
from grbm.samplers.engines.tile_table import Product, Tile, tile_for
from grbm.samplers.moments import Moments, MomentSum
from grbm.samplers.moves import Moves

# Sizes from the arithmetic of an H100 (one wave of tiles at the paper's MNIST size), for devices without a table.
TILE: Tile = {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}
V_TILE: Tile = {"BM": 64, "BN": 64, "BK": 128, "num_warps": 8, "num_stages": 4}
PARTS = 1  # in which the product for v is summed
TAIL: Tile = {"BM": 16, "BN": 64}
SUMMED: Tile = {"BM": 32, "BN": 64}
ROOM = 3e8  # bytes of states that wait for one product to sum them

Part = Literal["", "softplus", "drive", "joint"]  # what the tiles of h leave of sums over hidden units


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32, whatever its operands are."""
    if a.dtype == torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


class Replay:
    """A walk over fixed buffers, from the second time on as a CUDA graph: the first compiles the kernels.

    Where the stream is being captured it becomes part of that graph. It does not hold the walk, which holds it: buffers
    on a GPU must not wait for a garbage collector.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.times = device, 0
        self.graph: Any = None

    def __call__(self, run: Callable[[], None]) -> None:
        if self.device.type != "cuda" or self.times == 0 or torch.cuda.is_current_stream_capturing():
            self.times += 1
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


class Shape(NamedTuple):
    """Sizes and settings that a CUDA graph is captured for: everything that is not a number on the device."""

    n_replicas: int
    n_chains: int
    n_visible: int
    n_hidden: int
    n_steps: int
    n_moves: int
    burn_in: int | None
    probabilities: bool
    given: bool
    precision: Precision
    device: torch.device
    mean_field: bool = False
    adjust_from: int | None = None  # steps from which on moves are accepted or rejected
    temperature: float = 1.0  # at which they are
    joint: bool = False

    @classmethod
    def of(cls, energy: Energy, moves: Moves, walk: Walk, **others: Any) -> "Shape":
        """That of a walk ([R,] C, N); ``others`` are the fields with defaults."""
        *replicas, C, N = walk.v.shape
        of_walk = walk.n_steps, len(moves.shrink), walk.burn_in, walk.probabilities, walk.given is not None
        return cls(math.prod(replicas), C, N, energy.n_hidden, *of_walk, energy.precision, energy.W.device, **others)


class Buffers:
    """Of a walk of so many ``rows``, which are its chains, replica by replica; it ends where `replay` leaves them."""

    def __init__(self, rows: int, n_visible: int, n_hidden: int, precision: Precision, device: torch.device) -> None:
        self.rows, self.n_visible, self.n_hidden = rows, n_visible, n_hidden
        self.precision, self.device = precision, device
        self.kind = torch.float16 if precision == "fast" else torch.float32  # of operands
        self.tile, self.tail = tile_for(Product(rows, n_visible, n_hidden), device, TILE), TAIL
        self.v_tile = tile_for(Product(rows, n_hidden, n_visible), device, V_TILE)
        self.set_parts(PARTS)
        self.state = self.room(3, kind=torch.int64)  # where random numbers begin: key, chain, draw
        self.V, self.Vt = self.room(n_visible, n_hidden, kind=self.kind), self.room(n_hidden, n_visible, kind=self.kind)
        self.c = self.room(n_hidden)
        self.sum_u, self.sum_u2, self.sum_h = self.room(n_visible), self.room(n_visible), self.room(n_hidden)
        self.sum_uh = self.room(n_visible, n_hidden)
        self.replay = Replay(device)

    def room(self, *size: int, kind: torch.dtype = torch.float32) -> Tensor:
        """Zeros on the device."""
        return torch.zeros(size, dtype=kind, device=self.device)

    def room_for_parts(self, rows: int) -> Tensor:
        """Room for what the tiles of h leave of a sum over hidden units, as many as any tile leaves."""
        return self.room(rows, triton.cdiv(self.n_hidden, self.tail["BN"]))

    def set_parts(self, n_parts: int) -> None:
        """Sum the product for v over hidden units in so many parts, at most."""
        blocks = triton.cdiv(self.n_hidden, self.v_tile["BK"])
        self.v_share = triton.cdiv(blocks, n_parts) * self.v_tile["BK"]
        n_parts = triton.cdiv(self.n_hidden, self.v_share)
        self.d = self.room(n_parts if n_parts > 1 else 0, self.rows, self.n_visible)

    def begin(self, energy: Energy, rng: Rng, n_chains: int, n_draws: int) -> Tensor:
        """Fill in where the ``n_draws`` random numbers of each chain begin, V and c. Returns σ."""
        if _held is not None:
            _held.append(self)
        place_counters(self.state, rng, n_chains, n_draws)
        sigma = energy.var.sqrt()
        V = (energy.W / sigma[:, None]).clamp(-LIMIT.value, LIMIT.value)
        self.V.copy_(V)
        self.Vt.copy_(V.T)
        self.c.copy_(energy.hidden_logits(energy.mu))
        return sigma

    def drive(self, h: Tensor) -> Tensor:
        """d = V h (rows, N), given h or its probabilities."""
        return product(h, self.Vt)

    def draw_hidden(
        self, operand: Tensor, draw: int, h: Tensor, p: Tensor | None, n_chains: int,
        part: Part, parts: Tensor, beta: Tensor | None = None,
    ) -> None:  # fmt: skip
        """h (rows, M) given the ``operand`` (rows, N), its probabilities where there is room, and the parts."""
        C, N, M, n_parts, keep_p = self.rows, self.n_visible, self.n_hidden, parts.shape[1], p is not None
        given = (self.c, beta, self.state, draw, h, p, parts, C, n_chains)
        if self.precision == "fast":
            hidden_fused[grid(C, M, self.tile)](operand, self.V, *given, N, M, n_parts, keep_p, part, **self.tile)
        else:
            logits = product(operand, self.V)
            hidden_tail[grid(C, M, self.tail)](logits, *given, M, n_parts, keep_p, part, **self.tail)

    def move(
        self, h: Tensor, u: Tensor, shrink: Tensor, noise_std: Tensor, draw: int, moved: Tensor, operand: Tensor,
        d: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Move u (rows, N) given h, or its drive ``d``: into ``moved`` and its ``operand``; coefficients are (N,)."""
        C, N, M, tile = self.rows, self.n_visible, self.n_hidden, self.v_tile
        start, end = (shrink, noise_std, self.state, draw, moved, operand), (C, N)
        if d is None and self.precision == "fast" and not len(self.d):
            visible_fused[grid(C, N, tile)](h, self.Vt, u, *start, *end, M, **tile)
            return
        if d is None and self.precision == "fast":
            drive_parts[(*grid(C, N, tile), len(self.d))](h, self.Vt, self.d, *end, M, self.v_share, **tile)
            d = self.d
        elif d is None:
            d = self.drive(h)
        parts = d.numel() // u.numel()
        visible_tail[grid(C, N, self.tail)](u, d, d, d, *start, C, C, N, parts, False, **self.tail)

    def add(self, operand: Tensor, h: Tensor) -> None:
        """Add states: u (n, N) as operands, and h (n, M) or its probabilities."""
        n, share, tile = len(operand), 1024, SUMMED
        parts = self.room(2, triton.cdiv(n, share), self.n_visible)
        column_sums[(triton.cdiv(self.n_visible, tile["BN"]), parts.shape[1])](
            operand, parts[0], parts[1], n, self.n_visible, share, **tile
        )
        u, u2 = parts.sum(1)
        self.sum_u += u
        self.sum_u2 += u2
        self.sum_h += h.sum(0, dtype=torch.float32)
        self.sum_uh += product(operand.T, h)

    def clear(self) -> None:
        """Nothing is summed yet."""
        for total in (self.sum_u, self.sum_u2, self.sum_h, self.sum_uh):
            total.zero_()

    def sums_in_v(self, mu: Tensor, sigma: Tensor, count: int) -> MomentSum:
        """The sums over ``count`` states in u = (v − μ)/σ, as sums in v."""
        u, u2, h = sigma * self.sum_u, sigma.square() * self.sum_u2, self.sum_h.clone()
        sums = (
            u + count * mu,
            u2 + 2 * mu * u + count * mu.square(),
            h,
            torch.outer(mu, h).addcmul_(sigma[:, None], self.sum_uh),
        )
        return MomentSum(Moments(*(x[None] for x in sums)), count)


def place_counters(state: Tensor, rng: Rng, n_chains: int, n_draws: int) -> None:
    """Write into ``state`` where the ``n_draws`` random numbers of each chain begin; ``rng`` goes on behind them."""
    assert not isinstance(rng, torch.Generator)
    philox = rng.philox(n_chains)
    key, first_chain, first_draw = philox.key, philox.first_chain, philox.draw
    rng.draw += n_draws  # philox may be rng
    if isinstance(key, int):
        key = key - (1 << 64) if key >> 63 else key
    for place, number in zip(state, (key, first_chain, first_draw), strict=True):
        place.fill_(number)  # a kernel's argument, where a copy from the host would wait


def draw(kind: str, shape: tuple[int, int], rng: Rng, device: torch.device) -> Tensor:
    """Draws for chains, "normal" or "uniform" (C, n)."""
    state, out = torch.empty(3, dtype=torch.int64, device=device), torch.empty(shape, device=device)
    place_counters(state, rng, shape[0], 1)
    noise[grid(*shape, TAIL)](state, 0, out, *shape, kind == "normal", **TAIL)
    return out


_held: list[Buffers] | None = None


@contextlib.contextmanager
def holding() -> Iterator[list[Buffers]]:
    """Collect the buffers that walks begin with inside: what a graph of them must keep."""
    global _held
    before, _held = _held, []
    try:
        yield _held
    finally:
        _held = before


@contextlib.contextmanager
def set_for(precision: Precision, device: torch.device) -> Iterator[None]:
    """PyTorch's switches for a walk: the current device, and TF32 with "high" ("highest" is as PyTorch is set)."""
    products = torch.backends.cuda.matmul
    modern = hasattr(products, "fp32_precision")
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        if precision != "high" or device.type != "cuda":
            yield
            return
        before = products.fp32_precision if modern else torch.get_float32_matmul_precision()
        change: Any = partial(setattr, products, "fp32_precision") if modern else torch.set_float32_matmul_precision
        change("tf32" if modern else "high")
        try:
            yield
        finally:
            change(before)
