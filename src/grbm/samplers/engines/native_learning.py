"""Learning in native code (`learning.c`): moments pooled and turned into the gradient, steps, whole updates."""

from collections.abc import Iterable
from ctypes import addressof
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from grbm.core import memory
from grbm.core.randomness import Blocks, n_blocks
from grbm.model import GRBM, Energy
from grbm.samplers.chains import Walk
from grbm.samplers.engines import compiled, structs
from grbm.samplers.engines.compiled import call
from grbm.samplers.engines.definition import Jumping, counters
from grbm.samplers.engines.native import JumpPlan, Plan, half_of, rows_of, starts, summed, sums_for, whole_step
from grbm.samplers.engines.native_packing import FEW, Laid, Packer, Tables, addresses, padded, parameters, weights
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.moments import MomentSum, Pooled
from grbm.samplers.moves import Moves

TOGETHER = 16  # as ROWS_TOGETHER in learning.c


def serves(*tensors: Tensor) -> bool:
    """Whether all these are of float32 on a CPU, with the last axis in one piece, and there is native code."""
    fit = all(
        x.device.type == "cpu" and x.dtype == torch.float32 and (x.ndim == 0 or x.stride(-1) == 1) for x in tensors
    )
    return fit and compiled.library() is not None


def sums_in(sums: MomentSum) -> Any:
    """Where they lie, as a struct Sums."""
    v, v2, h, vh = sums.sums
    rows = len(v), v.stride(0), v2.stride(0), h.stride(0), vh.stride(0), vh.stride(1)
    return structs.Sums(*rows, v.data_ptr(), v2.data_ptr(), h.data_ptr(), vh.data_ptr())


def pool(data: MomentSum, chains: MomentSum, places: dict[str, Tensor]) -> None:
    """Fill ``places`` with the difference of both by moment, and with sums of v and h at data and v² under chains."""
    N, M = data.sums.vh.shape[1:]
    wanted = {name: places[name] for name in ("v", "v2", "h", "vh", "data_v", "data_h", "chains_v2")}
    call("grbm_pool", structs.Pool(N, M, data.count, chains.count, sums_in(data), sums_in(chains), **addresses(wanted)))


def gradients(model: GRBM) -> dict[str, Tensor]:
    """Where the gradients of the four parameters are written, by their names in C: over the last ones."""
    grads = {}
    for name in ("W", "b", "mu", "log_var"):
        parameter = model.get_parameter(name)
        if parameter.grad is None or not parameter.grad.is_contiguous():
            parameter.grad = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        grads[f"grad_{name}"] = parameter.grad
    return grads


