"""Moments pooled and turned into the gradient in native code (`learning.c`), each number of theirs read once."""

import ctypes
from collections.abc import Iterable

import torch
from torch import Tensor

from grbm import memory
from grbm.model import GRBM, Energy
from grbm.moments import MomentSum, Pooled
from grbm.samplers.engines.compiled import library, n_threads
from grbm.samplers.engines.native_packing import padded
from grbm.samplers.engines.structs import Ascent, Descent, Follower, Pool, Sums

TOGETHER = 16  # as ROWS_TOGETHER in learning.c


def serves(*tensors: Tensor) -> bool:
    """Whether all these are of float32 on a CPU, with the last axis in one piece, and there is native code."""
    fit = all(
        x.device.type == "cpu" and x.dtype == torch.float32 and (x.ndim == 0 or x.stride(-1) == 1) for x in tensors
    )
    return fit and library() is not None


def sums_in(sums: MomentSum) -> Sums:
    """Where they lie."""
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
    every = Pool(N, M, data.count, chains.count, sums_in(data), sums_in(chains), **pointers)
    native.grbm_pool(ctypes.byref(every), n_threads())


def gradients(model: GRBM) -> dict[str, Tensor]:
    """Where the gradients of the four parameters are written, by their names in C: over the last ones."""
    grads = {}
    for name in ("W", "b", "mu", "log_var"):
        parameter = model.get_parameter(name)
        if parameter.grad is None or not parameter.grad.is_contiguous():
            parameter.grad = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        grads[f"grad_{name}"] = parameter.grad
    return grads


def set_gradients(model: GRBM, energy: Energy, pooled: Pooled, *, centred: bool) -> Tensor:
    """`grbm.descent.set_gradients` for float32 on a CPU."""
    native = library()
    assert native is not None
    N, M = energy.n_visible, energy.n_hidden
    h_row, parts = padded(M), -(-N // TOGETHER)
    assert pooled.difference is not None
    squares = torch.empty(parts, dtype=torch.float64)
    room = {name: memory.empty(h_row).zero_() for name in ("slope_b", "offset_h")}
    room["columns"] = memory.empty(parts, h_row)
    tensors = pooled.difference._asdict() | gradients(model) | room | {
        "data_v": pooled.data_v, "data_h": pooled.data_h, "squares": squares,
        "W": energy.W, "mu": energy.mu, "var": energy.var,
    }  # fmt: skip
    pointers = {name: x.data_ptr() for name, x in tensors.items()}
    every = Ascent(N, M, h_row, centred, pooled.scale, pooled.n_data, None, **pointers)
    native.grbm_ascend(ctypes.byref(every), n_threads())
    return squares[0].sqrt().float()


def descend(followers: Iterable[tuple[Tensor, float, float]], clip: float) -> None:
    """Parameters x follow ``clip`` times their gradients downhill: x − rate · gradient, and not below ``least``.

    ``followers`` are (x, rate, least), contiguous and of float32 as their gradients are.
    """
    native = library()
    assert native is not None
    following = [(x, x.grad, rate, least) for x, rate, least in followers if x.grad is not None]
    every = [Follower(x.numel(), x.data_ptr(), grad.data_ptr(), *numbers) for x, grad, *numbers in following]
    held = (Follower * len(every))(*every)
    native.grbm_descend(ctypes.byref(Descent(len(every), ctypes.addressof(held), clip)), n_threads())
    torch.autograd.graph.increment_version([x for pair in following for x in pair[:2]])
