"""Coarse columns: numbers in steps, such as counts, grades and prices, of which few different ones occur.

A density can be as high as one likes at numbers that repeat. So each becomes a cell: learning sees x + (u − ½) step
with u uniform in [0, 1), and the density of a row is the mean over its cell. Its logarithm, with that of the steps
added, is that of a probability, and on average at least the log-density of the rows that learning sees (Theis, van den
Oord & Bethge 2016).
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor

from grbm.core.randomness import generator

EQUAL = 1e-6  # Rounding of steps.
POINTS, MORE = 16, 64  # Points of a cell over which the density is averaged, of up to two coarse columns and of more.


class Grid(NamedTuple):
    """Numbers that occur in the columns of a table: multiples of a step, or a few values. All float64."""

    step: Tensor  # (N,); 0 where a column has no steps
    origin: Tensor  # (N,), a number that occurs
    low: Tensor  # (N,), lowest number that is drawn; −inf where there is none
    values: Tensor  # (N, V), rising, NaN behind the last; none of a column with steps, or a continuous one

    @property
    def is_coarse(self) -> Tensor:
        """(N,) bool: columns with steps or few values."""
        return (self.step > 0) | ~self.values[:, 0].isnan()

    @property
    def n(self) -> int:
        """Number of coarse columns."""
        return int(self.is_coarse.sum())

    def _few(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Columns of few values: their numbers, values (V,), and edges (V + 1,) of the cells, halfway between."""
        for k in (~self.values[:, 0].isnan()).nonzero()[:, 0].tolist():
            values = self.values[k][~self.values[k].isnan()]
            between = 0.5 * (values[1:] + values[:-1])
            yield k, values, torch.cat([2 * values[:1] - between[:1], between, 2 * values[-1:] - between[-1:]])

    def cells(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Lower ends of the cells of rows x (n, N), and their widths, 0 where a column is continuous; float64."""
        x = x.double()
        low, width = x - 0.5 * self.step, self.step.expand(x.shape).clone()
        for k, values, edges in self._few():
            which = torch.searchsorted(edges[1:-1], x[:, k].contiguous()).clamp_max(len(values) - 1)
            occurs = (x[:, k] - values[which]).abs() <= EQUAL * (values[-1] - values[0])  # others have no cell
            low[:, k] = torch.where(occurs, edges[which], x[:, k])
            width[:, k] = torch.where(occurs, edges.diff()[which], 0.0)
        return low, width

    def spread(self, x: Tensor, seed: int) -> Tensor:
        """Rows x (n, N) at random places of their cells, in the dtype of x; NaN stays."""
        low, width = self.cells(x)
        u = torch.rand(x.shape, generator=generator(seed, "coarse"), dtype=torch.float64)
        return torch.where(width > 0, low + u * width, x.double()).to(x.dtype)

    def points(self, x: Tensor) -> Iterator[Tensor]:
        """Rows x (n, N) at places of their cells, the same for all rows, float64: a Latin hypercube (McKay 1979)."""
        (low, width), rng = self.cells(x), generator(0, "points of cells")
        n = POINTS if self.n <= 2 else MORE
        places = torch.stack([torch.randperm(n, generator=rng) for _ in self.step], 1)
        for u in (places + 0.5) / n:
            yield torch.where(width > 0, low + u * width, x.double())

    def rounded(self, x: Tensor) -> Tensor:
        """Rows x (..., N) with the nearest numbers that occur in coarse columns; NaN stays."""
        step = torch.where(self.step > 0, self.step, 1.0)
        found = torch.where(self.step > 0, self.origin + ((x - self.origin) / step).round() * step, x)
        parts = (1 / step).round()  # of a unit: tenths as whole numbers over ten have their shortest text
        is_decimal = ((parts * step - 1).abs() < EQUAL) & (
            (self.origin * parts - (self.origin * parts).round()).abs() < EQUAL
        )
        found = torch.where(is_decimal & (self.step > 0), (found * parts).round() / parts, found)
        found = torch.maximum(found, self.low.to(found))
        for k, values, edges in self._few():
            which = torch.searchsorted(edges[1:-1].to(x), x[..., k].contiguous()).clamp_max(len(values) - 1)
            found[..., k] = torch.where(x[..., k].isnan(), x[..., k], values.to(x)[which])
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in files."""
        return {f"grid_{name}": x for name, x in self._asdict().items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], n_columns: int) -> "Grid":
        """Build what `tensors` gave, for that many columns; raise ValueError if it is damaged.

        Other names are ignored.
        """
        found = [tensors.get(f"grid_{name}") for name in cls._fields]
        if all(x is None for x in found):
            return CONTINUOUS
        *vectors, values = found
        is_whole = all(x is not None and x.shape == (n_columns,) and not x.isnan().any() for x in vectors)
        if not is_whole or values is None or values.ndim != 2 or len(values) != n_columns or values.isinf().any():
            raise ValueError("its grid is not whole")
        grid = cls(*(x.double() for x in found if x is not None))
        rises = (values[:, 1:] > values[:, :-1]) | values[:, 1:].isnan()
        if not ((grid.step >= 0) & grid.step.isfinite() & grid.origin.isfinite()).all() or not rises.all():
            raise ValueError("its grid is not whole")
        return grid


class Continuous(Grid):
    """No coarse columns: passes everything through. Files hold nothing of it."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "CONTINUOUS"  # a copy is the one that there is

    @property
    def n(self) -> int:
        return 0

    def spread(self, x: Tensor, seed: int) -> Tensor:
        return x

    def points(self, x: Tensor) -> Iterator[Tensor]:
        yield x

    def rounded(self, x: Tensor) -> Tensor:
        return x

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def of(cls) -> Self:
        """The only one."""
        nothing = torch.zeros(1, dtype=torch.float64)
        return cls(nothing, nothing, nothing - torch.inf, torch.full((1, 1), torch.nan, dtype=torch.float64))


CONTINUOUS: Grid = Continuous.of()
