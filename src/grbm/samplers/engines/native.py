"""The walk in native code (`native.c`), for float32 on a CPU."""

import ctypes

from torch import Tensor

from grbm import memory
from grbm.model import Energy
from grbm.moments import Moments, MomentSum
from grbm.randomness import Blocks, Philox, n_blocks
from grbm.samplers.chains import Chains, Walked
from grbm.samplers.engines.compiled import library, n_threads
from grbm.samplers.engines.native_packing import FEW, PANEL, Room, Rows, addresses, constants, lay, padded
from grbm.samplers.engines.structs import Walk
from grbm.samplers.moves import Moves


def rows_of(moves: Moves, N: int, R: int) -> dict[str, Rows]:
    """The tables of the moves, with a row for each step and replica."""
    rows = len(moves.shrink) * R
    tables = {"shrink": moves.shrink, "noise_std": moves.noise_std}
    return {name: Rows(x, N, padded(N), rows, rows * N // max(1, x.numel())) for name, x in tables.items()}


def starts(energy: Energy, v: Tensor, given: Chains | None = None) -> dict[str, Tensor]:
    """Where chains begin, as C reads it, which looks at no sizes; raises ValueError for wrong ones."""
    found = {"v": v} | ({} if given is None else {"h": given.h, "p": given.h_prob})
    for name, x in found.items():
        wanted = (*v.shape[:-1], energy.n_visible if name == "v" else energy.n_hidden)
        if x.shape != wanted:
            raise ValueError(f"{name} of the chains must have shape {wanted}, got {tuple(x.shape)}.")
    return {f"start_{name}": x.to(energy.W).contiguous() for name, x in found.items()}


def sums_for(n_blocks: int, N: int, M: int) -> dict[str, Tensor]:
    """Where a walk leaves its sums by block, in rows."""
    v_row, h_row = padded(N), padded(M)
    shapes = {"sum_v": (v_row,), "sum_v2": (v_row,), "sum_h": (h_row,), "sum_vh": (N, h_row)}
    return {name: memory.empty(n_blocks, *shape) for name, shape in shapes.items()}


def summed(sums: dict[str, Tensor], count: int, M: int) -> MomentSum:
    """What a walk has left in `sums_for`, over ``count`` states."""
    N = sums["sum_vh"].shape[1]
    v, v2, h, vh = (sums[name][..., :n] for name, n in (("sum_v", N), ("sum_v2", N), ("sum_h", M), ("sum_vh", M)))
    return MomentSum.of(Moments(v, v2, h, vh), count)


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
    code: ctypes.CDLL | None = None,
) -> Walked:
    """`grbm.samplers.engines.run_moves` for float32 on a CPU. ``code`` is by default `library`."""
    native = code or library()
    assert native is not None
    *_, C, N = v.shape
    R, M = (len(v) if v.ndim == 3 else 1), energy.n_hidden
    v_row, h_row = padded(N), padded(M)
    threads = n_threads()
    T = len(moves.shrink)
    if C < 1 or C % n_blocks(rng):
        raise ValueError(f"{C} chains cannot be shared evenly by {n_blocks(rng)} blocks.")
    if len(moves.noise_std) != T or (T not in (1, n_steps) and n_steps > 0):
        raise ValueError(f"A walk of {n_steps} steps needs as many moves or one for all, got {T}.")
    if R > 1 and burn_in is not None:
        raise ValueError("Replicas cannot be summed; sum those at one temperature.")
    # What is walked together: a block where sums are wanted, else what keeps threads and caches busy.
    chunk = C // n_blocks(rng) if burn_in is not None else min(64, -(-C // threads))
    parts = -(-C // chunk)
    ring = min(n_steps + 1, max(2, -(-384 // chunk)))  # states enough for one efficient product
    adjust_from = n_steps if moves.adjust_from is None else min(n_steps, moves.adjust_from)
    adjusted = adjust_from < n_steps
    p_slots = ring if moves.mean_field or probabilities or adjusted else 1
    philox = rng.philox(C) if isinstance(rng, Blocks) else rng

    half = native.grbm_half() if energy.precision == "fast" and energy.beta is None and N > FEW else 0
    n = R * parts * chunk  # states held at a time
    sizes = {"v": ring * n * v_row, "h": ring * n * h_row, "p": p_slots * n * h_row}
    sizes |= {"mean": n * v_row, "log_q": n, "tile": n * PANEL}
    sizes["halves"] = R * parts * (ring * chunk + 1) * (v_row + h_row) // 2 if half else 0
    start = starts(energy, v, given)
    out = {"last_v": memory.empty(*v.shape)}
    out |= {name: memory.empty(*v.shape[:-1], M) for name in ("last_h", "last_p")}
    if adjusted:
        sizes |= {"old_mean": n * v_row, "free_energy": n, "old_free_energy": n}
        out |= {"accept": memory.empty(R * parts, n_steps), "accept_chain": memory.empty(*v.shape[:-1]).zero_()}
    if burn_in is not None:
        out |= sums_for(parts, N, M)
    room, tables = Room.of(sizes), lay(rows_of(moves, N, R))
    walk = Walk(
        n_replicas=R, n_chains=C, chunk=chunk, n_visible=N, n_hidden=M, n_steps=n_steps,
        burn_in=n_steps if burn_in is None else burn_in, adjusted=adjusted, adjust_from=adjust_from,
        mean_field=moves.mean_field, probabilities=probabilities, draw_start=given is None, keep_p=p_slots == ring,
        v_row=v_row, h_row=h_row, ring=ring, move_row=R * v_row if T > 1 else 0, half=half, key=philox.key,
        first_chain=philox.first_chain, first_draw=philox.draw, temperature=moves.temperature,
        **constants(energy, R, half > 0), **tables.at, **room.at, **addresses(start), **addresses(out),
    )  # fmt: skip
    native.grbm_walk(ctypes.byref(walk), threads)
    rng.draw += (given is None) + 2 * n_steps + (n_steps - adjust_from)

    chains = Chains(out["last_v"], out["last_h"], out["last_p"])
    accept_prob, accept_rate = None, None
    if adjusted:
        accept_prob = out["accept_chain"] / (n_steps - adjust_from)
        total = out["accept"][:, adjust_from:].double().view(R, -1).sum(1)
        accept_rate = (total / (C * (n_steps - adjust_from))).to(v).view(v.shape[:-2])
    sums = None if burn_in is None else summed(out, C * (n_steps - burn_in), M)
    return Walked(chains, sums, accept_prob, accept_rate)
