"""Limits at which the columns of a table stop: given, or found where many values equal the lowest or highest."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from grbm.core.errors import UserError
from grbm.data.config import read_limits
from grbm.data.tables import ColumnStatistics, Table, spread
from grbm.model.censoring import UNCENSORED, Censoring

MANY = 20_000  # Maximum number of rows that limits are looked for in.
PIXELS = 0.002  # Least share of all values of pictures at an end, where it is a limit.
SHARE, TIMES = 0.05, 3  # Least share of a column's values at an end, and how many times the most frequent value inside.
FEWEST_INSIDE = 10  # Fewest different values inside: columns of a few values have none that are limits.


def limits_of(
    table: Table,
    stats: ColumnStatistics,
    censor: str,
    *,
    same_unit: bool,
    marked: Censoring = UNCENSORED,
    where: str = "X",
) -> Censoring:
    """Return the limits of the columns of a table (n, N).

    Parameters
    ----------
    table : Table
    stats : ColumnStatistics
        Of all its rows.
    censor : str
        "none"; "marks", for those ``marked`` in a file; "auto", for these and those that are found; or "LOW,HIGH" for
        all columns, either of which may be empty.
    same_unit : bool
        True for columns of one unit, such as pixels: their limits are those of all values together.
    marked : Censoring
        Limits by marks such as <0.5 (`grbm.data.named`).
    where : str
        Name of the table in errors.

    Raises
    ------
    UserError
        For a text that is none of these, and for values beyond given limits.
    """
    if censor in ("none", "marks"):
        return marked if censor == "marks" else UNCENSORED
    if censor != "auto":
        least, most = read_limits(censor)
        low, high = torch.full_like(stats.low, least), torch.full_like(stats.high, most)
        low = torch.where(stats.low == low.float(), stats.low, low)  # of a column in float32 the limit is too
        high = torch.where(stats.high == high.float(), stats.high, high)
        for column in (stats.low < low).logical_or(stats.high > high).nonzero()[:1, 0].tolist():
            raise UserError(
                f"{where}, column {column}, has values from {float(stats.low[column]):g} to "
                f"{float(stats.high[column]):g}, beyond the limits {censor}; give limits that all values keep, or none."
            )
        return Censoring(low, high)
    some = table[spread(len(table), MANY)].double()
    if same_unit:
        ends = stats.low.min(), stats.high.max()
        found = [float(end) if float((some == end).double().mean()) >= PIXELS else math.inf for end in ends]
        low, high = torch.full_like(stats.low, found[0]), torch.full_like(stats.high, found[1])
    else:
        low, high = _in_columns(some, stats.low, stats.high)
    low = torch.where(low.isinf(), -torch.inf, low)
    low, high = (torch.where(own.isfinite(), own, end) for own, end in zip(marked, (low, high), strict=True))
    return UNCENSORED if bool((low.isinf() & high.isinf()).all()) else Censoring(low, high)


def limits_in(table: torch.Tensor, censor: str, marked: Censoring = UNCENSORED) -> Censoring:
    """Return the limits of the columns of a table (n, N) with gaps, as `limits_of` finds those of complete rows.

    ``censor`` is "none", "marks" or "auto".
    """
    if censor != "auto":
        return UNCENSORED if censor == "none" else marked
    lowest = torch.where(table.isnan(), torch.inf, table).amin(0).double()
    highest = torch.where(table.isnan(), -torch.inf, table).amax(0).double()
    low, high = _in_columns(table[spread(len(table), MANY)].double(), lowest, highest)
    low = torch.where(low.isinf(), -torch.inf, low)
    return Censoring(*(torch.where(own.isfinite(), own, end) for own, end in zip(marked, (low, high), strict=True)))


def _in_columns(some: torch.Tensor, lowest: torch.Tensor, highest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The limits of each column by some rows (n, N), NaN for gaps, where they are the ends of all; inf for none."""
    low, high = torch.tensor([_ends(x[~np.isnan(x)]) for x in some.numpy().T], dtype=torch.float64).T
    return low.masked_fill(low != lowest, torch.inf), high.masked_fill(high != highest, torch.inf)


def sentences(
    found: Censoring, table: Table, names: Sequence[str] = (), *, without: torch.Tensor | None = None
) -> Iterator[str]:
    """Say which columns seem to stop at a limit, ``found`` as "auto" finds it, and what learns them so.

    Nothing is said of columns ``without`` (N,) bool.
    """
    some = table[spread(len(table), MANY)]
    for end, which in zip(found, ("lowest", "highest"), strict=True):
        is_said = end.isfinite() if without is None else end.isfinite() & ~without
        for k in is_said.nonzero()[:, 0].tolist():
            share = float((some[:, k] == end[k].to(some)).double().mean())
            name = f" ({names[k]!r})" if len(names) else ""
            yield (
                f"Column {k}{name} holds {end[k]:g}, its {which} number, in {share:.0%} of rows. Training treats it "
                f"as any other. If numbers beyond are recorded as it, add --dataset.censor auto."
            )


def _ends(x: np.ndarray) -> tuple[float, float]:
    """The limits of a column x (n,), inf where it has none."""
    values, counts = np.unique(x, return_counts=True)
    if len(values) < FEWEST_INSIDE + 2:
        return math.inf, math.inf
    least = max(SHARE * len(x), TIMES * counts[1:-1].max())
    return (values[0] if counts[0] >= least else math.inf), (values[-1] if counts[-1] >= least else math.inf)
