"""Finding coarse columns of a table (`grbm.data.grid`) from their numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from grbm.core.errors import UserError
from grbm.data.grid import CONTINUOUS, EQUAL, Grid
from grbm.data.tables import Table, spread
from grbm.data.whitening import WIDEST_TABLE, relations

MANY = 20_000  # Maximum number of rows in which steps are looked for.
FEWEST_ROWS = 20
SHARE = 1 / 3  # Maximum number of different numbers, as a share of all, of a column of few and of one that is named.
MOST_STEPS = 20  # Maximum number of steps from the lowest to the highest number of a coarse column, for each row.
FEW = 20  # Maximum number of different numbers that alone are drawn, however far apart; of more, multiples of a step.
REPEATED = 20  # Least mean number of rows with one number, where more than `FEW` of no step are drawn alone.
COMMON = 0.2  # Least share of the rows with one number, where a column is learned as normal scores.
FEWEST_IN_STRETCH = 5  # Fewest rows between two knots of scores of a column with steps, and the root of all rows.
ROUNDING = 1e-6  # Share of the range below which differences of numbers are rounding.
SHOWN = 6  # Columns in a sentence.


def grid_of(table: Table, coarse: str, censor: str = "none", *, share: float = 1.0) -> Grid:
    """Find the steps of the columns of a table (n, N), where ``coarse`` is "auto"; NaN is no number.

    A column is coarse if few different numbers occur in it, up to 20, or more that are equal steps apart, or each of
    them in 20 rows; and if it has no linear relation with others, which cells of its own would break. A column of which
    more than this ``share`` of the numbers differ is left out. Where one number is in a fifth of the rows, learning
    sees normal scores.

    Raises UserError for another text than "auto" and "none", for limits beside steps, and for a table on a disk.
    """
    if coarse == "none":
        return CONTINUOUS
    if coarse != "auto":
        raise UserError(f"coarse is auto or none, got {coarse!r}.")
    if censor != "none":
        raise UserError("Coarse columns do not go with limits: choose coarse none, or censor none.")
    if not isinstance(table, torch.Tensor):
        raise UserError("Coarse columns go with tables that fit into memory: raise memory, or choose coarse none.")
    some = table[spread(len(table), MANY)].double().numpy()
    found = [_occurring(column, share) for column in some.T]
    for column, others in relations(some) if some.shape[1] <= WIDEST_TABLE else ():
        for k in (column, *others):
            found[k] = ANY
    step, origin, low = torch.tensor([few[:3] for few in found], dtype=torch.float64).T.contiguous()
    most = max(1, *(len(few.values) for few in found))
    values = torch.full((len(found), most), torch.nan, dtype=torch.float64)
    for row, few in zip(values, found, strict=True):
        row[: len(few.values)] = torch.from_numpy(few.values)
    grid = Grid(step, origin, low, values)
    return _with_scores(grid, some) if grid.n else CONTINUOUS


def _with_scores(grid: Grid, rows: np.ndarray) -> Grid:
    """The grid with normal scores of columns of ``rows`` (n, N) of which one number is common."""
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    lows, widths = (part.numpy() for part in grid.cells(torch.from_numpy(rows)))
    for k in grid.is_coarse.nonzero()[:, 0].tolist():
        known = (~np.isnan(rows[:, k])).nonzero()[0]
        _, first, counts = np.unique(rows[known, k], return_index=True, return_counts=True)
        if counts.max() < COMMON * len(known):
            continue
        low, width = lows[known[first], k], widths[known[first], k]
        if grid.step[k] == 0:  # no others are drawn, and each is a stretch
            found[k] = np.append(low, low[-1] + width[-1]), np.cumsum([0, *counts]) / len(known)
        else:
            found[k] = _stretches(low, low + width, counts, max(FEWEST_IN_STRETCH, math.isqrt(len(known))))
    if not found:
        return grid
    shape = len(grid.step), max(len(knots) for knots, _ in found.values())
    knots, levels = (torch.full(shape, math.nan, dtype=torch.float64) for _ in range(2))
    for k, both in found.items():
        for row, numbers in zip((knots[k], levels[k]), both, strict=True):
            row[: len(numbers)] = torch.from_numpy(numbers)
    return grid._replace(knots=knots, levels=levels)


def _stretches(low: np.ndarray, high: np.ndarray, counts: np.ndarray, fewest: int) -> tuple[np.ndarray, np.ndarray]:
    """Knots (K,) and shares of rows below them, of cells from ``low`` to ``high`` (V,) with ``counts`` of rows.

    Between two knots are at least the ``fewest`` rows, but beside a cell that has so many by itself. Beyond either end,
    and in a gap before such a cell, is half a row.
    """
    knots, rows, pending = [float(low[0])], list[float](), 0
    for start, end, count in zip(low, high, counts, strict=True):
        if count >= fewest and start - knots[-1] > EQUAL * (end - start):
            knots.append(float(start))
            rows.append(max(pending, 0.5))
            pending = 0
        pending += int(count)
        if pending >= fewest:
            knots.append(float(end))
            rows.append(pending)
            is_alone, pending = count >= fewest, 0
    if pending and is_alone:
        knots.append(float(high[-1]))
        rows.append(pending)
    elif pending:
        knots[-1] = float(high[-1])
        rows[-1] += pending
    below = 0.5 + np.cumsum([0.0, *rows])
    return np.array(knots), below / (below[-1] + 0.5)


class Occurring(NamedTuple):
    """Numbers that occur in a column."""

    step: float
    origin: float
    low: float
    values: np.ndarray


ANY = Occurring(0.0, 0.0, -math.inf, np.empty(0))


def _occurring(x: np.ndarray, share: float) -> Occurring:
    """Find the numbers that occur in a column x (n,), of which at most this ``share`` differ."""
    x = x[~np.isnan(x)]
    values = np.unique(x)
    if len(x) < FEWEST_ROWS or not 2 <= len(values) <= share * len(x):
        return ANY
    if len(values) <= min(FEW, SHARE * len(x)):
        return ANY._replace(values=values)
    low, high = float(values[0]), float(values[-1])
    tolerance = ROUNDING * (high - low)
    step = 0.0
    for difference in np.diff(values):
        step = _divisor(step, float(difference), tolerance)
    if not step > (high - low) / (MOST_STEPS * len(x)):
        return ANY._replace(values=values) if REPEATED * len(values) <= len(x) else ANY
    step = (high - low) / round((high - low) / step)
    least = low - step * math.floor(low / step + ROUNDING)  # the smallest multiple that is not negative
    return Occurring(step, low, least if low >= 0 else -math.inf, np.empty(0))


def _divisor(a: float, b: float, tolerance: float) -> float:
    """Greatest number that both are multiples of, to a tolerance (Euclid)."""
    while a > tolerance:
        a, b = b % a, a
        if b - a < tolerance:  # the rest of a division may be just below the divisor
            a = 0.0
    return b


def sentence(grid: Grid, names: Sequence[str]) -> str:
    """Say which columns of those ``names`` are coarse, and what learns them so."""
    which = grid.is_coarse.nonzero()[:, 0].tolist()
    listed = ", ".join(names[k] for k in which[:SHOWN])
    more = f" and {len(which) - SHOWN} others" if len(which) > SHOWN else ""
    return (
        f"The same numbers occur again and again in {listed}{more}. Training treats them as any other. For densities "
        f"that mean something there, and draws that are such numbers, add --dataset.coarse auto."
    )
