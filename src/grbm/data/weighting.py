"""Weights of rows: a row of weight 2 counts as it would twice, and one of weight 0 as if it were not there."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.core.errors import UserError
from grbm.core.randomness import generator
from grbm.data.tables import Table, spread

COPIES = 10  # Copies of a row of mean weight where weights have no common unit.
MOST = 1_000_000  # Maximum number of rows that are made so, beyond one for each row.
FEW = 100_000  # Rows that whole numbers may make however few rows have them.
UNITS = 10  # Parts of the least weight that are tried as a unit of all.


class Repeated(NamedTuple):
    """A table in which each row occurs as often as its weight says."""

    rows: Tensor  # their numbers (n',), those of a row together
    n_pass: int  # rows of a pass over it


def checked(weights: np.ndarray, n_rows: int, where: str) -> Tensor:
    """The weights (n,), float64. Raises UserError for one that is negative, missing or infinite, or if all are 0."""
    if weights.shape != (n_rows,):
        raise UserError(f"{where} must be {n_rows} numbers, one for each row, got shape {weights.shape}.")
    found = torch.from_numpy(weights.astype(np.float64))
    wrong = ~(found.isfinite() & (found >= 0))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        what = "missing" if found[row].isnan() else f"{float(found[row]):g}"
        raise UserError(f"{where} must be numbers of 0 or more, but that of row {row}, counting from 0, is {what}.")
    if not (found > 0).any():
        raise UserError(f"{where} must not all be 0.")
    return found


def repeated(weights: Tensor, seed: int) -> Repeated:
    """Repeat rows by their weights (n,): exactly where weights are whole, or multiples of a unit, and not too large.

    Others are rounded up or down by chance, so that every mean is right on average. A row of mean weight becomes ten
    copies, fewer of more than 100,000 rows; with ten, rounding adds some tenths of a percent to the variance of a mean.
    A pass is then as many rows as have a weight.

    Raises UserError where a single row has nearly all the weight.
    """
    n = int((weights > 0).sum())
    most = max(n, FEW, min(COPIES * n, MOST))
    if _is_whole(weights) and weights.sum() <= most:
        rows = rounded(weights, seed)
        return Repeated(rows, len(rows))
    weights = weights / weights.max()  # whose sum is finite
    least = float(weights[weights > 0].min())
    for k in range(1, UNITS + 1):
        times = weights * k / least
        if times.sum() <= most and bool((times - times.round()).abs().max() < 1e-9):
            return Repeated(rounded(times.round(), seed), n)
    total = max(n, min(COPIES * n, MOST))
    rows = rounded(weights * total / weights.sum(), seed)
    if n > 1 and bool((rows == rows[0]).all()):
        raise UserError(f"Row {int(rows[0])}, counting from 0, has nearly all the weight; training needs 2 rows.")
    return Repeated(rows, n)


def rounded(weights: Tensor, seed: int) -> Tensor:
    """Numbers of rows, each as often as its weight (n,), rounded up or down at random (systematic sampling)."""
    if _is_whole(weights):
        times = weights
    else:
        ends = weights.cumsum(0) + torch.rand((), generator=generator(seed, "weights"), dtype=torch.float64)
        times = ends.floor().diff(prepend=ends.new_zeros(1))
    return torch.arange(len(weights)).repeat_interleave(times.long())


def _is_whole(weights: Tensor) -> bool:
    return bool((weights == weights.round()).all())


def effective(weights: Tensor) -> float:
    """Number of rows of equal weight whose mean would be as certain (Kish 1965)."""
    share = weights / weights.max()  # whose square is finite
    return float(share.sum() ** 2 / share.square().sum())


def some_of(rows: Table, n: int, weights: Tensor | None = None, *, copies: bool = True) -> Tensor:
    """At most ``n`` rows of a table, evenly spaced; with ``weights``, as many of equal weight as the rows are worth.

    Heavy rows are there several times; without ``copies`` so few rows are chosen that each is there once.
    """
    if weights is None:
        return rows[spread(len(rows), n)]
    share = weights / weights.max()
    n = min(n, max(1, round(effective(weights)) if copies else int(share.sum())))
    at = (torch.arange(n) + 0.5) * (float(share.sum()) / n)
    numbers = torch.searchsorted(share.cumsum(0), at).clamp(max=len(rows) - 1)
    return rows[numbers]


def mean_and_error(x: Tensor, weights: Tensor | None = None) -> tuple[float, float]:
    """Mean of x (n,), weighted where ``weights`` are given, and its standard error, 0 for a single number."""
    n = len(x)
    if weights is None or bool((weights == weights[0]).all()):
        return float(x.mean()), float(x.std()) / n**0.5 if n > 1 else 0.0
    share = (weights / weights.max()).to(x)
    share = share / share.sum()
    mean = float((share * x).sum())
    n = int((weights > 0).sum())
    error = float((share * (x - mean)).norm()) * math.sqrt(n / (n - 1)) if n > 1 else 0.0
    return mean, error
