"""Where numbers are computed: the device that a name means, how many threads, how much memory there is."""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from grbm.core.errors import UserError

WORTH_A_GPU = 1e8  # work of an update above which an H100 was faster than 16 cores; docs/lab/performance.md
is_child = False  # whether this process was forked


def pick_device(name: str, work: float = math.inf) -> torch.device:
    """The device called ``name``. Raises UserError where it cannot be used.

    ``auto`` is a GPU if there is one and an update's ``work``, weights x chains x steps, is enough for it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() and work >= WORTH_A_GPU else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # also where a device holds no numbers
    except Exception as error:  # PyTorch raises many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"The device {name} is not usable here ({reason}); use cpu or auto.") from error
    return device


@contextmanager
def threads(n_threads: int | None) -> Iterator[None]:
    """Let PyTorch, NumPy and scikit-learn compute with so many threads inside; None leaves their number as it is.

    In a forked process there is one, whatever is asked for.
    """
    if n_threads is None or is_child:
        yield
        return
    before, pools = torch.get_num_threads(), sys.modules.get("threadpoolctl")  # which scikit-learn imports
    torch.set_num_threads(n_threads)
    try:
        with nullcontext() if pools is None else pools.threadpool_limits(n_threads):
            yield
    finally:
        torch.set_num_threads(before)


def half(device: torch.device) -> torch.dtype | None:
    """The half-precision dtype in which a device multiplies large matrices several times as fast as in float32, if any.

    On a CPU that takes matrix units (AMX); vectors of such numbers are left alone, since PyTorch's were not timed.
    """
    if device.type == "cuda":
        return torch.float16
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", None)  # PyTorch has no public name for it
    return torch.bfloat16 if device.type == "cpu" and has_tiles is not None and has_tiles() else None


def memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes of memory of a device: of a CPU those of the machine, or of its container; None where nobody tells."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    found = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int((Path("/sys/fs/cgroup") / limit).read_text()))
    return min(found, default=None)


def require_memory(n_bytes: float, what: str, remedy: str, device: torch.device | str = "cpu") -> None:
    """Raise UserError where ``what`` needs more memory than the whole device has; the system may promise it."""
    there = memory(device)
    if there is not None and n_bytes > there:
        raise UserError(f"{what} needs {n_bytes / 1e9:,.0f} GB of memory, and there are {there / 1e9:,.0f}; {remedy}.")


def _go_on_alone() -> None:
    """Limit a forked child to one thread: OpenMP's threads do not survive a fork, and would be waited for."""
    global is_child
    is_child = True
    torch.set_num_threads(1)
    if (threadpoolctl := sys.modules.get("threadpoolctl")) is not None:
        threadpoolctl.threadpool_limits(1, user_api="openmp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_go_on_alone)
