"""Moments pooled and turned into the gradient in native code (`learning.c`), each number of theirs read once."""

import ctypes

import torch
from torch import Tensor

from grbm import memory
from grbm.model import GRBM, Energy
from grbm.moments import MomentSum, Pooled
from grbm.samplers.engines.compiled import library, n_threads
from grbm.samplers.engines.native_packing import padded
from grbm.samplers.engines.structs import Ascent, Pool, Sums

TOGETHER = 16  # as ROWS_TOGETHER in learning.c


def serves(*tensors: Tensor) -> bool:
    """Whether all these are of float32 on a CPU, with the last axis in one piece, and there is native code."""
    fit = all(x.device.type == "cpu" and x.dtype == torch.float32 and x.stride(-1) == 1 for x in tensors)
    return fit and library() is not None


def _sums(sums: MomentSum) -> Sums:
    v, v2, h, vh = sums.sums
    return Sums(
        len(v), v.stride(0), v2.stride(0), h.stride(0), vh.stride(0), vh.stride(1),
        v.data_ptr(), v2.data_ptr(), h.data_ptr(), vh.data_ptr(),
    )  # fmt: skip


def pool(data: MomentSum, chains: MomentSum, places: dict[str, Tensor]) -> None:
    """Fill ``places`` with the difference of both by moment, and with sums of v and h at data and v² under chains."""
    native = library()
    assert native is not None
    N, M = data.sums.vh.shape[1:]
    pointers = {name: places[name].data_ptr() for name in ("v", "v2", "h", "vh", "data_v", "data_h", "chains_v2")}
    every = Pool(N, M, data.count, chains.count, _sums(data), _sums(chains), **pointers)
    native.grbm_pool(ctypes.byref(every), n_threads())


def set_gradients(model: GRBM, energy: Energy, pooled: Pooled, *, centred: bool) -> Tensor:
    """`grbm.descent.set_gradients` for float32 on a CPU."""
    native = library()
    assert native is not None
    N, M = energy.n_visible, energy.n_hidden
    h_row, parts = padded(M), -(-N // TOGETHER)
    grads = {}
    for name in ("W", "b", "mu", "log_var"):
        parameter = model.get_parameter(name)
        if parameter.grad is None or not parameter.grad.is_contiguous():
            parameter.grad = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        grads[f"grad_{name}"] = parameter.grad
    squares = torch.empty(parts, dtype=torch.float64)
    room = {name: memory.empty(h_row).zero_() for name in ("slope_b", "offset_h")}
    room["columns"] = memory.empty(parts, h_row)
    tensors = pooled.difference._asdict() | grads | room | {
        "data_v": pooled.data_v, "data_h": pooled.data_h, "squares": squares,
        "W": energy.W, "mu": energy.mu, "var": energy.var,
    }  # fmt: skip
    pointers = {name: x.data_ptr() for name, x in tensors.items()}
    every = Ascent(N, M, h_row, centred, pooled.scale, pooled.n_data, **pointers)
    native.grbm_ascend(ctypes.byref(every), n_threads())
    return squares[0].sqrt().float()
