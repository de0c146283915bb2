"""Schedules over steps k = 0..n−1."""

import functools
import math

import torch
from torch import Tensor


def cosine(k: int, n: int) -> float:
    """½ (1 + cos(kπ/n)) (Eq. 22). Counted from k = 0, so that the first step is full and n = 1 still moves."""
    return 0.5 * (1 + math.cos(math.pi * k / n))


@functools.cache
def cosine_steps(n: int, device: torch.device | str = "cpu") -> Tensor:
    """The cosine schedule as a float64 tensor (n,).

    It is kept for good: a copy from the host would make it wait for a GPU, whose recorded updates go on to read it.
    """
    return torch.tensor([cosine(k, n) for k in range(n)], dtype=torch.float64, device=device)
