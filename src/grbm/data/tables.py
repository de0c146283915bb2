"""Tables larger than memory: rows read from the disk as they are asked for, and statistics in one pass over them."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.core.errors import UserError

CHUNK = 1_000_000  # numbers read at a time when a table is passed over
DOUBLE, SINGLE = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
ROUNDING = 2 * DOUBLE  # share of a column's size that it may vary by without meaning anything


class StoredTable:
    """A table (n, N) of real numbers that stays on the disk; indexed like a tensor, it reads the rows asked for.

    ``read`` takes row numbers (k,) of the source, int64, and returns those rows (k, N), of any real dtype. ``index``
    (n,) has the row numbers that make up this table, in order.
    """

    def __init__(self, read: Callable[[np.ndarray], np.ndarray], index: Tensor, n_columns: int) -> None:
        self.read, self.index, self.n_columns = read, index, n_columns

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index), self.n_columns

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        """Rows by slice or by numbers, as a float64 tensor (k, N)."""
        return torch.from_numpy(self.read(self.index[which].numpy()).astype(np.float64))

    def take(self, which: Tensor) -> "StoredTable":
        """The table of these rows, in this order; nothing is read."""
        return StoredTable(self.read, self.index[which], self.n_columns)


Table = Tensor | StoredTable


class ColumnStatistics(NamedTuple):
    """Mean, variance and bounds of each column; all (N,), float64."""

    mean: Tensor
    var: Tensor
    low: Tensor
    high: Tensor


def spread(n: int, k: int) -> Tensor:
    """At most ``k`` of the row numbers 0 .. n−1, evenly spaced, the first and the last among them."""
    k = min(n, k)
    return torch.arange(k) * (n - 1) // max(1, k - 1)


def chunks(table: Table) -> Iterator[tuple[int, np.ndarray]]:
    """The table from top to bottom: the number of the first row, and rows (k, N) in float64."""
    step = max(1, CHUNK // table.shape[1])
    for first in range(0, len(table), step):
        yield first, table[first : first + step].double().cpu().numpy()


def refuse_not_finite(x: np.ndarray, numbers: Tensor, where: str) -> None:
    """Raise UserError for the first NaN or infinity in rows x, of these ``numbers`` in ``where``."""
    bad = ~np.isfinite(x)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        number = int(numbers[row])
        raise UserError(
            f"{where} holds NaN or infinite numbers, the first at row {number}, column {column}; remove or fill them."
        )


def vary(std: np.ndarray, low: np.ndarray, high: np.ndarray, digits: Any = DOUBLE) -> np.ndarray:
    """(N,) bool: columns of these deviations and bounds that vary by more than rounding to ``digits`` can make."""
    return (high > low) & (std > 2 * digits * np.maximum(np.abs(low), np.abs(high)))


def is_single(x: np.ndarray) -> np.ndarray:
    """Mark numbers that have the digits of float32 alone, and are no integers, which are exact: bool, like x."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (x == x.astype(np.float32)) & (x != np.round(x))


def resolution(x: np.ndarray) -> np.ndarray:
    """(N,): what the numbers of each column are rounded to, as a share of their size.

    That of float64, or of float32 where all are such numbers and not all are integers, which are exact.
    """
    is_of_singles = (is_single(x) | (x == np.round(x)) | np.isnan(x)).all(0) & is_single(x).any(0)
    return np.where(is_of_singles, SINGLE, DOUBLE)


def nothing_varies(n_rows: int) -> UserError:
    """Error for a table of which nothing can be learned."""
    what = "Every column of the data is constant" if n_rows > 1 else "The data are a single row (n_samples=1)"
    return UserError(f"{what}, so there is nothing to learn; check the input.")


def refuse_magnitudes(low: np.ndarray, high: np.ndarray, where: str, dtype: Any = np.float64) -> None:
    """Raise UserError for the first column whose numbers, or how they vary, have squares beyond ``dtype``."""
    least, most = 4 * np.sqrt(np.finfo(dtype).tiny), np.sqrt(np.finfo(dtype).max) / 4
    largest = np.maximum(np.abs(low), np.abs(high))
    with np.errstate(over="ignore"):
        range_ = high - low
    wrong = (largest > most) | ((range_ > 0) & (range_ < least))
    if wrong.any():
        column = int(np.argmax(wrong))
        is_large = largest[column] > most
        number, verb = (largest[column], "divide") if is_large else (range_[column], "multiply")
        what = "holds numbers of up to" if is_large else "varies by"
        raise UserError(
            f"{where} {what} {number:.3g} in column {column}, whose square is beyond {np.dtype(dtype)}; {verb} it by a "
            f"constant."
        )


def measure(
    table: Table, where: str = "the data", digest: Callable[[memoryview], object] = lambda numbers: None
) -> ColumnStatistics:
    """ColumnStatistics in one pass (Chan, Golub & LeVeque 1983), the same for any number of threads.

    The numbers pass through ``digest``, such as the ``update`` of a hash. Raises UserError that names the first number
    that is not finite, and a column whose variance is not.
    """
    n, N = 0, table.shape[1]
    mean, squares = np.zeros(N), np.zeros(N)
    low, high = np.full(N, np.inf), np.full(N, -np.inf)
    numbers = table.index if isinstance(table, StoredTable) else torch.arange(len(table))
    for first, x in chunks(table):
        refuse_not_finite(x, numbers[first:], where)
        digest(np.ascontiguousarray(x).data)
        k = len(x)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            delta = x.mean(0) - mean
            squares += ((x - x.mean(0)) ** 2).sum(0) + delta**2 * (n * k / (n + k))
            mean += delta * (k / (n + k))
        n += k
        np.minimum(low, x.min(0), out=low)
        np.maximum(high, x.max(0), out=high)
    refuse_magnitudes(low, high, where)
    return ColumnStatistics(*(torch.from_numpy(x) for x in (mean, squares / n, low, high)))
