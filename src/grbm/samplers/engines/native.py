"""Walks in native code (the C files beside this one), for float32 on a CPU."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from grbm.core import memory
from grbm.core.randomness import Rng, n_blocks
from grbm.model import Energy, TemperedEnergy
from grbm.samplers.chains import Chains, Swaps, Walk, Walked, top_of
from grbm.samplers.engines import compiled, structs
from grbm.samplers.engines.compiled import call
from grbm.samplers.engines.definition import Engine, Jumping, Measured, Sums, counters
from grbm.samplers.engines.native_packing import FEW, INVERSE, PANEL, Laid, Room, addresses, constants, lay, padded
from grbm.samplers.moments import Moments, MomentSum
from grbm.samplers.moves import Moves


def rows_of(moves: Moves, N: int, R: int) -> dict[str, Laid]:
    """The tables of the moves, with a row for each step and replica."""
    rows = len(moves.shrink) * R
    tables = {"shrink": moves.shrink, "noise_std": moves.noise_std}
    return {name: Laid(x, N, padded(N), rows, rows * N // max(1, x.numel())) for name, x in tables.items()}


def starts(energy: Energy, v: Tensor, given: Chains | None = None) -> dict[str, Tensor]:
    """Where chains begin, as C reads it, which looks at no sizes; raises ValueError for wrong ones."""
    found = {"v": v} | ({} if given is None else {"h": given.h, "p": given.h_prob})
    for name, x in found.items():
        wanted = (*v.shape[:-1], energy.n_visible if name == "v" else energy.n_hidden)
        if x.shape != wanted:
            raise ValueError(f"{name} of the chains must have shape {wanted}, got {tuple(x.shape)}.")
    return {f"start_{name}": x.to(energy.W).contiguous() for name, x in found.items()}


def together(C: int, n_blocks: int, summed: bool) -> int:
    """Chains that are walked together: a block where sums are wanted, else what keeps threads and caches busy."""
    if C < 1 or C % n_blocks:
        raise ValueError(f"{C} chains cannot be shared evenly by {n_blocks} blocks.")
    return C // n_blocks if summed else min(64, -(-C // compiled.n_threads()))


def sums_for(n_blocks: int, N: int, M: int) -> dict[str, Tensor]:
    """Where a walk leaves its sums by block, in rows."""
    v_row, h_row = padded(N), padded(M)
    shapes = {"sum_v": (v_row,), "sum_v2": (v_row,), "sum_h": (h_row,), "sum_vh": (N, h_row)}
    return {name: memory.empty(n_blocks, *shape) for name, shape in shapes.items()}


def summed(sums: dict[str, Tensor], count: int, M: int) -> MomentSum:
    """Sums that a walk has left in `sums_for`, over ``count`` states."""
    N = sums["sum_vh"].shape[1]
    v, v2, h, vh = (sums[name][..., :n] for name, n in (("sum_v", N), ("sum_v2", N), ("sum_h", M), ("sum_vh", M)))
    return MomentSum(Moments(v, v2, h, vh), count)


def walk_of(
    C: int, N: int, M: int, n_steps: int, chunk: int, *, n_replicas: int = 1, temperature: float = 1.0, **fields: Any
) -> Any:
    """A struct Walk of these sizes; what is not among the ``fields`` is 0."""
    return structs.Walk(
        n_replicas=n_replicas, n_chains=C, chunk=chunk, n_visible=N, n_hidden=M, n_steps=n_steps, v_row=padded(N),
        h_row=padded(M), temperature=temperature, **fields,
    )  # fmt: skip


class Plan(NamedTuple):
    """A walk without its numbers: its sizes, and the memory that it works in, which no other walk may use meanwhile."""

    walk: Any  # struct Walk
    room: Room
    n_draws: int  # of the counter-based numbers

    @classmethod
    def of(cls, energy: Energy, moves: Moves, walk: Walk, n_blocks: int) -> "Plan":
        """For a walk in so many blocks; raises ValueError for sizes that C cannot work on."""
        *replicas, C, N = walk.v.shape
        R, T, n_steps, M = math.prod(replicas), len(moves.shrink), walk.n_steps, energy.n_hidden
        half = half_of(energy)
        v_row, h_row, draw_start = padded(N), padded(M), walk.given is None
        chunk = together(C, n_blocks, walk.burn_in is not None)
        if len(moves.noise_std) != T or (T not in (1, n_steps) and n_steps > 0):
            raise ValueError(f"A walk of {n_steps} steps needs as many moves or one for all, got {T}.")
        if R > 1 and walk.burn_in is not None:
            raise ValueError("Replicas cannot be summed; sum those at one temperature.")
        parts = -(-C // chunk)
        ring = min(n_steps + 1, max(2, -(-384 // chunk)))  # states enough for one efficient product
        adjust_from = n_steps if moves.adjust_from is None else min(n_steps, moves.adjust_from)
        adjusted = adjust_from < n_steps
        p_slots = ring if moves.mean_field or walk.probabilities or adjusted else 1

        n = R * parts * chunk  # states held at a time
        sizes = {"v": ring * n * v_row, "h": ring * n * h_row, "p": p_slots * n * h_row}
        sizes |= {"mean": n * v_row, "log_q": n, "tile": n * PANEL}
        sizes["halves"] = R * parts * (ring * chunk + 1) * (v_row + h_row) // 2 if half else 0
        if adjusted:
            sizes |= {"old_mean": n * v_row, "free_energy": n, "old_free_energy": n}
            sizes |= {"log_p": n, "old_log_p": n} if moves.joint else {}
        room = Room.of(sizes)
        struct = walk_of(
            C, N, M, n_steps, chunk, n_replicas=R, burn_in=n_steps if walk.burn_in is None else walk.burn_in,
            adjusted=adjusted, adjust_from=adjust_from, mean_field=moves.mean_field, probabilities=walk.probabilities,
            draw_start=draw_start, keep_p=p_slots == ring, ring=ring, move_row=R * v_row if T > 1 else 0,
            half=half, temperature=moves.temperature, **room.at,
        )  # fmt: skip
        return cls(struct, room, draw_start + 2 * n_steps + (n_steps - adjust_from))

    def results(self, summed: bool) -> dict[str, Tensor]:
        """Tensors to be filled by the walk."""
        w = self.walk
        chains = (w.n_replicas, w.n_chains)
        parts = -(-w.n_chains // w.chunk)
        out = {"last_v": memory.empty(*chains, w.n_visible)}
        out |= {name: memory.empty(*chains, w.n_hidden) for name in ("last_h", "last_p")}
        if w.adjusted:
            out["accept"] = memory.empty(w.n_replicas * parts, w.n_steps)
            out["accept_chain"] = memory.empty(*chains).zero_()
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


def half_of(energy: Energy) -> int:
    """Kind of products in half precision for walks under ``energy``; 0 for none."""
    return compiled.half() if energy.precision == "fast" and not energy.is_tempered and energy.n_visible > FEW else 0


def jumps_natively(energy: Energy, moves: Moves) -> bool:
    """Whether walks of these local moves between jumps can be made here."""
    return moves.is_plain and not energy.is_tempered and not half_of(energy)


def whole_step(energy: Energy, moves: Moves, n_moves: int) -> Moves:
    """The moves of a step that jumps: v ~ p(v | h), then h ~ p(h | v), begins it, a move like the others."""
    std, size = energy.var.sqrt()[None], (n_moves, energy.n_visible)
    shrink = torch.cat([torch.zeros_like(std), moves.shrink.expand(size)])
    return Moves(shrink, torch.cat([std, moves.noise_std.expand(size)]))


class JumpPlan(NamedTuple):
    """A walk of chains that jump, without its numbers: see `Plan`, which is that of the local moves of its steps."""

    plan: Plan  # its walk is the one in ``struct``
    struct: Any  # struct Jumps
    own: dict[str, Tensor]

    @classmethod
    def of(cls, energy: Energy, jumping: Jumping, walk: Walk, n_blocks: int) -> "JumpPlan":
        """For a walk in so many blocks; raises ValueError for sizes that C cannot work on."""
        (C, N), M, n_moves = walk.v.shape, energy.n_hidden, 1 + jumping.n_moves
        summing = None if walk.burn_in is None else min(walk.burn_in, 0)  # of a walk of no steps, for the start
        local = Walk(walk.v, n_moves, summing, walk.probabilities, walk.given)
        none = energy.var.new_empty(n_moves, N)
        plan = Plan.of(energy, Moves(none, none), local, n_blocks)
        chunk, K = plan.walk.chunk, len(jumping.q.weights)
        own = {"accept": memory.empty(C), "room": memory.empty(-(-C // chunk), 4 * chunk + (2 * N + K) * PANEL)}
        own |= {"swept": memory.empty(C, M), "sweeping": memory.empty(-(-C // PANEL), 3, M, PANEL)}
        struct = structs.Jumps(
            walk.n_steps, walk.burn_in or 0, own["room"].shape[1], plan.walk,
            structs.Sweep(C, M, beta=1.0, swept=own["swept"].data_ptr(), room=own["sweeping"].data_ptr()),
            structs.Mixture(K, jumping.q.is_diagonal), own["accept"].data_ptr(), own["room"].data_ptr(),
        )  # fmt: skip
        n_draws = plan.walk.draw_start + walk.n_steps * (1 + 2 * n_moves + 4)
        return cls(plan._replace(walk=struct.walk, n_draws=n_draws), struct, own)

    def begin(self, jumping: Jumping) -> None:
        """Prepare for a walk by ``jumping``, whose J and log-odds must outlive it, and its first random numbers."""
        tables = jumping.q.tables._asdict()
        self.own.update(tables)  # so that they outlive the walk
        self.own["accept"].zero_()
        sweep, walk, n_units = self.struct.sweep, self.struct.walk, jumping.q.n_visible
        if n_units != walk.n_visible:
            raise ValueError(f"A reference of {n_units} units cannot propose states of {walk.n_visible} visible units.")
        sweep.key, sweep.first_chain = walk.key, walk.first_chain
        for struct, tensors in (
            (sweep, {"J": jumping.J, "alone": jumping.alone}),
            (self.struct.mixture, tables),
        ):
            for name, address in addresses(tensors).items():
                setattr(struct, name, address)


def sweep_of(J: Tensor, alone: Tensor, h: Tensor, beta: float, rng: Rng, n_draws: int) -> tuple[Any, dict[str, Tensor]]:
    """A struct Sweep and the tensors that it points to; raises ValueError for sizes that C cannot work on."""
    C, M = h.shape
    if J.shape != (M, M) or alone.shape[-1:] != (M,):
        raise ValueError(f"h of {M} units goes with J {(M, M)}, got {tuple(J.shape)} and {tuple(alone.shape)}.")
    held = {"J": J.to(h).contiguous(), "alone": alone.to(h).contiguous(), "h": h.contiguous()}
    held |= {"swept": memory.empty(C, M), "room": memory.empty(-(-C // PANEL), 3, M, PANEL)}
    return structs.Sweep(C, M, *counters(rng, C, n_draws).values(), beta, **addresses(held)), held


class Native(Engine):
    """The native code."""

    name = "native"

    def run(self, energy: Energy, moves: Moves, walk: Walk, rng: Rng) -> Walked:
        v, given = walk.v, walk.given
        plan = Plan.of(energy, moves, walk, n_blocks(rng))
        struct, R, C = plan.walk, plan.walk.n_replicas, plan.walk.n_chains
        start, tables = starts(energy, v, given), lay(rows_of(moves, struct.n_visible, R))
        out = plan.results(walk.burn_in is not None)
        plan.fill(
            **tables.at, **constants(energy, R, struct.half > 0), **addresses(start), **addresses(out),
            **counters(rng, C, plan.n_draws),
        )  # fmt: skip
        call("grbm_walk", struct)

        chains = Chains(*(out[name].view(*v.shape[:-1], -1) for name in ("last_v", "last_h", "last_p")))
        accept_prob, accept_rate = None, plan.accept_rate(out)
        if accept_rate is not None:
            accept_prob = (out["accept_chain"] / (walk.n_steps - struct.adjust_from)).view(v.shape[:-1])
            accept_rate = accept_rate.view(v.shape[:-2])
        sums = None if walk.burn_in is None else summed(out, C * (walk.n_steps - walk.burn_in), struct.n_hidden)
        return Walked(chains, sums, accept_prob, accept_rate)

    def run_ladder(self, ladder: TemperedEnergy, moves: Moves, walk: Walk, rng: Rng) -> Walked | None:
        if not moves.is_plain:
            return None
        energy, base, n_steps, given = ladder.untempered, ladder.base, walk.n_steps, walk.given
        is_summed = walk.burn_in is not None
        (R, C, N), M = walk.v.shape, energy.n_hidden
        v_row, h_row, chunk = padded(N), padded(M), together(C, n_blocks(rng), is_summed)
        parts = -(-C // chunk)
        slots = max(1, min(n_steps + 1, -(-384 // chunk))) if is_summed else 1  # enough for one efficient product

        n = parts * chunk  # chains held
        sizes = {"v": slots * n * v_row, "h": slots * n * h_row, "p": slots * n * h_row}
        room = Room.of(sizes | {"mean": n * v_row, "log_q": n, "tile": n * PANEL})
        held = Room.of({"v": R * n * v_row, "h": R * n * h_row, "p": R * n * h_row, "difference": R * n})
        start = starts(energy, walk.v, given)
        out = {"last_v": memory.empty(R, C, N), "last_h": memory.empty(R, C, M), "last_p": memory.empty(R, C, M)}
        if is_summed:
            out |= sums_for(parts, N, M)
        tables = lay(rows_of(moves, N, R) | {"plain_b": Laid(energy.b, M, h_row)})
        own = lay({
            "gaps": Laid(ladder.beta.flatten().diff(), R - 1, R - 1),
            "base_mean": Laid(base.mean, N, v_row),
            "base_inverse_var": Laid(base.var, N, v_row, kind=INVERSE),
            "plain_mu": Laid(energy.mu, N, v_row),
            "plain_inverse_var": Laid(energy.var, N, v_row, kind=INVERSE),
        })  # fmt: skip
        accepted = torch.empty(parts, R - 1, dtype=torch.int64)
        struct = walk_of(
            C, N, M, n_steps, chunk, n_replicas=R, burn_in=n_steps if walk.burn_in is None else walk.burn_in,
            adjust_from=n_steps, probabilities=walk.probabilities, draw_start=given is None, ring=slots,
            move_row=R * v_row if len(moves.shrink) > 1 else 0, temperature=moves.temperature,
            **constants(ladder, R, False), **tables.at, **room.at, **addresses(start), **addresses(out),
            **counters(rng, C, (given is None) + 4 * n_steps),
        )  # fmt: skip
        call("grbm_temper", structs.Ladder(struct, **own.at, **held.at, accepted=accepted.data_ptr()))

        replicas = Chains(out["last_v"], out["last_h"], out["last_p"])
        sums = None if walk.burn_in is None else summed(out, C * (n_steps - walk.burn_in), M)
        swaps = Swaps(accepted.sum(0).double(), n_steps * C) if n_steps else None
        return Walked(top_of(replicas), sums, swaps=swaps)

    def run_given(self, energy: Energy, measured: Measured, walk: Walk, rng: Rng) -> tuple[Chains, Sums | None] | None:
        v, given, n_steps = walk.v, walk.given, walk.n_steps
        if v.ndim != 2 or v.dtype != energy.W.dtype or energy.is_tempered or not len(v) or len(v) % n_blocks(rng):
            return None
        (C, N), M, chunk = v.shape, energy.n_hidden, together(len(v), 1, summed=False)
        v_row, h_row = padded(N), padded(M)

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
        half = half_of(energy) if measured[3] is not None else 0
        if half:
            tensors["halves"] = memory.empty(-(-C // chunk), (chunk + 1) * (v_row + h_row) // 2)
        *parts, within = measured
        own = dict(zip(("given", "share", "std"), map(rows, parts), strict=True))
        if within is not None:
            own |= {"low": rows(within.low), "high": rows(within.high)}
        own |= {"noise": memory.empty(C, v_row), "zero": memory.empty(chunk, v_row).zero_()}
        own["one"] = memory.empty(v_row).fill_(1)
        if walk.burn_in is not None:
            own |= {name: torch.zeros(C, v_row, dtype=torch.float64) for name in ("total", "squares")}
        struct = walk_of(
            C, N, M, n_steps, chunk, draw_start=given is None, half=half, **constants(energy, 1, half > 0),
            **addresses(tensors), **counters(rng, C, (given is None) + 2 * n_steps),
        )  # fmt: skip
        call("grbm_walk_given", structs.Given(struct, walk.burn_in or 0, **addresses(own)))
        chains = Chains(*(tensors[name][:, :n].contiguous() for name, n in (("v", N), ("h", M), ("p", M))))
        return chains, None if walk.burn_in is None else (own["total"][:, :N], own["squares"][:, :N])

    def run_jumps(self, energy: Energy, moves: Moves, jumping: Jumping, walk: Walk, rng: Rng) -> Walked | None:
        C, M, n_steps = len(walk.v), energy.n_hidden, walk.n_steps
        if not jumps_natively(energy, moves) or not C or C % n_blocks(rng):
            return None
        jumps = JumpPlan.of(energy, jumping, walk, n_blocks(rng))
        moves, out = whole_step(energy, moves, jumping.n_moves), jumps.plan.results(walk.burn_in is not None)
        tables, start = lay(rows_of(moves, energy.n_visible, 1)), starts(energy, walk.v, walk.given)
        numbers = counters(rng, C, jumps.plan.n_draws)
        jumps.plan.fill(**tables.at, **constants(energy, 1, False), **addresses(start), **addresses(out), **numbers)
        jumps.begin(jumping)
        call("grbm_jump", jumps.struct)
        chains = Chains(*(out[name][0] for name in ("last_v", "last_h", "last_p")))
        sums = None if walk.burn_in is None else summed(out, C * (n_steps - walk.burn_in), M)
        if not n_steps:
            return Walked(chains, sums)
        accept_prob = jumps.own["accept"] / n_steps
        return Walked(chains, sums, accept_prob, accept_prob.mean())

    def sweep(self, J: Tensor, alone: Tensor, h: Tensor, beta: float, rng: Rng) -> Tensor:
        struct, held = sweep_of(J, alone, h, beta, rng, 1)
        call("grbm_sweep", struct)
        return held["swept"]

    def anneal(
        self, J: Tensor, c: Tensor, h: Tensor, betas: Tensor, share: float, rng: Rng
    ) -> tuple[Tensor, Tensor] | None:
        n_steps = len(betas) - 1
        alone = betas[1:, None].to(h) * (c + 0.5 * J.diagonal()).to(h)
        struct, held = sweep_of(J, alone, h, 1.0, rng, 2 * n_steps)
        held |= {"c": c.to(h).contiguous(), "betas": betas.double().contiguous()}
        held["log_ratio"] = torch.empty(-(-len(h) // PANEL), dtype=torch.float64)
        own = addresses({name: held[name] for name in ("c", "betas", "log_ratio")})
        call("grbm_anneal", structs.Annealing(n_steps, share, struct, **own))
        return held["log_ratio"], held["swept"]

    def free_energy(self, energy: Energy, v: Tensor) -> Tensor:
        if energy.is_tempered or half_of(energy) or not v.numel():
            return energy.free_energy(v)
        rows = v.reshape(-1, v.shape[-1])
        (C, N), M, chunk = rows.shape, energy.n_hidden, together(len(rows), 1, summed=False)
        room = Room.of({"v": C * padded(N), "tile": C * PANEL})
        out, start = memory.empty(C), starts(energy, rows)
        struct = walk_of(C, N, M, 0, chunk, ring=1, **constants(energy, 1, False), **room.at, **addresses(start))
        call("grbm_free_energy", structs.Start(struct, out.data_ptr()))
        return out.view(v.shape[:-1])

    def draw(self, kind: str, shape: tuple[int, int], like: Tensor, rng: Rng) -> Tensor:
        out = memory.empty(*shape)
        call("grbm_draw", structs.Noise(*shape, kind == "uniform", **counters(rng, shape[0], 1), out=out.data_ptr()))
        return out
