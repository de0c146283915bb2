"""Where numbers are computed: the device that a name means, and how many threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grbm.errors import UserError


def pick_device(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one. Raises UserError where it cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # also where a device holds no numbers
    except Exception as error:  # PyTorch raises many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"The device {name} is not usable here ({reason}); use cpu or auto.") from error
    return device


@contextmanager
def threads(n_threads: int | None) -> Iterator[None]:
    """Let PyTorch compute with so many threads inside the block; None leaves their number as it is."""
    if n_threads is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
