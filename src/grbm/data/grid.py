"""Coarse columns: numbers in steps, such as counts, grades and prices, of which few different ones occur.

A density can be as high as one likes at numbers that repeat. So each becomes a cell: learning sees x + (u − ½) step
with u uniform in [0, 1), and the density of a row is the mean over its cell. Its logarithm, with that of the steps
added, is that of a probability, and on average at least the log-density of the rows that learning sees (Theis, van den
Oord & Bethge 2016).

Where one number makes up much of a column, such as days without rain, a machine whose clusters share one covariance
cannot be as narrow as its cell. So such columns are learned as normal scores: Φ⁻¹ of the share of the rows below.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor

from grbm.core.randomness import generator

EQUAL = 1e-6  # Rounding of steps.
SMALLEST = 1e-9  # Share of the rows that counts as none, and whose score is −6.
NONE = torch.empty(0, 0, dtype=torch.float64)  # knots of no column
POINTS, MORE = 16, 64  # Points of a cell over which the density is averaged, of up to two coarse columns and of more.


class Grid(NamedTuple):
    """Numbers that occur in the columns of a table: multiples of a step, or a few values. All float64."""

    step: Tensor  # (N,); 0 where a column has no steps
    origin: Tensor  # (N,), a number that occurs
    low: Tensor  # (N,), lowest number that is drawn; −inf where there is none
    values: Tensor  # (N, V), rising, NaN behind the last; none of a column with steps, or a continuous one
    knots: Tensor = NONE  # (N, K), rising, NaN behind the last: edges of cells, none where learning sees no scores
    levels: Tensor = NONE  # (N, K), shares of the rows below the knots, rising, in [0, 1]

    @property
    def is_coarse(self) -> Tensor:
        """(N,) bool: columns with steps or few values."""
        return (self.step > 0) | ~self.values[:, 0].isnan()

    @property
    def n(self) -> int:
        """Number of coarse columns."""
        return int(self.is_coarse.sum())

    @property
    def is_scored(self) -> Tensor:
        """(N,) bool: columns that learning sees as normal scores."""
        return ~self.knots[:, 0].isnan() if self.knots.numel() else torch.zeros_like(self.step, dtype=torch.bool)

    def _scores(self) -> Iterator[tuple[int, "Scores"]]:
        """Numbers of the columns that are learned as normal scores, and these."""
        for k in self.is_scored.nonzero()[:, 0].tolist():
            known = ~self.knots[k].isnan()
            yield k, Scores(self.knots[k][known], self.levels[k][known])

    def inward(self, x: Tensor) -> Tensor:
        """Rows y (..., N) that learning sees of rows x at places of their cells, float64 where columns have scores."""
        if not self.is_scored.any():
            return x
        y = x.double().clone()
        for k, scores in self._scores():
            y[..., k] = scores.inward(y[..., k])
        return y

    def outward(self, y: Tensor) -> Tensor:
        """Rows x (..., N), at places of their cells, of rows y that learning sees."""
        if not self.is_scored.any():
            return y
        x = y.double().clone()
        for k, scores in self._scores():
            x[..., k] = scores.outward(x[..., k])
        return x

    def log_slopes(self, x: Tensor) -> Tensor:
        """Logarithm of the slope dy/dx at each number of rows x (n, N), float64; 0 where it is missing (NaN)."""
        found = torch.zeros(x.shape, dtype=torch.float64)
        for k, scores in self._scores():
            found[:, k] = scores.log_slope(x[:, k].double()).nan_to_num(0.0)
        return found

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
        return {f"grid_{name}": x for name, x in self._asdict().items() if x.numel()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], n_columns: int) -> "Grid":
        """Build what `tensors` gave, for that many columns; raise ValueError if it is damaged.

        Other names are ignored.
        """
        *found, knots, levels = (tensors.get(f"grid_{name}") for name in cls._fields)
        if all(x is None for x in (*found, knots, levels)):
            return CONTINUOUS
        *vectors, values = found
        is_whole = all(x is not None and x.shape == (n_columns,) and not x.isnan().any() for x in vectors)
        if not is_whole or values is None or values.ndim != 2 or len(values) != n_columns or values.isinf().any():
            raise ValueError("its grid is not whole")
        grid = cls(*(x.double() for x in found if x is not None))
        rises = (values[:, 1:] > values[:, :-1]) | values[:, 1:].isnan()
        if not ((grid.step >= 0) & grid.step.isfinite() & grid.origin.isfinite()).all() or not rises.all():
            raise ValueError("its grid is not whole")
        if knots is None and levels is None:
            return grid
        if knots is None or levels is None or knots.shape != levels.shape or knots.shape[:-1] != (n_columns,):
            raise ValueError("its normal scores are not whole")
        grid = grid._replace(knots=knots.double(), levels=levels.double())
        if not torch.equal(knots.isnan(), levels.isnan()) or not all(
            scores.are_whole() for _, scores in grid._scores()
        ):
            raise ValueError("its normal scores are not whole")
        return grid


class Scores(NamedTuple):
    """Normal scores of a column: y = Φ⁻¹(share below x), whose share is linear between knots. Both (K,), K ≥ 2.

    Beyond the outer knots y is linear, with the mean slope of the last stretch.
    """

    knots: Tensor
    levels: Tensor

    def are_whole(self) -> bool:
        """True if knots and levels rise, and levels are in [0, 1]."""
        rise = all(len(x) >= 2 and bool((x.diff() > 0).all()) and bool(x.isfinite().all()) for x in self)
        return rise and float(self.levels[0]) >= 0 and float(self.levels[-1]) <= 1

    @property
    def heights(self) -> Tensor:
        """Scores of the knots (K,)."""
        return _score(self.levels)

    @property
    def rates(self) -> Tensor:
        """Shares of the rows by a unit of x, in each stretch between knots (K − 1,)."""
        return self.levels.diff() / self.knots.diff()

    @property
    def slopes(self) -> Tensor:
        """Mean slopes dy/dx of the stretches (K − 1,)."""
        return self.heights.diff() / self.knots.diff()

    def inward(self, x: Tensor) -> Tensor:
        """Scores y of numbers x, float64; NaN stays."""
        k = _stretch(self.knots, x)
        inside = _score(self.levels[k] + (x - self.knots[k]) * self.rates[k])
        y = torch.where(x < self.knots[0], self.heights[0] + (x - self.knots[0]) * self.slopes[0], inside)
        return torch.where(x > self.knots[-1], self.heights[-1] + (x - self.knots[-1]) * self.slopes[-1], y)

    def outward(self, y: Tensor) -> Tensor:
        """Numbers x of scores y, float64; NaN stays."""
        k = _stretch(self.heights, y)
        inside = self.knots[k] + (torch.special.ndtr(y) - self.levels[k]) / self.rates[k]
        x = torch.where(y < self.heights[0], self.knots[0] + (y - self.heights[0]) / self.slopes[0], inside)
        return torch.where(y > self.heights[-1], self.knots[-1] + (y - self.heights[-1]) / self.slopes[-1], x)

    def log_slope(self, x: Tensor) -> Tensor:
        """log dy/dx at numbers x, float64; NaN stays."""
        k, y = _stretch(self.knots, x), self.inward(x)
        log_density = -0.5 * (y.square() + math.log(2 * math.pi))
        is_beyond = (x < self.knots[0]) | (x > self.knots[-1])
        return torch.where(is_beyond, self.slopes[k].log(), self.rates[k].log() - log_density)


def _score(share: Tensor) -> Tensor:
    return torch.special.ndtri(share.clamp(SMALLEST, 1 - SMALLEST))


def _stretch(among: Tensor, x: Tensor) -> Tensor:
    """Number of the stretch between neighbours ``among`` (K,) in which each x lies; the outer ones have no end."""
    return (torch.searchsorted(among, x.contiguous(), right=True) - 1).clamp(0, len(among) - 2)


class Continuous(Grid):
    """No coarse columns: passes everything through. Files hold nothing of it."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "CONTINUOUS"  # a copy is the one that there is

    @property
    def n(self) -> int:
        return 0

    @property
    def is_scored(self) -> Tensor:
        return torch.zeros(1, dtype=torch.bool)

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
