"""The walk in native code (`native.c`), for float32 on a CPU."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

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


class Frame(NamedTuple):
    """A walk without its numbers: its sizes, and the memory that it works in, which no other walk may use meanwhile."""

    walk: Walk
    room: Room
    n_draws: int  # of the counter-based numbers

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        M: int,
        moves: Moves,
        n_steps: int,
        n_blocks: int,
        *,
        draw_start: bool,
        burn_in: int | None,
        probabilities: bool,
        half: int,
    ) -> "Frame":
        """For chains of ``shape`` ([R,] C, N) and M hidden units; raises ValueError for sizes that C cannot work on."""
        *_, C, N = shape
        R, T = (shape[0] if len(shape) == 3 else 1), len(moves.shrink)
        v_row, h_row = padded(N), padded(M)
        if C < 1 or C % n_blocks:
            raise ValueError(f"{C} chains cannot be shared evenly by {n_blocks} blocks.")
        if len(moves.noise_std) != T or (T not in (1, n_steps) and n_steps > 0):
            raise ValueError(f"A walk of {n_steps} steps needs as many moves or one for all, got {T}.")
        if R > 1 and burn_in is not None:
            raise ValueError("Replicas cannot be summed; sum those at one temperature.")
        # What is walked together: a block where sums are wanted, else what keeps threads and caches busy.
        chunk = C // n_blocks if burn_in is not None else min(64, -(-C // n_threads()))
        parts = -(-C // chunk)
        ring = min(n_steps + 1, max(2, -(-384 // chunk)))  # states enough for one efficient product
        adjust_from = n_steps if moves.adjust_from is None else min(n_steps, moves.adjust_from)
        adjusted = adjust_from < n_steps
        p_slots = ring if moves.mean_field or probabilities or adjusted else 1

        n = R * parts * chunk  # states held at a time
        sizes = {"v": ring * n * v_row, "h": ring * n * h_row, "p": p_slots * n * h_row}
        sizes |= {"mean": n * v_row, "log_q": n, "tile": n * PANEL}
        sizes["halves"] = R * parts * (ring * chunk + 1) * (v_row + h_row) // 2 if half else 0
        if adjusted:
            sizes |= {"old_mean": n * v_row, "free_energy": n, "old_free_energy": n}
            sizes |= {"log_p": n, "old_log_p": n} if moves.joint else {}
        room = Room.of(sizes)
        walk = Walk(
            n_replicas=R, n_chains=C, chunk=chunk, n_visible=N, n_hidden=M, n_steps=n_steps,
            burn_in=n_steps if burn_in is None else burn_in, adjusted=adjusted, adjust_from=adjust_from,
            mean_field=moves.mean_field, probabilities=probabilities, draw_start=draw_start,
            keep_p=p_slots == ring, v_row=v_row, h_row=h_row, ring=ring, move_row=R * v_row if T > 1 else 0,
            half=half, temperature=moves.temperature, **room.at,
        )  # fmt: skip
        return cls(walk, room, draw_start + 2 * n_steps + (n_steps - adjust_from))

    def results(self, summed: bool) -> dict[str, Tensor]:
        """What the walk leaves behind, to be filled by it."""
        w = self.walk
        chains = (w.n_replicas, w.n_chains)
        parts = -(-w.n_chains // w.chunk)
        out = {"last_v": memory.empty(*chains, w.n_visible)}
        out |= {name: memory.empty(*chains, w.n_hidden) for name in ("last_h", "last_p")}
        if w.adjusted:
            out |= {
                "accept": memory.empty(w.n_replicas * parts, w.n_steps),
                "accept_chain": memory.empty(*chains).zero_(),
            }
        return out | sums_for(parts, w.n_visible, w.n_hidden) if summed else out

    def accept_rate(self, out: dict[str, Tensor]) -> Tensor | None:
        """Of each replica (R,), the mean over chains and steps; None where nothing can be rejected."""
        w = self.walk
        if not w.adjusted:
            return None
        total = out["accept"][:, w.adjust_from :].double().view(w.n_replicas, -1).sum(1)
        return (total / (w.n_chains * (w.n_steps - w.adjust_from))).float()

    def fill(self, **fields: int) -> None:
        """Set so many fields of the walk."""
        for name, value in fields.items():
            setattr(self.walk, name, value)


def half_of(energy: Energy, native: ctypes.CDLL) -> int:
    """What walks under ``energy`` are told of products in half precision: 0 where there are none."""
    wanted = energy.precision == "fast" and not energy.is_tempered and energy.n_visible > FEW
    return native.grbm_half() if wanted else 0


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
    frame = Frame.of(
        v.shape, energy.n_hidden, moves, n_steps, n_blocks(rng), draw_start=given is None, burn_in=burn_in,
        probabilities=probabilities, half=half_of(energy, native),
    )  # fmt: skip
    walk, R = frame.walk, frame.walk.n_replicas
    C, N = walk.n_chains, walk.n_visible
    philox = rng.philox(C) if isinstance(rng, Blocks) else rng
    start, tables, out = starts(energy, v, given), lay(rows_of(moves, N, R)), frame.results(burn_in is not None)
    frame.fill(
        key=philox.key, first_chain=philox.first_chain, first_draw=philox.draw, **tables.at,
        **constants(energy, R, walk.half > 0), **addresses(start), **addresses(out),
    )  # fmt: skip
    native.grbm_walk(ctypes.byref(walk), n_threads())
    rng.draw += frame.n_draws

    chains = Chains(*(out[name].view(*v.shape[:-1], -1) for name in ("last_v", "last_h", "last_p")))
    accept_prob, accept_rate = None, frame.accept_rate(out)
    if accept_rate is not None:
        accept_prob = (out["accept_chain"] / (n_steps - walk.adjust_from)).view(v.shape[:-1])
        accept_rate = accept_rate.view(v.shape[:-2])
    sums = None if burn_in is None else summed(out, C * (n_steps - burn_in), energy.n_hidden)
    return Walked(chains, sums, accept_prob, accept_rate)
