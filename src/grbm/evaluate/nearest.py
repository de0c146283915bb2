"""The training images nearest to given ones: whether a model draws copies of what it has seen."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.data.tables import Table

CHUNK = 2_000_000  # numbers of the table that are looked at together


class Nearest(NamedTuple):
    """The rows nearest to each of n images, the nearest first: their numbers (n, k) and Euclidean distances (n, k)."""

    rows: Tensor
    distance: Tensor


def nearest(images: Tensor, data: Table, k: int = 1) -> Nearest:
    """The ``k`` rows of ``data`` (R, N) that are nearest to each of ``images`` (n, N), pixel by pixel, in float64."""
    images, size = images.double(), max(1, CHUNK // data.shape[1])
    squares, numbers = images.new_empty(len(images), 0), torch.empty(len(images), 0, dtype=torch.long)
    for at in torch.split(torch.arange(len(data)), size):
        rows = data[at].double()
        found = images.square().sum(1, keepdim=True) + rows.square().sum(1) - 2 * images @ rows.T
        squares, numbers = torch.cat([squares, found], 1), torch.cat([numbers, at.expand(len(images), -1)], 1)
        squares, best = squares.topk(min(k, squares.shape[1]), largest=False)
        numbers = numbers.gather(1, best)
    return Nearest(numbers, squares.clamp_min(0).sqrt())