def room_for(N: int, M: int) -> dict[str, Tensor]:
    """Memory of a struct Ascent; the norm's square comes to lie in the first of ``squares``."""
    h_row, parts = padded(M), -(-N // TOGETHER)
    room = {name: memory.empty(h_row).zero_() for name in ("slope_b", "offset_h")}
    return room | {"columns": memory.empty(parts, h_row), "squares": torch.empty(parts, dtype=torch.float64)}


def set_gradients(model: GRBM, energy: Energy, pooled: Pooled, *, centred: bool) -> Tensor:
    """`grbm.learning.descent.set_gradients` for float32 on a CPU."""
    (N, M), room = energy.W.shape, room_for(*energy.W.shape)
    assert pooled.difference is not None
    tensors = pooled.difference._asdict() | gradients(model) | room | {
        "data_v": pooled.data_v, "data_h": pooled.data_h, "W": energy.W, "mu": energy.mu, "var": energy.var,
    }  # fmt: skip
    call("grbm_ascend", structs.Ascent(N, M, padded(M), centred, pooled.scale, pooled.n_data, **addresses(tensors)))
    return room["squares"][0].sqrt().float()


def descend(followers: Iterable[tuple[Tensor, float, float]], clip: float) -> None:
    """Parameters x follow ``clip`` times their gradients downhill: x − rate · gradient, and not below ``least``.

    ``followers`` are (x, rate, least), contiguous and of float32 as their gradients are.
    """
    following = [(x, x.grad, rate, least) for x, rate, least in followers if x.grad is not None]
    every = [structs.Follower(x.numel(), x.data_ptr(), grad.data_ptr(), *numbers) for x, grad, *numbers in following]
    held = (structs.Follower * len(every))(*every)
    call("grbm_descend", structs.Descent(len(every), addressof(held), clip))
    torch.autograd.graph.increment_version([x for pair in following for x in pair[:2]])


class _Prepared(NamedTuple):
    """Structs that are reused from update to update, and the memory that they point to."""

    plans: tuple[Plan, Plan]  # at the data and of the chains: the walks in ``phases``
    jumps: JumpPlan | None  # of chains that jump
    kept: dict[str, Tensor]  # what the chains' walk writes and nobody asks for afterwards, but the acceptance by step
    room: dict[str, Tensor]
    packer: Packer
    tables: Tables
    pool: Any  # struct Pool
    phases: Any  # struct Phases


_prepared: WeakKeyDictionary[GRBM, tuple[object, _Prepared]] = WeakKeyDictionary()  # with the sizes they follow from


def learn(
    model: GRBM, energy: Energy, moves: Moves, jumping: Jumping | None, data: Walk, walk: Walk, rng: Blocks, first: int,
    *, centred: bool,
) -> tuple[Tensor, MomentSum, Pooled, Tensor]:  # fmt: skip
    """Make an update's phases and its gradient: the same numbers as by two walks, `pool` and `set_gradients`.

    Where ``jumping`` says how, chains jump between their moves. The walk at the ``data``, of no steps, has draw number
    ``first``; the chains' goes on from where ``rng`` is. Returns the chains' last visible units (C, N), the sums under
    them, what is pooled, and the norm of the gradient.
    """
    jumps: tuple[int, ...] = ()
    if jumping is not None:
        moves = whole_step(energy, moves, jumping.n_moves)
        jumps = jumping.n_moves, len(jumping.q.weights), jumping.q.is_diagonal
    of_moves = moves.shrink.shape, moves.noise_std.shape, *moves[2:], jumps
    of_walks = data.v.shape, *data[1:], walk.v.shape, *walk[1:], compiled.n_threads()
    sizes = energy.W.shape, of_moves, of_walks, n_blocks(rng), half_of(energy), centred
    known, every = _prepared.get(model, (None, None))
    if every is None or known != sizes:
        forget(model)  # before as much memory is taken again
        every = _prepare(energy, moves, jumping, data, walk, n_blocks(rng), centred)
        _prepared[model] = sizes, every
    (_, chains), room, ascent = every.plans, every.room, every.phases.ascent
    assert walk.burn_in is not None
    n_data, count = len(data.v), len(walk.v) * (walk.n_steps - walk.burn_in)

    sums = sums_for(n_blocks(rng), energy.n_visible, energy.n_hidden)
    found, last_v = summed(sums, count, energy.n_hidden), memory.empty(*walk.v.shape)
    every.packer.pack(energy)
    every.tables.lay(_rows(energy, moves))
    begins = [starts(energy, x)["start_v"] for x in (data.v, walk.v)]
    for plan, x, n_draws in zip(every.plans, begins, (0, chains.n_draws), strict=True):
        plan.fill(start_v=x.data_ptr(), **counters(rng, len(x), n_draws))
    every.phases.data.first_draw = first
    chains.fill(last_v=last_v.data_ptr(), **addresses(sums))
    every.pool.chains = sums_in(found)
    tensors = gradients(model) | {"W": energy.W, "mu": energy.mu, "var": energy.var}
    for name, address in addresses(tensors).items():
        setattr(ascent, name, address)
    if every.jumps is not None and jumping is not None:
        every.jumps.begin(jumping)
    call("grbm_learn", every.phases)

    rate = chains.accept_rate(every.kept)
    if every.jumps is not None:
        rate = every.jumps.own["accept"].div(walk.n_steps).mean()[None]
    pooled = Pooled(
        difference=None,
        scale=ascent.scale,
        data_v=room["data_v"],
        data_h=room["data_h"],
        n_data=n_data,
        mean_v2=room["chains_v2"].float() / count,
        mean_h=room["data_h"].float() / n_data,
        accept_rate=None if rate is None else rate[0],
        swap_rate=None,
    )
    return last_v, found, pooled, room["squares"][0].sqrt().float()


def forget(model: GRBM) -> None:
    """Give back what `learn` has prepared for ``model``."""
    _prepared.pop(model, None)


def _rows(energy: Energy, moves: Moves) -> dict[str, Laid]:
    """All tables that the walks read."""
    N = energy.n_visible
    rows = parameters(energy, 1, half_of(energy) > 0) | rows_of(moves, N, 1)
    return rows | {"down": weights(energy)} if N <= FEW else rows


def _prepare(
    energy: Energy, moves: Moves, jumping: Jumping | None, data: Walk, walk: Walk, blocks: int, centred: bool
) -> _Prepared:
    """Structs for updates of these sizes, without what changes from one to the next."""
    (N, M), (B, C) = energy.W.shape, (len(data.v), len(walk.v))
    assert walk.burn_in is not None
    at_data = Plan.of(energy, Gibbs().moves(energy, 1), data, blocks)
    jumps = None if jumping is None else JumpPlan.of(energy, jumping, walk, blocks)
    chains = Plan.of(energy, moves, walk, blocks) if jumps is None else jumps.plan
    left, kept = at_data.results(True), chains.results(False)
    n_chains = C * (walk.n_steps - walk.burn_in)
    places = {n: torch.empty(N, dtype=torch.float64) for n in ("v", "v2", "data_v", "chains_v2")}
    places |= {n: torch.empty(M, dtype=torch.float64) for n in ("h", "data_h")}
    found = sums_in(summed(left, B, M))
    pool = structs.Pool(N, M, B, n_chains, found, found, **addresses(places))
    room = room_for(N, M)
    of_ascent = {name: x for name, x in (places | room).items() if name != "chains_v2"}
    ascent = structs.Ascent(N, M, padded(M), centred, 1 / (B * n_chains), B, addressof(pool), **addresses(of_ascent))
    packer, tables = Packer(N, M, half_of(energy) > 0), Tables(_rows(energy, moves))
    packed = {"up": packer.up} | ({} if packer.down is None else {"down": packer.down})
    for plan, results in ((at_data, left), (chains, kept)):
        plan.fill(**tables.room.at, **addresses(packed), **addresses(results))
    phases = structs.Phases(at_data.walk, chains.walk, None if jumps is None else addressof(jumps.struct), ascent)
    plans = at_data._replace(walk=phases.data), chains if jumps else chains._replace(walk=phases.chains)
    return _Prepared(plans, jumps, kept, left | places | room, packer, tables, pool, phases)
