"""Averages over many states (`averages.c`) and steps up the log-likelihood (`climbing.c`): native code, in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grbm.model import Energy
from grbm.samplers.engines import structs
from grbm.samplers.engines.compiled import call, library
from grbm.samplers.engines.native_packing import addresses
from grbm.samplers.moments import Averages, Moments

CHUNK = 256  # states of a part: its probabilities stay in a cache, and sums are those of any number of threads
LARGEST = 1 << 17  # weights; larger products are better left to PyTorch
LANES = 16  # that rows of hidden units are multiples of: two vectors of AVX-512


def serves(energy: Energy) -> bool:
    """Whether averages under ``energy`` can be taken here: at one temperature, of sizes at which this is faster."""
    W = energy.W
    fits = W.device.type == "cpu" and W.dtype == torch.float64 and W.numel() <= LARGEST and not energy.is_tempered
    return fits and library() is not None


class Machine(NamedTuple):
    """Numbers of a machine as native code reads them: W/σ² (N, R) and b (R,) in rows of R units, μ and 1/σ² (N,)."""

    up: Tensor
    b: Tensor
    mu: Tensor
    inverse_var: Tensor

    @classmethod
    def empty(cls, n_visible: int, n_hidden: int) -> "Machine":
        """Room for a machine: units beyond the last one are never on."""
        h_row = n_hidden + -n_hidden % LANES
        sizes = ((n_visible, h_row), (h_row,), (n_visible,), (n_visible,))
        up, b, *rest = (torch.zeros(size, dtype=torch.float64, device="cpu") for size in sizes)
        return cls(up, b.fill_(-1e4), *rest)


class States(NamedTuple):
    """States and where their averages are written: a struct Averages, and the tensors that it points to."""

    struct: Any
    free_energy: Tensor
    means: Moments
    held: tuple[Tensor, ...]

    @classmethod
    def of(cls, machine: Machine, n_hidden: int, v: Tensor, log_q: Tensor | None) -> "States":
        """States v (n, N) by the log of their density, (n,) or None, for weights all equal."""
        (N, h_row), n, v = machine.up.shape, len(v), v.contiguous()
        log_q = v if log_q is None else log_q.contiguous()
        parts, weighted = -(-n // CHUNK), log_q is not v
        room = {"free_energy": v.new_empty(n), **{name: v.new_empty(parts) for name in ("top", "weights", "squares")}}
        shapes = {"v_mean": (N,), "v2_mean": (N,), "h_mean": (h_row,), "vh_mean": (N, h_row)}
        means = {name: v.new_empty(parts, *shape) for name, shape in shapes.items()}
        sizes = {"n": n, "chunk": CHUNK, "n_visible": N, "n_hidden": n_hidden, "h_row": h_row, "weighted": weighted}
        at = addresses(machine._asdict() | room | means | {"v": v, "log_q": log_q})
        mean_v, mean_v2, mean_h, mean_vh = (x[0] for x in means.values())
        found = Moments(mean_v, mean_v2, mean_h[:n_hidden], mean_vh[:, :n_hidden])
        held = (*machine, *room.values(), *means.values(), v, log_q)
        return cls(structs.Averages(**sizes, **at), room["free_energy"], found, held)


def averaging(energy: Energy) -> Callable[[Tensor, Tensor | None], Averages]:
    """Averages under ``energy`` of states v (n, N) by the log of their density, (n,) or None, for weights all equal.

    What all sets of states share is laid out once.
    """
    M, machine = energy.n_hidden, Machine.empty(*energy.W.shape)
    machine.up[:, :M], machine.b[:M] = energy.projection.T, energy.b
    machine.mu.copy_(energy.mu)
    torch.div(1, energy.var, out=machine.inverse_var)

    def averages(v: Tensor, log_q: Tensor | None) -> Averages:
        states = States.of(machine, M, v, log_q)
        call("grbm_average", states.struct)
        return Averages(states.free_energy, states.means, states.struct.log_weight, states.struct.share)

    return averages


class Climbed(NamedTuple):
    """A round of steps: where it has ended (P,), the gradient there, pairs of steps and falls, and some numbers."""

    theta: Tensor
    gradient: Tensor
    pairs: tuple[Tensor, Tensor]  # (K, P), of earlier rounds and this one
    made: int
    began: float
    value: float
    share: float


def climb(
    start: Tensor, size: tuple[int, int], rows: Tensor, draws: tuple[Tensor, Tensor], pairs: tuple[Tensor, Tensor],
    **limits: float,
) -> Climbed:  # fmt: skip
    """Make a round of steps from natural parameters ``start`` (P,) of a machine of that ``size`` (N, M).

    ``limits`` are those numbers of a struct Climb (`climbing.c`) that its caller chooses.
    """
    machine, known = Machine.empty(*size), len(pairs[0])
    of = [States.of(machine, size[1], v, log_q) for v, log_q in ((rows, None), draws)]
    kept = [torch.cat([x, x.new_empty(int(limits["n_steps"]), len(start))]) for x in pairs]
    own = {"theta": start.clone(), "steps": kept[0], "falls": kept[1], "along": start.new_empty(len(kept[0]))}
    own |= {name: torch.empty_like(start) for name in ("gradient", "there", "slope", "uphill")}
    struct = structs.Climb(
        *size, machine.up.shape[1], known=known, rows=of[0].struct, draws=of[1].struct,
        **limits, **addresses(machine._asdict() | own),
    )  # fmt: skip
    call("grbm_climb", struct)
    found = kept[0][: struct.known], kept[1][: struct.known]
    return Climbed(own["theta"], own["gradient"], found, struct.made, struct.began, struct.value, struct.share)
