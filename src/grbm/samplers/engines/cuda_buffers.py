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
from grbm.samplers.engines.definition import counters
from grbm.samplers.engines.kernels import LIMIT, hidden_fused, hidden_tail
from grbm.samplers.engines.tile_table import Product, Tile, tile_for
from grbm.samplers.moments import Moments, MomentSum
from grbm.samplers.moves import Moves

# Sizes from the arithmetic of an H100 (one wave of tiles at the paper's MNIST size), for devices without a table.
TILE: Tile = {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}
TAIL: Tile = {"BM": 16, "BN": 64}

Part = Literal["", "softplus", "drive", "joint"]  # what the tiles of h leave of sums over hidden units


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

    def begin(self, energy: Energy, rng: Rng, n_chains: int, n_draws: int) -> Tensor:
        """Fill in where the ``n_draws`` random numbers of each chain begin, V and c. Returns σ."""
        key, *others = counters(rng, n_chains, n_draws).values()
        for place, number in enumerate((key - (1 << 64) if key >> 63 else key, *others)):
            self.state[place].fill_(number)  # a kernel's argument, where a copy from the host would wait
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

    def add(self, u: Tensor, operand: Tensor, h: Tensor) -> None:
        """Add states: u (n, N), the same as an operand, and h (n, M) or its probabilities."""
        self.sum_u += u.sum(0)
        self.sum_u2 += u.square().sum(0)
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
