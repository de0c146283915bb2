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
    column_sums,
    hidden_tail,
    noise,
    pack,
    standardise,
    visible_tail,
)
from grbm.samplers.moments import Moments, MomentSum
from grbm.samplers.moves import Moves

Tile = dict[str, int]
TAIL: Tile = {"BM": 16, "BN": 64}
SUMMED: Tile = {"BM": 32, "BN": 64}
SHARE = 128  # rows that a program sums
ROOM = 3e8  # bytes of states that wait for one product to sum them

Part = Literal["", "softplus", "drive", "joint"]  # what the tiles of h leave of sums over hidden units


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a b in float32, whatever its operands are."""
    if a.dtype == torch.float32 or not a.is_cuda:
        return torch.mm(a.float(), b.float(), out=out)
    more: dict[str, Any] = {} if out is None else {"out": out}
    return torch.mm(a, b, out_dtype=torch.float32, **more)


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
        self.tail = TAIL
        self.state = self.room(3, kind=torch.int64)  # where random numbers begin: key, chain, draw
        self.V, self.c = self.room(n_visible, n_hidden, kind=self.kind), self.room(n_hidden)
        self.sums_u, self.sum_h = self.room(2, n_visible), self.room(n_hidden)  # of u and u²
        self.sum_uh, self.is_clear = self.room(n_visible, n_hidden), True
        self.replay = Replay(device)

    def room(self, *size: int, kind: torch.dtype = torch.float32) -> Tensor:
        """Zeros on the device."""
        return torch.zeros(size, dtype=kind, device=self.device)

    def room_for_parts(self, rows: int) -> Tensor:
        """Room for what the tiles of h leave of a sum over hidden units, as many as any tile leaves."""
        return self.room(rows, triton.cdiv(self.n_hidden, self.tail["BN"]))

    def begin(self, energy: Energy, rng: Rng, n_chains: int, n_draws: int) -> Tensor:
        """Fill in where the ``n_draws`` random numbers of each chain begin, V and c. Returns σ."""
        hold(self)
        place_counters(self.state, rng, n_chains, n_draws)
        N, M = energy.W.shape
        pack[grid(N, M, SUMMED)](energy.W.contiguous(), energy.var, self.V, N, M, **SUMMED)
        torch.addmv(energy.b, energy.W.T, energy.mu / energy.var, out=self.c)
        return energy.var.sqrt()

    def start(self, v: Tensor, energy: Energy, u: Tensor, operand: Tensor) -> None:
        """Take v (rows, N) as ``u`` and its ``operand``."""
        C, N, tail = self.rows, self.n_visible, self.tail
        standardise[grid(C, N, tail)](v.contiguous(), energy.mu, energy.var, u, operand, C, N, **tail)

    def drive(self, h: Tensor) -> Tensor:
        """d = V h (rows, N), given h or its probabilities."""
        return product(h, self.V.T)

    def draw_hidden(
        self, operand: Tensor, draw: int, h: Tensor, p: Tensor | None, n_chains: int,
        part: Part, parts: Tensor, beta: Tensor | None = None,
    ) -> None:  # fmt: skip
        """h (rows, M) given the ``operand`` (rows, N), its probabilities where there is room, and the parts."""
        C, M, n_parts, keep_p = self.rows, self.n_hidden, parts.shape[1], p is not None
        given = (self.c, beta, self.state, draw, h, p, parts, C, n_chains)
        hidden_tail[grid(C, M, self.tail)](product(operand, self.V), *given, M, n_parts, keep_p, part, **self.tail)

    def move(
        self, d: Tensor, u: Tensor, shrink: Tensor, noise_std: Tensor, draw: int, moved: Tensor, operand: Tensor
    ) -> None:
        """Move u (rows, N) about the drive ``d``: into ``moved`` and its ``operand``; coefficients are (N,)."""
        C, N, tail = self.rows, self.n_visible, self.tail
        where = u, d, d, d, shrink, noise_std, self.state, draw, moved, operand
        visible_tail[grid(C, N, tail)](*where, C, C, N, False, **tail)

    def add(self, u: Tensor, operand: Tensor, h: Tensor) -> None:
        """Add states: u (n, N), the same as an operand, and h (n, M) or its probabilities."""
        of_u, of_h = (self._sums_of(x, n) for x, n in ((u, 2), (h, 1)))
        if self.is_clear:
            torch.sum(of_u, 1, out=self.sums_u)
            torch.sum(of_h[0], 0, out=self.sum_h)
            product(operand.T, h, self.sum_uh)
        else:
            self.sums_u += of_u.sum(1)
            self.sum_h += of_h[0].sum(0)
            self.sum_uh += product(operand.T, h)
        self.is_clear = False

    def _sums_of(self, x: Tensor, n_powers: int) -> Tensor:
        """Sums over rows of x (n, units), and with two powers of its squares, in parts (n_powers, S, units)."""
        n, units = x.shape
        parts = torch.empty(n_powers, triton.cdiv(n, SHARE), units, device=self.device)
        where = parts.shape[1], triton.cdiv(units, SUMMED["BN"])
        column_sums[where](x, parts[0], parts[-1], n, units, SHARE, n_powers > 1, **SUMMED)
        return parts

    def clear(self) -> None:
        """Nothing is summed yet: what is added first is written over what was there."""
        self.is_clear = True

    def sums_in_v(self, mu: Tensor, sigma: Tensor, count: int) -> MomentSum:
        """The sums over ``count`` states in u = (v − μ)/σ, as sums in v."""
        u, u2, h = sigma * self.sums_u[0], sigma.square() * self.sums_u[1], self.sum_h.clone()
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


_held: list[object] | None = None


def hold(used: object) -> None:
    """Hand ``used``, which owns memory of a walk, to whoever collects it by `holding`."""
    if _held is not None:
        _held.append(used)


@contextlib.contextmanager
def holding() -> Iterator[list[object]]:
    """Collect all that walks inside use: a graph of them must keep its memory."""
    global _held
    before, _held = _held, []
    try:
        yield _held
    finally:
        _held = before


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The device as the current one, on which kernels are launched."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def set_for(precision: Precision, device: torch.device) -> Iterator[None]:
    """PyTorch's switches for a walk: the current device, and TF32 with "high" ("highest" is as PyTorch is set)."""
    products = torch.backends.cuda.matmul
    modern = hasattr(products, "fp32_precision")
    with on(device):
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
