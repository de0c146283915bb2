"""Numbers that stand for something else, such as -9999 for missing: many alike, far outside of a column's others."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SHARE, FEWEST = 0.001, 3  # of the rows, that hold such a number
OTHERS = 10  # different numbers, from which a column says what lies outside
FAR = 20  # times the middle half's width from the middle
GAP = 3  # times as far as all others


class Sentinel(NamedTuple):
    """A repeated number far outside the other numbers of its column."""

    column: int
    value: float
    n_rows: int
    low: float  # of the column's other numbers
    high: float
    of_rows: int  # that were looked at

    def sentence(self, names: Sequence[str] = ()) -> str:
        """Warning for a person, with what to do."""
        which = f"Column {self.column}" + (f" ({names[self.column]!r})" if len(names) else "")
        return (
            f"{which} holds {self.value:.6g} in {self.n_rows:,} of {self.of_rows:,} rows, far outside of its other "
            f"numbers ({self.low:.4g} to {self.high:.4g}), and training treats it as a number. If it means missing, "
            f"replace it by NaN and fill the gaps, or drop those rows."
        )


def sentinels(x: np.ndarray) -> list[Sentinel]:
    """Find at most one sentinel per column of x (n, N): the one in most rows."""
    found = []
    for column, numbers in enumerate(np.asarray(x, dtype=np.float64).T):
        values, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
        if len(values) <= OTHERS:
            continue
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        away = np.abs(values - middle)
        is_candidate = (counts >= max(FEWEST, SHARE * len(numbers))) & (away > FAR * (high - low))
        others = values[~is_candidate]
        if len(others) < OTHERS:
            continue
        is_candidate &= away > GAP * np.abs(others - middle).max()
        if is_candidate.any():
            k, ends = int(np.where(is_candidate, counts, 0).argmax()), (float(others.min()), float(others.max()))
            found.append(Sentinel(column, float(values[k]), int(counts[k]), *ends, len(numbers)))
    return found
