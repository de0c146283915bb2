"""Bounds of the columns of a table (`grbm.data.bounds`): told, or found where a scale without bounds describes them."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from grbm.core.errors import UserError
from grbm.data.bounds import UNBOUNDED, Bounds
from grbm.data.config import read_pair
from grbm.data.tables import ColumnStatistics, spread
from grbm.data.whitening import WIDEST_TABLE, relations
from grbm.model.censoring import UNCENSORED, Censoring

MANY = 20_000  # Maximum number of rows in which bounds are looked for.
FEWEST = 30  # Fewest different numbers of a column whose bounds are looked for.
USUAL = ((0.0, math.inf), (0.0, 1.0), (0.0, 100.0))  # Bounds that are looked for: of amounts, shares and percentages.
REACH = 0.5  # Least share of the way to an upper bound that the numbers of a column go.
GAIN = 0.02  # Least gain in nats a row, where it is also two standard errors.
KEPT = 1e-9  # Share of a column's range that numbers may be off after the way to the scale of `Bounds` and back.
SHOWN = 6  # Columns in a sentence.

Told = Mapping[str | int | None, tuple[float, float]]  # bounds by name or number of a column; None: of all columns


def read_bounds(texts: Sequence[str]) -> tuple[bool, Told]:
    """Read "auto", "LOW,HIGH" of all columns and "NAME=LOW,HIGH" of one; raise UserError for other texts."""
    is_auto, told = False, dict[str | int | None, tuple[float, float]]()
    for text in texts:
        name, equals, ends = text.rpartition("=")
        if text == "auto":
            is_auto = True
        elif text != "none":
            if (pair := read_pair(ends)) is None or not any(map(math.isfinite, pair)):
                raise UserError(
                    f"Bounds are auto, LOW,HIGH or NAME=LOW,HIGH, such as 'weight=0,' or 'share=0,1'; got {text!r}."
                )
            column = name if equals else None
            if told.get(column, pair) != pair:
                raise UserError(f"Bounds of {column or 'all columns'} are given twice, and differ; give them once.")
            told[column] = pair
    return is_auto, told


def bounds_of(
    table: torch.Tensor,
    *,
    is_auto: bool,
    told: Told,
    without: torch.Tensor,
    limits: Censoring = UNCENSORED,
    stats: Sequence[ColumnStatistics] = (),
    columns: Sequence[str] = (),
    where: str = "X",
) -> Bounds:
    """Return the bounds of the columns of a table (n, N); NaN is no number.

    Where ``is_auto``, a column has those of 0 and infinity, 1 or 100 between which all its numbers lie and with which
    one normal distribution of `Bounds.inward` describes it best, if by more than chance better than one of the column
    itself. It has none where it is a linear function of others.

    Parameters
    ----------
    table : Tensor
    is_auto : bool
    told : mapping
        Bounds by name or number of a column, None for all; they come before those that are found.
    without : Tensor
        (N,) bool, columns that have none: coarse ones, whose draws are numbers that occur.
    limits : Censoring
        Limits of the columns, which bounds must lie beyond. Values at a limit do not count where bounds are looked for.
    stats : sequence of ColumnStatistics
        Of rows that bounds must hold for, beside those of the table.
    columns : sequence of str
        Names of the columns; none where they have none.
    where : str
        Name of the table in errors.

    Raises
    ------
    UserError
        For columns that the table does not have, numbers at bounds or beyond, and told bounds of a column that is a
        linear function of others, or is coarse.
    """
    if not is_auto and not told:
        return UNBOUNDED
    without = without.expand(table.shape[1])
    n, numbers = table.shape[1], table.double()
    low = torch.where(numbers.isnan(), math.inf, numbers).amin(0)
    high = torch.where(numbers.isnan(), -math.inf, numbers).amax(0)
    for more in stats:
        low, high = torch.minimum(low, more.low), torch.maximum(high, more.high)
    some = numbers[spread(len(numbers), MANY)].numpy()
    lowest, highest = (end.expand(n) for end in limits)
    related = dict(relations(some)) if n <= WIDEST_TABLE else {}
    found = Bounds(torch.full((n,), -math.inf, dtype=torch.float64), torch.full((n,), math.inf, dtype=torch.float64))
    everyone = told.get(None)
    if everyone is not None:
        varies = ~without & (low < high)  # Constant columns are not learned.
        found.low[varies], found.high[varies] = everyone
    for k in range(n) if is_auto and everyone is None else ():
        if not without[k] and not any(k in (column, *others) for column, others in related.items()):
            x = some[:, k]
            inside = x[(x > float(lowest[k])) & (x < float(highest[k]))]
            found.low[k], found.high[k] = _usual(inside, float(low[k]), float(high[k]))
    by_column = dict[int, tuple[float, float]]()
    for name, ends in told.items():
        if name is not None:
            k = _number(name, columns, n, where)
            if without[k]:
                raise UserError(f"{where}, {_name(k, columns)}, is coarse, and needs no bounds: leave them out.")
            if by_column.setdefault(k, ends) != ends:
                raise UserError(f"Bounds of {_name(k, columns)} are given twice, and differ; give them once.")
            found.low[k], found.high[k] = ends
    for k in (found.is_bounded & ((low <= found.low) | (high >= found.high))).nonzero()[:1, 0].tolist():
        raise UserError(
            f"{where}, {_name(k, columns)}, has numbers from {float(low[k]):g} to {float(high[k]):g}, which must be "
            f"{found.words(k)}; give wider bounds. If many numbers lie at an end, give a limit (censor) in place of "
            f"bounds."
        )
    lost = (found.outward(found.known(torch.stack([low, high]))) - torch.stack([low, high])).abs().amax(0)
    for k in (found.is_bounded & (low < high) & (lost > KEPT * (high - low))).nonzero()[:1, 0].tolist():
        raise UserError(
            f"{where}, {_name(k, columns)}, has numbers from {float(low[k]):g} to {float(high[k]):g}, which cannot be "
            f"told apart at their distance from bounds: {found.words(k)}. Give nearer bounds, or none."
        )
    for k in (k for k in related if found.is_bounded[[k, *related[k]]].any()):
        others = ", ".join(_name(other, columns) for other in related[k])
        raise UserError(
            f"{where}, {_name(k, columns)}, is a linear function of {others}: drop it, or give none of them bounds."
        )
    return found if found.n else UNBOUNDED


def _usual(x: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """The bounds of a column x (n,) with numbers from ``low`` to ``high``; infinite where none describe it better."""
    x, best, found = x[~np.isnan(x)], GAIN, (-math.inf, math.inf)
    if low <= 0 or len(np.unique(x)) < FEWEST:
        return found
    as_it_is = _log_normal_density(x)
    for ends in USUAL:
        if high < ends[1] and (math.isinf(ends[1]) or high > REACH * ends[1]):
            bounds = Bounds(*(torch.tensor([end], dtype=torch.float64) for end in ends))
            rows = torch.from_numpy(x)[:, None]
            gain = (
                _log_normal_density(bounds.inward(rows)[:, 0].numpy())
                + bounds.log_slopes(rows)[:, 0].numpy()
                - as_it_is
            )
            mean, error = float(gain.mean()), float(gain.std() / math.sqrt(len(gain)))
            if mean > best and mean > 2 * error:
                best, found = mean, ends
    return found


def _log_normal_density(x: np.ndarray) -> np.ndarray:
    """Log-density of numbers x (n,) under the normal distribution with their mean and variance."""
    var = x.var()
    return np.asarray(-0.5 * ((x - x.mean()) ** 2 / var + np.log(2 * np.pi * var)))


def _number(name: str | int, columns: Sequence[str], n: int, where: str) -> int:
    """The number of the column of that name."""
    for spelt in (name, name.strip()) if isinstance(name, str) else ():
        if spelt in columns:
            return list(columns).index(spelt)
    if str(name).isdecimal() and int(name) < n:
        return int(name)
    listed = ", ".join(columns[:SHOWN]) + (" ..." if len(columns) > SHOWN else "") if columns else f"0 to {n - 1}"
    raise UserError(f"Bounds are given for {name!r}, which is no column that is learned of {where}; it has {listed}.")


def _name(column: int, columns: Sequence[str]) -> str:
    return f"column {columns[column]!r}" if columns else f"column {column}"


def sentences(bounds: Bounds, columns: Sequence[str], *, asked: bool = False) -> Iterator[str]:
    """Say which columns are learned within bounds, or that none is where this was ``asked`` for."""
    if asked and not bounds.n:
        yield "No column is learned within bounds: none has usual ones, or those that have are coarse or have limits."
    if bounds.n:
        yield f"Draws keep the bounds of {_listed(bounds, columns)}. Logarithms of distances to them are learned."


def advice(found: Bounds, columns: Sequence[str]) -> Iterator[str]:
    """Say which columns have usual bounds, ``found`` as `bounds_of` finds them, and what keeps them."""
    if found.n:
        yield (
            f"All numbers keep the bounds of {_listed(found, columns)}, but draws may not. To keep draws within them, "
            f"add --dataset.bounds auto, or --bounds auto for short."
        )


def _listed(bounds: Bounds, columns: Sequence[str]) -> str:
    """The columns with bounds, and these."""
    which = bounds.is_bounded.nonzero()[:, 0].tolist()
    named = [f"{_name(k, columns)} ({bounds.words(k)})" for k in which[:SHOWN]]
    return ", ".join(named) + (f" and {len(which) - SHOWN} others" if len(which) > SHOWN else "")
