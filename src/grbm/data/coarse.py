"""Finding coarse columns of a table (`grbm.data.grid`) from their numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from grbm.core.errors import UserError
from grbm.data.grid import CONTINUOUS, Grid
from grbm.data.tables import Table, spread
from grbm.data.whitening import WIDEST_TABLE, relations

MANY = 20_000  # Maximum number of rows in which steps are looked for.
FEWEST_ROWS = 20
SHARE = 1 / 3  # Maximum number of different numbers, as a share of all, of a column of few and of one that is named.
MOST_STEPS = 20  # Maximum number of steps from the lowest to the highest number of a coarse column, for each row.
FEW = 20  # Maximum number of different numbers that alone are drawn, however far apart; of more, multiples of a step.
ROUNDING = 1e-6  # Share of the range below which differences of numbers are rounding.
SHOWN = 6  # Columns in a sentence.


def grid_of(table: Table, coarse: str, censor: str = "none", *, share: float = 1.0) -> Grid:
    """Find the steps of the columns of a table (n, N), where ``coarse`` is "auto"; NaN is no number.

    A column is coarse if few different numbers occur in it, up to 20, or more that are equal steps apart; and if it has
    no linear relation with others, which cells of its own would break. A column of which more than this ``share`` of
    the numbers differ is left out.

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
    return grid if grid.n else CONTINUOUS


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
        return ANY
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
