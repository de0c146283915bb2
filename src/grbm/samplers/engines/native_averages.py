"""Free energies of many states and weighted means over them in native code (`averages.c`), in float64."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from grbm.model import Energy
from grbm.samplers.engines import structs
from grbm.samplers.engines.compiled import call, library
from grbm.samplers.engines.native_packing import addresses
from grbm.samplers.moments import Moments

CHUNK = 256  # states of a part: its probabilities stay in a cache, and sums are those of any number of threads
LARGEST = 1 << 17  # weights; larger products are better left to PyTorch
LANES = 8  # that rows of hidden units are multiples of


def serves(energy: Energy) -> bool:
    """Whether averages under ``energy`` can be taken here: at one temperature, of sizes at which this is faster."""
    W = energy.W
    fits = W.device.type == "cpu" and W.dtype == torch.float64 and W.numel() <= LARGEST and not energy.is_tempered
    return fits and library() is not None


def averages(energy: Energy, v: Tensor, log_q: Tensor | None) -> tuple[Tensor, Moments]:
    """F(v) of states v (n, N), (n,), and means with weights exp(−F)/q, or with equal ones where ``log_q`` is None."""
    (n, N), M = v.shape, energy.n_hidden
    padding, parts = -M % LANES, -(-n // CHUNK)
    v, h_row = v.contiguous(), M + padding
    tensors = {
        "v": v,
        "up": functional.pad(energy.projection.T, (0, padding)).contiguous(),
        "b": functional.pad(energy.b, (0, padding), value=-1e4),
        "mu": energy.mu.contiguous(),
        "inverse_var": 1 / energy.var,
        "log_q": v if log_q is None else log_q.contiguous(),
        "free_energy": v.new_empty(n),
        "top": v.new_empty(parts),
        "sum_v": v.new_empty(parts, N),
        "sum_v2": v.new_empty(parts, N),
        "sum_h": v.new_empty(parts, h_row),
        "sum_vh": v.new_empty(parts, N, h_row),
    }
    sizes = {"n": n, "chunk": CHUNK, "n_visible": N, "n_hidden": M, "h_row": h_row, "weighted": log_q is not None}
    call("grbm_average", structs.Averages(**sizes, **addresses(tensors)))
    free_energy, top = tensors["free_energy"], tensors["top"]
    shares = (top - (math.log(n) if log_q is None else (-free_energy - log_q).logsumexp(0))).exp()
    means = (torch.tensordot(shares, tensors[name], 1) for name in ("sum_v", "sum_v2", "sum_h", "sum_vh"))
    mean_v, mean_v2, mean_h, mean_vh = means
    return free_energy, Moments(mean_v, mean_v2, mean_h[:M], mean_vh[:, :M])
