"""Bounds of columns: numbers strictly between them are learned on a scale that has none, with its Jacobian."""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

from grbm.core.errors import UserError

LEAST = 2.0**-50  # Least distance of draws from a bound, as a share of its size: float64 has four numbers there.
SMALLEST = 1e-30  # The same, of a bound at 0, which float32 holds.
FARTHEST = 80.0  # Logarithm of the largest distance that is drawn, which float32 holds.


class Bounds(NamedTuple):
    """Bounds of the columns of a table: x becomes y = log(x − low) − log(high − x), without the part of an absent one.

    So a column with one bound has logarithms, and one with two has log-odds. Both (N,), float64.
    """

    low: Tensor  # −inf where a column has none
    high: Tensor  # inf where it has none

    @property
    def is_bounded(self) -> Tensor:
        """(N,) bool: columns with a bound."""
        return self.low.isfinite() | self.high.isfinite()

    @property
    def n(self) -> int:
        """Number of columns with a bound."""
        return int(self.is_bounded.sum())

    def breaks(self, x: Tensor) -> Tensor:
        """Mark numbers of rows x (n, N) that lie at a bound or beyond, (n, N) bool; NaN does not."""
        return ((x <= self.low) & self.low.isfinite()) | ((x >= self.high) & self.high.isfinite())

    def words(self, column: int) -> str:
        """Say where the numbers of a column lie, such as "above 0"."""
        low, high = float(self.low[column]), float(self.high[column])
        if math.isinf(high):
            return f"above {low:g}"
        return f"below {high:g}" if math.isinf(low) else f"above {low:g} and below {high:g}"

    def _apart(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log(x − low) and log(high − x), float64; 0 where there is no bound."""
        x = x.double()
        below = torch.where(self.low.isfinite(), x - self.low, 1.0)
        return below.log(), torch.where(self.high.isfinite(), self.high - x, 1.0).log()

    def refuse(self, x: Tensor) -> None:
        """Raise UserError for a number of rows x (..., N) at bounds or beyond."""
        for place in self.breaks(x).nonzero()[:1].tolist():
            number, column = float(x[tuple(place)]), place[-1]
            raise UserError(f"Column {column} has the number {number:g}, which must be {self.words(column)}.")

    def inward(self, x: Tensor) -> Tensor:
        """Rows y (..., N) of rows x, float64; NaN stays. Raises UserError for numbers at bounds or beyond."""
        self.refuse(x)
        below, above = self._apart(x)
        return torch.where(self.is_bounded, below - above, x.double())

    def ends_inward(self, x: Tensor) -> Tensor:
        """The same of ends x (..., N) of intervals, which may be infinite, and at bounds or beyond are moved inside."""
        known = x.masked_fill(x.isinf(), torch.nan)
        known = torch.where(self.breaks(known), self.moved_inside(known), known)
        return torch.where(x.isinf(), x.double(), self.inward(known))

    def known(self, x: Tensor) -> Tensor:
        """Rows y (n, N) of rows x, NaN where x lies at bounds or beyond."""
        return self.inward(x.masked_fill(self.breaks(x), torch.nan))

    def outward(self, y: Tensor) -> Tensor:
        """Rows x (..., N) of rows y, float64, strictly between the bounds."""
        y = y.double()
        has_low, has_high = self.low.isfinite(), self.high.isfinite()
        low, high = (torch.where(has, end, 0.0) for has, end in ((has_low, self.low), (has_high, self.high)))
        one = torch.where(has_low, low + y.clamp_max(FARTHEST).exp(), high - (-y).clamp_max(FARTHEST).exp())
        x = torch.where(has_low & has_high, low + (high - low) * y.sigmoid(), one)
        return torch.where(self.is_bounded, self.moved_inside(x), y)

    def moved_inside(self, x: Tensor) -> Tensor:
        """Rows x (..., N) with numbers at bounds or beyond moved to just inside, float64; NaN stays."""
        most = LEAST * (self.high - self.low)  # where bounds are near each other
        room = [(LEAST * end.abs()).clamp_min(SMALLEST).minimum(most) for end in (self.low, self.high)]
        low, high = self.low + room[0].nan_to_num(posinf=0.0), self.high - room[1].nan_to_num(posinf=0.0)
        return torch.minimum(torch.maximum(x.double(), low), high)

    def narrowed(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows x (..., N) in a type of fewer digits; what it rounds to a bound or beyond is its next number inside."""
        x = x.to(dtype)
        up, down = (x.nextafter(torch.tensor(end, dtype=dtype)) for end in (math.inf, -math.inf))
        return torch.where(x <= self.low, up, torch.where(x >= self.high, down, x))

    def log_slopes(self, x: Tensor) -> Tensor:
        """Logarithm of the slope dy/dx at each number of rows x (n, N), float64; 0 where it is missing (NaN)."""
        below, above = self._apart(x)
        both = self.low.isfinite() & self.high.isfinite()
        width = torch.where(both, self.high - self.low, 1.0).log()
        return torch.where(self.is_bounded & ~x.isnan(), width - below - above, 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in files."""
        return {"bound_low": self.low, "bound_high": self.high}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], n_columns: int) -> "Bounds":
        """Build what `tensors` gave, for that many columns; raise ValueError if it is damaged.

        Other names are ignored.
        """
        low, high = tensors.get("bound_low"), tensors.get("bound_high")
        if low is None and high is None:
            return UNBOUNDED
        if low is None or high is None or not low.shape == high.shape == (n_columns,) or not bool((low < high).all()):
            raise ValueError("its bounds are not whole")
        return cls(low.double(), high.double())


class Unbounded(Bounds):
    """No bounds: passes everything through. Files hold nothing of it."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "UNBOUNDED"  # a copy is the one that there is

    @property
    def n(self) -> int:
        return 0

    def breaks(self, x: Tensor) -> Tensor:
        return torch.zeros(x.shape, dtype=torch.bool)

    def refuse(self, x: Tensor) -> None:
        pass

    def inward(self, x: Tensor) -> Tensor:
        return x

    def ends_inward(self, x: Tensor) -> Tensor:
        return x

    def outward(self, y: Tensor) -> Tensor:
        return y

    def moved_inside(self, x: Tensor) -> Tensor:
        return x

    def known(self, x: Tensor) -> Tensor:
        return x

    def narrowed(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def log_slopes(self, x: Tensor) -> Tensor:
        return torch.zeros(x.shape, dtype=torch.float64)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def of(cls) -> Self:
        """The only one."""
        end = torch.full((1,), torch.inf, dtype=torch.float64)
        return cls(-end, end)


UNBOUNDED: Bounds = Unbounded.of()
