"""Standardisation per column, per channel, by one scalar, or into coordinates of the data's own; and its inverse."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.data.config import Mode
from grbm.data.tables import DOUBLE, ROUNDING, SINGLE, ColumnStatistics, StoredTable, is_single, measure, vary
from grbm.errors import UserError
from grbm.model import Base

DIGITS = 64  # roundings that a row may be away from an exact relation,
SLACK = 1e-11  # or so much of its numbers' size, since relations are found to 1e-12 of it


class Standardizer(NamedTuple):
    """x -> z in float32, and back in float64: z = (x − mean)/scale, in new coordinates ``@ to_z`` where it whitens.

    Where columns are constant, or exact linear functions of others, z has fewer units (K) than x has columns (N):
    ``to_z`` does not look at them, and ``to_x`` puts them back; without whitening z is of the ``columns`` that vary.
    All float64.
    """

    mean: Tensor  # (N,)
    scale: Tensor  # (N,)
    to_z: Tensor | None = None  # (N, K), zero in the rows of columns that are left out
    to_x: Tensor | None = None  # (K, N)
    columns: Tensor | None = None  # (K,) int64, where nothing is whitened and others are constant
    digits: Tensor | None = None  # (N,), what numbers learned from are rounded to, as a share of their size

    @property
    def n_columns(self) -> int:
        """N, what x has."""
        return len(self.mean)

    @property
    def n_units(self) -> int:
        """K, what z has."""
        if self.columns is not None:
            return len(self.columns)
        return len(self.mean) if self.to_z is None else self.to_z.shape[1]

    @property
    def kept(self) -> Tensor:
        """(N,) bool: the columns that z is made of; a density of x is one of these."""
        if self.to_z is not None:
            return (self.to_z != 0).any(1)
        every = torch.ones_like(self.mean, dtype=torch.bool)
        return every if self.columns is None else torch.zeros_like(every).index_fill(0, self.columns, True)

    @property
    def projection(self) -> Tensor | None:
        """(N, K): what (x − mean)/scale is multiplied by; None where that is z."""
        return self.to_z if self.columns is None else torch.eye(self.n_columns).double()[:, self.columns]

    @property
    def log_det(self) -> float:
        """log |dz/dx|, what is added to log p(z) for the density of x (of its `kept` columns)."""
        log_scale = float(self.scale[self.kept].log().sum())
        return -log_scale if self.to_z is None else float(self.to_z[self.kept].slogdet().logabsdet) - log_scale

    def breaks(self, x: Tensor) -> Tensor:
        """Mark values of left-out columns that contradict the relations of the training rows: (n, N) bool.

        The tolerance is the rounding of the training rows and of x. A value that depends on NaN is not marked.
        """
        if self.to_z is None and self.columns is None:
            return torch.zeros(x.shape, dtype=torch.bool)
        digits = torch.from_numpy(np.where(is_single(x.numpy()), SINGLE, DOUBLE))
        if x.dtype == torch.float32:
            digits.fill_(SINGLE)
        x = x.double()
        z = (x - self.mean) / self.scale
        size = z.abs() + (self.mean / self.scale).abs()
        error = size * (DIGITS * (digits if self.digits is None else digits.maximum(self.digits))).clamp_min(SLACK)
        left = z if self.to_z is None or self.to_x is None else z - z @ self.to_z @ self.to_x
        if self.to_z is not None and self.to_x is not None:
            error = error + error @ self.to_z.abs() @ self.to_x.abs()
        return ~self.kept & (left.abs() > error)

    @classmethod
    def fit(
        cls, x: Tensor | ColumnStatistics, mode: Mode, *, n_channels: int = 1, floor: float = 0.0
    ) -> "Standardizer":
        """Fit to data x (n, N), or to its statistics, with columns in channel-major order (channels, height, width).

        Columns that are constant, or vary by rounding alone, keep their scale; in mode "pixel" they are left out. Where
        all columns have the same unit, as pixels do, ``floor`` bounds the scale below by that share of the overall
        deviation, so that a pixel that is lit once in the whole data is not blown up, and none is left out.
        """
        stats = measure(x) if isinstance(x, Tensor) else x
        n_columns = len(stats.mean)
        if mode == "whiten":
            raise ValueError("Whitening needs all rows: grbm.data.whitening.whiten.")
        if mode == "none":
            return cls(torch.zeros(n_columns).double(), torch.ones(n_columns).double())
        largest = torch.maximum(stats.low.abs(), stats.high.abs())
        if mode == "pixel":
            mean, scale = stats.mean, stats.var.sqrt()
            varies = torch.from_numpy(vary(scale.numpy(), stats.low.numpy(), stats.high.numpy()))
            if floor == 0 and not varies.all():
                mean, scale = torch.where(varies, mean, stats.low), torch.where(varies, scale, 1.0)
                return cls(mean, scale, columns=varies.nonzero().squeeze(1))
        else:
            groups = n_channels if mode == "channel" else 1
            means, variances = stats.mean.view(groups, -1), stats.var.view(groups, -1)
            centre = means.mean(1, keepdim=True)
            spread = (variances + (means - centre).square()).mean(1, keepdim=True).sqrt()
            mean, scale = (x.expand_as(means).reshape(-1) for x in (centre, spread))
        scale = scale.clamp_min(floor * float(stats.var.mean().sqrt()))
        return cls(mean, torch.where(scale > ROUNDING * largest, scale, 1.0))

    def __call__(self, x: Tensor) -> Tensor:
        return self.exactly(x).float()

    def exactly(self, x: Tensor) -> Tensor:
        """z in float64."""
        z = (x.double() - self.mean) / self.scale
        if self.columns is not None:
            return z[:, self.columns]
        return z if self.to_z is None else z @ self.to_z

    def inverse(self, z: Tensor) -> Tensor:
        """x in float64, from z (n, K)."""
        z = z.double() if self.to_x is None else z.double() @ self.to_x
        if self.columns is not None:
            z = z.new_zeros(len(z), self.n_columns).index_copy(1, self.columns, z)
        return z * self.scale + self.mean

    def deviations_in_units(self, std: Tensor) -> Tensor:
        """Deviations (..., N) of columns as those of z's units, where nothing is whitened."""
        return (std / self.scale)[..., self.kept]

    def deviations_in_columns(self, std: Tensor) -> Tensor:
        """And back, (n, K) to (n, N): 0 for what does not vary."""
        spread = std.double() * self.scale[self.kept]
        every = spread.new_zeros(len(std), self.n_columns)
        return spread if self.columns is None else every.index_copy(1, self.columns, spread)

    def base(self, stats: ColumnStatistics, floor: float = 1e-4) -> Base:
        """The Gaussian with independent units that matches the standardised data; constant columns get the floor.

        Not of whitened data, whose base `grbm.data.whitening` gives.
        """
        mean, var = (stats.mean - self.mean) / self.scale, stats.var / self.scale**2
        if self.columns is not None:
            mean, var = mean[self.columns], var[self.columns]
        return Base(mean.float(), var.clamp_min(floor).float())


class Standardised:
    """A table as a model sees it: float32, standardised, on the model's device; indexed by a tensor of row numbers."""

    def __init__(self, rows: StoredTable, scale: Standardizer, device: torch.device | str = "cpu") -> None:
        self.rows, self.scale, self.device = rows, scale, device

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.scale.n_units

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Tensor | slice) -> Tensor:
        """Rows by numbers or slice; raises UserError where they are no longer finite, as they were at the start."""
        x = self.rows[which]
        if not x.isfinite().all():
            raise UserError(
                "The data hold NaN or infinite numbers now, and did not when training began; put back what they were. "
                "A run goes on from its last checkpoint: grbm resume RUN."
            )
        return self.scale(x).to(self.device)
