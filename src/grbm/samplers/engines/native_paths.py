"""Walks along inverse temperatures in native code: parallel tempering (`tempered.c`) and annealing (`annealed.c`)."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from grbm import memory
from grbm.model import Base, Energy, TemperedEnergy
from grbm.randomness import Blocks, Philox, n_blocks
from grbm.samplers.chains import Chains, Swaps, Walked
from grbm.samplers.engines.compiled import library, n_threads
from grbm.samplers.engines.native import rows_of, starts, summed, sums_for
from grbm.samplers.engines.native_packing import INVERSE, PANEL, Room, Rows, addresses, constants, lay, padded
from grbm.samplers.engines.structs import AnnealedPath, Given, Ladder, Sweep, Walk
from grbm.samplers.moves import Moves


class GivenSums(NamedTuple):
    """Sums over steps of the mean of v given h and measurements, and of its square, by chain: (C, N) float64."""

    total: Tensor
    squares: Tensor


def serves_moves(moves: Moves) -> bool:
    """Whether replicas that move so can be walked together here: moves that nothing rejects, driven by draws of h."""
    return moves.adjust_from is None and not moves.mean_field


def run_ladder(
    energy: Energy,
    base: Base,
    ladder: TemperedEnergy,
    moves: Moves,
    v: Tensor,
    n_steps: int,
    rng: Blocks | Philox,
    *,
    given: Chains | None = None,
    burn_in: int | None = None,
    probabilities: bool = False,
) -> Walked:
    """A walk of `ParallelTempering`; replicas v (R, C, N) have the energies ``ladder`` from ``base`` to ``energy``.

    Options are those of `grbm.samplers.engines.run_moves`; sums are of the states at β = 1.
    """
    native = library()
    assert native is not None
    R, C, N = v.shape
    M, T = energy.n_hidden, len(moves.shrink)
    v_row, h_row = padded(N), padded(M)
    if C < 1 or C % n_blocks(rng):
        raise ValueError(f"{C} chains cannot be shared evenly by {n_blocks(rng)} blocks.")
    threads = n_threads()
    chunk = C // n_blocks(rng) if burn_in is not None else min(64, -(-C // threads))
    parts = -(-C // chunk)
    ring = max(1, min(n_steps + 1, -(-384 // chunk)))  # states enough for one efficient product
    philox = rng.philox(C) if isinstance(rng, Blocks) else rng

    n = parts * chunk  # chains held
    held = {"v": R * n * v_row, "h": R * n * h_row, "p": R * n * h_row, "difference": R * n}
    slots = ring if burn_in is not None else 1
    sizes = {"v": slots * n * v_row, "h": slots * n * h_row, "p": slots * n * h_row}
    sizes |= {"mean": n * v_row, "log_q": n, "tile": n * PANEL}
    start = starts(energy, v, given)
    out = {"last_v": memory.empty(R, C, N), "last_h": memory.empty(R, C, M), "last_p": memory.empty(R, C, M)}
    if burn_in is not None:
        out |= sums_for(parts, N, M)
    of_walk = rows_of(moves, N, R) | {"plain_b": Rows(energy.b, M, h_row)}
    own = {
        "gaps": Rows(ladder.beta.flatten().diff(), R - 1, R - 1),
        "base_mean": Rows(base.mean, N, v_row),
        "base_inverse_var": Rows(base.var, N, v_row, kind=INVERSE),
        "plain_mu": Rows(energy.mu, N, v_row),
        "plain_inverse_var": Rows(energy.var, N, v_row, kind=INVERSE),
    }
    accepted = torch.empty(parts, R - 1, dtype=torch.int64)
    room, rooms, tables, own_tables = Room.of(sizes), Room.of(held), lay(of_walk), lay(own)
    walk = Walk(
        n_replicas=R, n_chains=C, chunk=chunk, n_visible=N, n_hidden=M, n_steps=n_steps,
        burn_in=n_steps if burn_in is None else burn_in, adjust_from=n_steps, probabilities=probabilities,
        draw_start=given is None, v_row=v_row, h_row=h_row, ring=slots, move_row=R * v_row if T > 1 else 0,
        key=philox.key, first_chain=philox.first_chain, first_draw=philox.draw, temperature=moves.temperature,
        **constants(ladder, R, False), **tables.at, **room.at, **addresses(start), **addresses(out),
    )  # fmt: skip
    every = Ladder(walk, **own_tables.at, **rooms.at, accepted=accepted.data_ptr())
    native.grbm_temper(ctypes.byref(every), threads)
    rng.draw += (given is None) + 4 * n_steps

    replicas = Chains(out["last_v"], out["last_h"], out["last_p"])
    sums = None if burn_in is None else summed(out, C * (n_steps - burn_in), M)
    swaps = Swaps(accepted.sum(0).double(), n_steps * C) if n_steps else None
    top = Chains(replicas.v[-1], replicas.h[-1], replicas.h_prob[-1], replicas)
    return Walked(top, sums, swaps=swaps)


def anneal(
    energy: Energy, base: Base, betas: Tensor, v: Tensor, rng: Blocks | Philox, *, back: bool
) -> tuple[Tensor, Tensor]:
    """`grbm.samplers.path.anneal` for float32 on a CPU: log weights (C,) in float64, and the last states (C, N)."""
    native = library()
    assert native is not None
    C, N = v.shape
    M, n_steps = energy.n_hidden, len(betas) - 1
    v_row, h_row, threads = padded(N), padded(M), n_threads()
    chunk = min(64, -(-C // threads))
    parts = -(-C // chunk)
    philox = rng.philox(C) if isinstance(rng, Blocks) else rng
    states = {"v": functional.pad(starts(energy, v)["start_v"], (0, v_row - N)).contiguous()}
    room = Room.of({"h": C * h_row, "mean": C * v_row, "log_q": C, "tile": C * PANEL})
    rooms = Room.of({"tables": parts * 4 * v_row, "logits": C * h_row})
    bases = lay({"base_mean": Rows(base.mean, N, v_row), "base_inverse_var": Rows(base.var, N, v_row, kind=INVERSE)})
    own = {"betas": betas.double().contiguous(), "log_weight": torch.empty(C, dtype=torch.float64)}
    walk = Walk(
        n_replicas=1, n_chains=C, chunk=chunk, n_visible=N, n_hidden=M, n_steps=n_steps, v_row=v_row, h_row=h_row,
        key=philox.key, first_chain=philox.first_chain, first_draw=philox.draw, temperature=1.0,
        **constants(energy, 1, False), **room.at, **addresses(states),
    )  # fmt: skip
    path = AnnealedPath(walk, back=back, **rooms.at, **bases.at, **addresses(own))
    native.grbm_anneal(ctypes.byref(path), threads)
    rng.draw += 2 * n_steps
    return own["log_weight"], states["v"][:, :N].contiguous()


def run_given(
    energy: Energy,
    y: Tensor,
    share: Tensor,
    std: Tensor,
    v: Tensor,
    n_steps: int,
    rng: Blocks | Philox,
    *,
    given: Chains | None = None,
    burn_in: int | None = None,
) -> tuple[Chains, GivenSums | None]:
    """A walk of `grbm.conditional.Conditional`: v (C, N) given h has mean m + share (y − m) and deviation ``std``.

    Also the sums of that mean over the states after the first ``burn_in`` steps, none with None.
    """
    native = library()
    assert native is not None
    C, N = v.shape
    M, v_row, h_row, threads = energy.n_hidden, padded(N), padded(energy.n_hidden), n_threads()
    philox = rng.philox(C) if isinstance(rng, Blocks) else rng
    chunk = min(64, -(-C // threads))

    def rows(x: Tensor, row: int = v_row) -> Tensor:
        return functional.pad(x, (0, row - x.shape[-1])).contiguous()

    tensors = {
        "v": rows(starts(energy, v)["start_v"]),
        "h": memory.empty(C, h_row) if given is None else rows(given.h, h_row),
        "p": memory.empty(C, h_row) if given is None else rows(given.h_prob, h_row),
        "mean": memory.empty(C, v_row).zero_(),
        "log_q": memory.empty(C),
        "tile": memory.empty(C, PANEL),
    }
    own = {"given": rows(y), "share": rows(share), "std": rows(std), "noise": memory.empty(C, v_row)}
    own |= {"zero": memory.empty(chunk, v_row).zero_(), "one": memory.empty(v_row).fill_(1)}
    if burn_in is not None:
        own |= {name: torch.zeros(C, v_row, dtype=torch.float64) for name in ("total", "squares")}
    walk = Walk(
        n_replicas=1, n_chains=C, chunk=chunk, n_visible=N, n_hidden=M, n_steps=n_steps, v_row=v_row, h_row=h_row,
        draw_start=given is None, key=philox.key, first_chain=philox.first_chain, first_draw=philox.draw,
        temperature=1.0, **constants(energy, 1, False), **addresses(tensors),
    )  # fmt: skip
    every = Given(walk, burn_in or 0, **addresses(own))
    native.grbm_walk_given(ctypes.byref(every), threads)
    rng.draw += (given is None) + 2 * n_steps
    last = (tensors[name][:, :n].contiguous() for name, n in (("v", N), ("h", M), ("p", M)))
    return Chains(*last), None if burn_in is None else GivenSums(own["total"][:, :N], own["squares"][:, :N])


def sweep(J: Tensor, bar: Tensor, h: Tensor) -> Tensor:
    """`grbm.samplers.collapsed.Boltzmann.sweep` for float32 on a CPU: h (C, M), and what its log-odds must exceed."""
    native = library()
    assert native is not None
    C, M = h.shape

    def blocks(x: Tensor, padding: float) -> Tensor:
        """(C, M) as blocks (C/64, M, 64)."""
        whole = functional.pad(x, (0, 0, 0, -C % PANEL), value=padding)
        return whole.view(-1, PANEL, M).mT.contiguous()

    J, new = J.contiguous(), blocks(h, 0.0)
    tensors = {"J": J, "bar": blocks(bar, torch.inf), "h": new, "field": torch.empty_like(new)}
    every = Sweep(M, len(new), **addresses(tensors))
    native.grbm_sweep(ctypes.byref(every), n_threads())
    return new.mT.reshape(-1, M)[:C].contiguous()
