"""Free energies of many states and weighted means over them in native code (`averages.c`), in float64."""

from collections.abc import Callable

import torch
from torch import Tensor

from grbm.model import Energy
from grbm.samplers.engines import structs
from grbm.samplers.engines.compiled import call, library
from grbm.samplers.engines.native_packing import addresses
from grbm.samplers.moments import Averages, Moments

CHUNK = 256  # states of a part: its probabilities stay in a cache, and sums are those of any number of threads
LARGEST = 1 << 17  # weights; larger products are better left to PyTorch
LANES = 8  # that rows of hidden units are multiples of


def serves(energy: Energy) -> bool:
    """Whether averages under ``energy`` can be taken here: at one temperature, of sizes at which this is faster."""
    W = energy.W
    fits = W.device.type == "cpu" and W.dtype == torch.float64 and W.numel() <= LARGEST and not energy.is_tempered
    return fits and library() is not None


def averaging(energy: Energy) -> Callable[[Tensor, Tensor | None], Averages]:
    """Averages under ``energy`` of states v (n, N) by the log of their density, (n,) or None, for weights all equal.

    What all sets of states share is laid out once.
    """
    N, M = energy.W.shape
    h_row = M + -M % LANES
    up, b = energy.W.new_zeros(N, h_row), energy.b.new_full((h_row,), -1e4)
    up[:, :M], b[:M] = energy.projection.T, energy.b
    laid = {"up": up, "b": b, "mu": energy.mu.contiguous(), "inverse_var": 1 / energy.var}

    def averages(v: Tensor, log_q: Tensor | None) -> Averages:
        n, v = len(v), v.contiguous()
        log_q = None if log_q is None else log_q.contiguous()
        parts = -(-n // CHUNK)
        room = {"free_energy": v.new_empty(n), **{name: v.new_empty(parts) for name in ("top", "weights", "squares")}}
        shapes = {"v_mean": (N,), "v2_mean": (N,), "h_mean": (h_row,), "vh_mean": (N, h_row)}
        means = {name: v.new_empty(parts, *shape) for name, shape in shapes.items()}
        sizes = {"n": n, "chunk": CHUNK, "n_visible": N, "n_hidden": M, "h_row": h_row, "weighted": log_q is not None}
        of_states = {"v": v.data_ptr(), "log_q": (v if log_q is None else log_q).data_ptr()}
        taken = structs.Averages(**sizes, **of_states, **addresses(laid | room | means))
        call("grbm_average", taken)
        mean_v, mean_v2, mean_h, mean_vh = (x[0] for x in means.values())
        found = Moments(mean_v, mean_v2, mean_h[:M], mean_vh[:, :M])
        return Averages(room["free_energy"], found, taken.log_weight, taken.share)

    return averages
