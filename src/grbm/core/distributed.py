"""Processes that share a run: each holds some blocks of chains and rows; moments are added once per update."""

import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from grbm.core import memory
from grbm.core.errors import LostProcessError, UserError
from grbm.core.randomness import Blocks, seed_of

T = TypeVar("T")


class ProcessGroup:
    """The processes that share a run, seen from process ``rank`` of ``world_size``; by default the only one.

    A process adds "stop" or "save" to its ``requests``; ``agreed`` are those that all know of. Requests travel with the
    moments of the next update, so that all heed them after the same one.
    """

    REQUESTS = ("stop", "save")

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self.requests: set[str] = set()
        self.agreed: set[str] = set()

    @property
    def is_leader(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def part(self, n: int) -> slice:
        """Which of ``n`` rows or chains are this process's own."""
        return slice(self.rank * n // self.world_size, (self.rank + 1) * n // self.world_size)

    def blocks(self, total: int, seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> Blocks:
        """The random numbers of this process's blocks among ``total``."""
        return Blocks(seed_of(seed, *purpose), total, range(total)[self.part(total)], device)

    def places(
        self, shapes: dict[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A buffer for `exchange`, and in it places by name for what is to be added up; on a CPU always float64."""
        sizes = [math.prod(shape) for shape in shapes.values()]
        n = sum(sizes) + len(self.REQUESTS)
        if device.type == "cpu":
            buffer = memory.empty(2 * n).view(torch.float64)
        else:
            buffer = torch.empty(n, dtype=dtype, device=device)
        parts = torch.split(buffer, [*sizes, len(self.REQUESTS)])[:-1]
        return buffer, {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def heed_own(self) -> None:
        """Where this is the only process, agree with its requests."""
        self.agreed = set(self.requests)

    def exchange(self, buffer: Tensor) -> None:
        """Add over processes what each put into the `places` of its buffer, requests included."""
        if self.world_size == 1:
            self.heed_own()
            return
        requests = buffer[-len(self.REQUESTS) :]
        requests.copy_(torch.tensor([float(request in self.requests) for request in self.REQUESTS]))
        with _noticing_loss():
            dist.all_reduce(buffer)
        self.agreed = {request for request, n in zip(self.REQUESTS, requests.tolist(), strict=True) if n > 0}

    def all_gather(self, x: Tensor, axis: int = -2) -> Tensor:
        """The chains of all processes, in order, along ``axis``."""
        if self.world_size == 1:
            return x
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.world_size)]
        with _noticing_loss():
            dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, axis)

    def broadcast(self, value: Any = None) -> Any:
        """The leader's ``value``, in every process; also a meeting point of all."""
        if self.world_size == 1:
            return value
        box = [value]
        with _noticing_loss():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def on_leader(self, action: Callable[[], T]) -> T | None:
        """Run ``action`` in the leader alone; where it fails on bad input, it fails in all, and nobody waits."""
        result, failure = None, None
        if self.is_leader:
            try:
                result = action()
            except (UserError, OSError) as error:
                failure = error
        failure = self.broadcast(failure)
        if failure is not None:
            failure.told = not self.is_leader  # type: ignore[union-attr]
            raise failure
        return result

    def agree(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all processes hold the same numbers, as they do unless their machines compute differently."""
        if self.world_size == 1:
            return True
        digest = torch.stack([x.detach().double().sum() for x in tensors])
        low, high = digest.clone(), digest.clone()
        with _noticing_loss():
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
        return torch.equal(low, high)


@contextmanager
def _noticing_loss() -> Iterator[None]:
    """An exchange that fails has lost a partner; with gloo PyTorch has no kind of error of its own for that."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or dist.get_backend() == "gloo":
            raise LostProcessError(str(error)) from error
        raise


ALONE = ProcessGroup()


def join(device: str) -> tuple[ProcessGroup, str]:
    """The process group and this process's device: under ``torchrun`` its part of the job, else the whole run.

    Raises UserError where ``torchrun`` started more processes per machine than it has GPUs.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1 or not dist.is_available():
        return ProcessGroup(), device
    local_rank = int(os.environ["LOCAL_RANK"])
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda:"):
        raise UserError(f"Each process of torchrun takes a GPU of its own: --device cuda in place of {device}.")
    if device == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"Process {local_rank} of this machine has no GPU (it has {torch.cuda.device_count()}); start as many "
                f"processes per machine as it has GPUs, or add --device cpu."
            )
        device = f"cuda:{local_rank}"
        torch.cuda.set_device(local_rank)
    if not dist.is_initialized():
        _connect("nccl" if device.startswith("cuda") else "gloo", world_size)
    return ProcessGroup(dist.get_rank(), world_size), device


def _connect(backend: str, world_size: int) -> None:
    """Join the process group, through a meeting point of its own.

    The agent's store outlives a restart, and with it the addresses of the dead, which the living would wait for. On
    several machines, whose agents count restarts each for itself, the first process therefore opens a new store and
    leaves its address in the agent's; where that is still an old one, nobody answers there, and the others ask again.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend)
        return
    rank, patience = int(os.environ["RANK"]), timedelta(minutes=5)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agent = dist.TCPStore(host, port, is_master=False, timeout=patience)  # type: ignore[attr-defined]
    if os.environ.get("GROUP_WORLD_SIZE") == "1":  # one agent counts the restarts of all: new names are enough
        names = f"grbm/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        renamed = dist.PrefixStore(names, agent)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=renamed, rank=rank, world_size=world_size)
        return
    store: Any = None
    if rank == 0:
        with socket.create_connection((host, port)) as line:
            own = line.getsockname()[0]  # how the others reach this machine
        store = dist.TCPStore(own, 0, world_size, True, wait_for_workers=False)  # type: ignore[attr-defined]
        agent.set("grbm/address", f"{own} {store.port}")
    deadline = time.monotonic() + patience.total_seconds()
    while store is None:
        where, number = agent.get("grbm/address").decode().rsplit(" ", 1)
        try:
            socket.create_connection((where, int(number)), timeout=5).close()
            store = dist.TCPStore(where, int(number), world_size, False, timeout=patience)  # type: ignore[attr-defined]
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def lost(error: Exception) -> bool:
    """Whether ``error`` means that another process of the job has died, whose own message is the one to read."""
    return isinstance(error, LostProcessError) or (dist.is_available() and isinstance(error, dist.DistError))


def leave() -> None:
    """Close the connections to the other processes, if there are any."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def torchrun_id() -> str | None:
    """Name of this ``torchrun`` job, which stays through its restarts; None outside of one."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name in (None, "", "none"):  # not every way to start it gives a name
        return f"{socket.gethostname()} {os.getppid()}" if "TORCHELASTIC_RESTART_COUNT" in os.environ else None
    return name
