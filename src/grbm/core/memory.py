"""Memory for large tensors on a CPU, used again once no tensor has it.

A fresh page costs the system more time than the numbers in it cost the machine: sums of the size of W, wanted anew in
every update, would take as long as a step of the chains.
"""

import math
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress

import torch
from torch import Tensor

LARGE = 1 << 20  # bytes from which memory is kept
KEPT = 1 << 31  # bytes that are kept while nobody has them
IDLE, LATELY = 200 << 20, 100  # bytes of them at most whose size was not asked for in the last so many requests

_free: list[mmap.mmap] = []  # the piece given back last at the end
_returned: deque[mmap.mmap] = deque()  # given back since one was last looked for
_asked: dict[int, int] = {}  # by size, the request that was for it last
_lock = threading.Lock()


def _unlock() -> None:
    """In a process that was forked while another thread held the lock."""
    global _lock
    _lock = threading.Lock()


def empty(*shape: int) -> Tensor:
    """A float32 tensor on the CPU, to be written before it is read."""
    n_bytes = 4 * math.prod(shape)
    if n_bytes < LARGE or sys.platform == "win32":
        return torch.empty(*shape, dtype=torch.float32, device="cpu")
    piece = _piece(n_bytes)
    lent = memoryview(piece)
    weakref.finalize(lent, _give_back, piece).atexit = False  # the tensor's storage has the view
    return torch.frombuffer(lent, dtype=torch.float32).view(shape)


def clone(x: Tensor) -> Tensor:
    """A copy of ``x`` without its gradient, in such memory where it is large and of float32 on a CPU."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or 4 * x.numel() < LARGE:
        return x.detach().clone(memory_format=torch.contiguous_format)
    return empty(*x.shape).copy_(x.detach())


def _piece(n_bytes: int) -> mmap.mmap:
    with _lock:
        while _returned:
            _free.append(_returned.popleft())
        now = _asked[n_bytes] = max(_asked.values(), default=0) + 1
        while sum(map(len, _free)) > KEPT:
            del _free[0]
        idle = [piece for piece in _free if _asked[len(piece)] < now - LATELY]
        while sum(map(len, idle)) > IDLE:
            _free.remove(idle.pop(0))
        for k in reversed(range(len(_free))):
            if len(_free[k]) == n_bytes:
                return _free.pop(k)
    made = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            made.madvise(mmap.MADV_HUGEPAGE)
    return made


def _give_back(piece: mmap.mmap) -> None:
    _returned.append(piece)  # at any moment, even while a piece is looked for: sorted in by the next that looks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
