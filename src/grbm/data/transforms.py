"""Transforms between the columns of a table and a machine's units: column by column, or into directions of its own."""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from grbm.data.tables import DOUBLE, SINGLE, is_single

DIGITS = 64  # Tolerance of `breaks`, in roundings of a number.
SLACK = 1e-11  # Smallest tolerance, as a share of a number's size: relations are found to 1e-12 of it.
RELIES = 1e-9  # Smallest coefficient by which a left-out column depends on another, in standardised units.


@dataclass(frozen=True, eq=False)
class _Scaled(ABC):
    """Rows x (n, N) of columns to rows z (n, K) of units, and back; the first step is (x − mean)/scale. All float64.

    Columns that are constant, or exact linear functions of others, have no unit (K < N). `inverse` restores them.
    """

    mean: Tensor  # (N,)
    scale: Tensor  # (N,)

    @property
    def n_columns(self) -> int:
        """N."""
        return len(self.mean)

    def scaled(self, x: Tensor) -> Tensor:
        """(x − mean)/scale, (n, N) in float64."""
        return (x.double() - self.mean) / self.scale

    @abstractmethod
    def exactly(self, x: Tensor) -> Tensor:
        """z in float64."""

    def __call__(self, x: Tensor) -> Tensor:
        """z in float32."""
        return self.exactly(x).float()

    @abstractmethod
    def columns_of(self, z: Tensor) -> Tensor:
        """z @ loadings, (..., K) to (..., N)."""

    def inverse(self, z: Tensor) -> Tensor:
        """x (..., N) in float64, from z (..., K)."""
        return self.columns_of(z.double()) * self.scale + self.mean

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in files."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _sizes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(x − mean)/scale, and the size of the numbers that it was computed from, both (n, N)."""
        z = self.scaled(x)
        return z, z.abs() + (self.mean / self.scale).abs()


@dataclass(frozen=True, eq=False)
class Elementwise(_Scaled):
    """A unit for each of the ``columns``: z = ((x − mean)/scale)[columns]; the other columns are constant."""

    columns: Tensor  # (K,) int64

    @classmethod
    def of(cls, mean: Tensor, scale: Tensor) -> "Elementwise":
        """With a unit for every column."""
        return cls(mean.double(), scale.double(), torch.arange(len(mean)))

    @property
    def n_units(self) -> int:
        """K."""
        return len(self.columns)

    @property
    def kept(self) -> Tensor:
        """(N,) bool: the columns that have a density; the others are functions of these."""
        return torch.zeros(self.n_columns, dtype=torch.bool).index_fill(0, self.columns, value=True)

    @property
    def constant(self) -> Tensor:
        """(N,) bool: the columns that no unit changes."""
        return ~self.kept

    @property
    def loadings(self) -> Tensor:
        """(K, N): what a unit adds to each column, in the columns' scales."""
        return torch.eye(self.n_columns, dtype=torch.float64)[self.columns]

    @property
    def projection(self) -> Tensor | None:
        """(N, K): what (x − mean)/scale is multiplied by; None where that is z."""
        return None if self.n_units == self.n_columns else self.loadings.T

    @property
    def log_det(self) -> float:
        """log |dz/dx|, what is added to log p(z) for the density of x (of its `kept` columns)."""
        return -float(self.scale[self.columns].log().sum())

    def exactly(self, x: Tensor) -> Tensor:
        return self.scaled(x)[:, self.columns]

    def columns_of(self, z: Tensor) -> Tensor:
        every = torch.zeros(*z.shape[:-1], self.n_columns, dtype=torch.float64)
        return every.index_copy(-1, self.columns, z.double())

    def variances(self, var: Tensor) -> Tensor:
        """Variances (N,) of columns, in their scales, where units have independent ones (K,)."""
        return self.columns_of(var)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in files; ``columns`` only where some have no unit."""
        found = super().tensors()
        return found if self.n_units < self.n_columns else {"mean": found["mean"], "scale": found["scale"]}

    def breaks(self, x: Tensor) -> Tensor:
        """Mark values of left-out columns that contradict the relations of the training rows: (n, N) bool.

        The tolerance is the rounding of the training rows and of x. A value that depends on NaN is not marked.
        """
        if self.n_units == self.n_columns:
            return torch.zeros(x.shape, dtype=torch.bool)
        z, size = self._sizes(x)
        return ~self.kept & (z.abs() > size * (DIGITS * _digits(x)).clamp_min(SLACK))


@dataclass(frozen=True, eq=False)
class Whitening(_Scaled):
    """Units in directions of their own: z = (x − mean)/scale ``@ to_z``, and ``to_x`` puts all columns back.

    Its members are those of `Elementwise`.
    """

    to_z: Tensor  # (N, K), zero in the rows of columns that are left out
    to_x: Tensor  # (K, N)
    digits: Tensor  # (N,), what numbers learned from are rounded to, as a share of their size

    @property
    def n_units(self) -> int:
        return self.to_z.shape[1]

    @property
    def kept(self) -> Tensor:
        return (self.to_z != 0).any(1)

    @property
    def constant(self) -> Tensor:
        return ~(self.to_x != 0).any(0)

    @property
    def loadings(self) -> Tensor:
        return self.to_x

    @property
    def projection(self) -> Tensor:
        return self.to_z

    @functools.cached_property
    def log_det(self) -> float:
        return float(self.to_z[self.kept].slogdet().logabsdet) - float(self.scale[self.kept].log().sum())

    def exactly(self, x: Tensor) -> Tensor:
        return self.scaled(x) @ self.to_z

    def columns_of(self, z: Tensor) -> Tensor:
        return z @ self.to_x

    def variances(self, var: Tensor) -> Tensor:
        return var @ self.to_x.square()

    def breaks(self, x: Tensor) -> Tensor:
        z, size = self._sizes(x)
        missing = z.isnan()
        z, size = z.nan_to_num(), size.nan_to_num()
        error = size * (DIGITS * _digits(x).maximum(self.digits)).clamp_min(SLACK)
        error = error + error @ self.to_z.abs() @ self.to_x.abs()
        broken = ~self.kept & ((z - z @ self.to_z @ self.to_x).abs() > error)
        if not missing.any():
            return broken
        relies = (self.to_z @ self.to_x).abs() > RELIES
        return broken & ~missing & ~((missing.double() @ relies.double()) > 0)


Transform = Elementwise | Whitening


def _digits(x: Tensor) -> Tensor:
    """Relative rounding error (N,) of the numbers in each column of x (n, N)."""
    digits = torch.from_numpy(np.where(is_single(x.numpy()), SINGLE, DOUBLE))
    return digits.fill_(SINGLE) if x.dtype == torch.float32 else digits
