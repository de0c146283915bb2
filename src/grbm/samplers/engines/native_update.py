"""Both phases of an update and its gradient in one call of native code (`grbm_learn` in `learning.c`)."""

import ctypes
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from grbm import memory
from grbm.model import GRBM, Energy
from grbm.moments import MomentSum, Pooled
from grbm.randomness import Blocks, n_blocks
from grbm.samplers.engines.compiled import library, n_threads
from grbm.samplers.engines.native import Frame, half_of, rows_of, starts, summed, sums_for
from grbm.samplers.engines.native_learning import TOGETHER, gradients, sums_in
from grbm.samplers.engines.native_packing import FEW, Packer, Rows, Tables, addresses, padded, parameters, weights
from grbm.samplers.engines.structs import Ascent, Phases, Pool
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.moves import Moves


class Counts(NamedTuple):
    """How long chains walk, which of their states count, and how."""

    n_steps: int
    burn_in: int
    probabilities: bool
    data_probabilities: bool
    centred: bool


class Learned(NamedTuple):
    """What an update's phases leave to learning, with the gradient in the model."""

    v: Tensor  # the chains' last visible units (C, N)
    sums: MomentSum  # under the chains
    pooled: Pooled
    grad_norm: Tensor


class Sizes(NamedTuple):
    """What structs and memory follow from."""

    weights: torch.Size
    data: torch.Size
    chains: torch.Size
    counts: Counts
    n_blocks: int
    moves: tuple[object, ...]
    half: int
    n_threads: int


class _Prepared(NamedTuple):
    """What stays from update to update: structs, and the memory that they point to."""

    sizes: Sizes
    frames: tuple[Frame, Frame]  # at the data and of the chains: the walks in ``phases``
    kept: dict[str, Tensor]  # what the chains' walk writes and nobody asks for afterwards, but the acceptance by step
    memory: list[Tensor]
    packer: Packer
    tables: Tables
    places: dict[str, Tensor]  # what is pooled of single units
    squares: Tensor
    pool: Pool
    phases: Phases


_prepared: WeakKeyDictionary[GRBM, _Prepared] = WeakKeyDictionary()


def learn(
    model: GRBM, energy: Energy, moves: Moves, v_data: Tensor, v: Tensor, counts: Counts, rng: Blocks, first: int
) -> Learned:
    """Chains start at v (C, N). The same numbers as by two calls of `native.run_moves`, `pool` and `set_gradients`.

    The positive phase has draw number ``first``; the chains go on from where ``rng`` is.
    """
    native = library()
    assert native is not None
    half, blocks = half_of(energy, native), n_blocks(rng)
    of_moves = moves.shrink.shape, moves.noise_std.shape, moves[2:]
    sizes = Sizes(energy.W.shape, v_data.shape, v.shape, counts, blocks, of_moves, half, n_threads())
    every = _prepared.get(model)
    if every is None or every.sizes != sizes:
        forget(model)  # before as much memory is taken again
        every = _prepared[model] = _prepare(energy, moves, sizes)
    (_, chains), pool, ascent = every.frames, every.pool, every.phases.ascent
    M, count = energy.n_hidden, len(v) * (counts.n_steps - counts.burn_in)

    sums = sums_for(blocks, energy.n_visible, M)
    found, last_v = summed(sums, count, M), memory.empty(*v.shape)
    every.packer.pack(energy)
    every.tables.lay(_rows(energy, moves, half))
    begins = [starts(energy, x)["start_v"] for x in (v_data, v)]
    for frame, x, draw in zip(every.frames, begins, (first, rng.draw), strict=True):
        frame.fill(start_v=x.data_ptr(), key=rng.seed, first_chain=rng.philox(len(x)).first_chain, first_draw=draw)
    chains.fill(last_v=last_v.data_ptr(), **addresses(sums))
    pool.chains = sums_in(found)
    grads = gradients(model)
    for name, x in (("W", energy.W), ("mu", energy.mu), ("var", energy.var), *grads.items()):
        setattr(ascent, name, x.data_ptr())
    native.grbm_learn(ctypes.byref(every.phases), n_threads())
    rng.draw += chains.n_draws

    n_data, places, rate = len(v_data), every.places, chains.accept_rate(every.kept)
    pooled = Pooled(
        difference=None,
        scale=ascent.scale,
        data_v=places["data_v"],
        data_h=places["data_h"],
        n_data=n_data,
        mean_v2=places["chains_v2"].float() / count,
        mean_h=places["data_h"].float() / n_data,
        accept_rate=None if rate is None else rate[0],
        swap_rate=None,
    )
    return Learned(last_v, found, pooled, every.squares[0].sqrt().float())


def forget(model: GRBM) -> None:
    """Give back what `learn` has prepared for ``model``."""
    _prepared.pop(model, None)


def _rows(energy: Energy, moves: Moves, half: int) -> dict[str, Rows]:
    """All tables that the walks read."""
    N = energy.n_visible
    rows = parameters(energy, 1, half > 0) | rows_of(moves, N, 1)
    return rows | {"down": weights(energy)} if N <= FEW else rows


def _prepare(energy: Energy, moves: Moves, sizes: Sizes) -> _Prepared:
    """Structs for updates of these sizes, without what changes from one to the next."""
    (N, M), parts, h_row = energy.W.shape, -(-energy.n_visible // TOGETHER), padded(energy.n_hidden)
    counts, blocks = sizes.counts, sizes.n_blocks
    common: Any = {"draw_start": True, "half": sizes.half}
    at_data: Any = {"burn_in": -1, "probabilities": counts.data_probabilities} | common
    under_chains: Any = {"burn_in": counts.burn_in, "probabilities": counts.probabilities} | common
    data = Frame.of(sizes.data, M, Gibbs().moves(energy, 1), 0, blocks, **at_data)
    chains = Frame.of(sizes.chains, M, moves, counts.n_steps, blocks, **under_chains)
    left, kept = data.results(True), chains.results(False)
    places = {n: torch.empty(N, dtype=torch.float64) for n in ("v", "v2", "data_v", "chains_v2")}
    places |= {n: torch.empty(M, dtype=torch.float64) for n in ("h", "data_h")}
    n_data, n_chains = sizes.data[0], sizes.chains[0] * (counts.n_steps - counts.burn_in)
    found = sums_in(summed(left, n_data, M))
    pool = Pool(N, M, n_data, n_chains, found, found, **addresses(places))
    squares, columns = torch.empty(parts, dtype=torch.float64), memory.empty(parts, h_row)
    slopes = {name: memory.empty(h_row).zero_() for name in ("slope_b", "offset_h")}
    ascent = Ascent(
        N, M, h_row, counts.centred, 1 / (n_data * n_chains), n_data, ctypes.addressof(pool),
        **addresses({n: places[n] for n in ("v", "v2", "h", "data_v", "data_h")}), **addresses(slopes),
        columns=columns.data_ptr(), squares=squares.data_ptr(),
    )  # fmt: skip
    packer, tables = Packer(N, M, sizes.half > 0), Tables(_rows(energy, moves, sizes.half))
    packed = {"up": packer.up} | ({} if packer.down is None else {"down": packer.down})
    for frame, results in ((data, left), (chains, kept)):
        frame.fill(**tables.room.at, **addresses(packed), **addresses(results))
    phases = Phases(data.walk, chains.walk, ascent)
    frames = data._replace(walk=phases.data), chains._replace(walk=phases.chains)
    held = [*left.values(), *slopes.values(), columns]
    return _Prepared(sizes, frames, kept, held, packer, tables, places, squares, pool, phases)
