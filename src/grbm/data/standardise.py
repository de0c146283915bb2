"""Standardisation per column, per channel, by one scalar, or into coordinates of the data's own; and its inverse."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.data.config import Mode
from grbm.data.tables import ColumnStatistics, StoredTable, measure
from grbm.model import Base


class Standardizer(NamedTuple):
    """x -> z in float32, and back in float64: z = (x − mean)/scale, in new coordinates ``@ to_z`` where it whitens.

    Where columns are constant, or exact linear functions of others, z has fewer units (K) than x has columns (N):
    ``to_z`` does not look at them, and ``to_x`` puts them back. All float64.
    """

    mean: Tensor  # (N,)
    scale: Tensor  # (N,)
    to_z: Tensor | None = None  # (N, K), zero in the rows of columns that are left out
    to_x: Tensor | None = None  # (K, N)

    @property
    def n_columns(self) -> int:
        """N, what x has."""
        return len(self.mean)

    @property
    def n_units(self) -> int:
        """K, what z has."""
        return len(self.mean) if self.to_z is None else self.to_z.shape[1]

    @property
    def kept(self) -> Tensor:
        """(N,) bool: the columns that z is made of; a density of x is one of these."""
        return torch.ones_like(self.mean, dtype=torch.bool) if self.to_z is None else (self.to_z != 0).any(1)

    @property
    def log_det(self) -> float:
        """log |dz/dx|, what is added to log p(z) for the density of x (of its `kept` columns)."""
        log_scale = float(self.scale[self.kept].log().sum())
        return -log_scale if self.to_z is None else float(self.to_z[self.kept].slogdet().logabsdet) - log_scale

    def apart(self, x: Tensor) -> Tensor:
        """How far rows x (n, N) are from what z makes of them, per column, in deviations: 0 but for columns left out.

        It is NaN where something that a column hangs on is NaN.
        """
        z = (x.double() - self.mean) / self.scale
        if self.to_z is None or self.to_x is None:
            return torch.zeros_like(z)
        return torch.where(self.kept, 0.0, z - z @ self.to_z @ self.to_x)

    @classmethod
    def fit(
        cls, x: Tensor | ColumnStatistics, mode: Mode, *, n_channels: int = 1, floor: float = 0.0
    ) -> "Standardizer":
        """Fit to data x (n, N), or to its statistics, with columns in channel-major order (channels, height, width).

        Constant columns, and those that vary by rounding alone, keep their scale. Where all columns have the same
        unit, as pixels do, ``floor`` bounds the scale below by that share of the overall deviation, so that a pixel
        that is lit once in the whole data is not blown up.
        """
        stats = measure(x) if isinstance(x, Tensor) else x
        n_columns = len(stats.mean)
        if mode == "whiten":
            raise ValueError("Whitening needs all rows: grbm.data.whitening.whiten.")
        if mode == "none":
            return cls(torch.zeros(n_columns).double(), torch.ones(n_columns).double())
        if mode == "pixel":
            mean, scale = stats.mean, stats.var.sqrt()
        else:
            groups = n_channels if mode == "channel" else 1
            means, variances = stats.mean.view(groups, -1), stats.var.view(groups, -1)
            centre = means.mean(1, keepdim=True)
            spread = (variances + (means - centre).square()).mean(1, keepdim=True).sqrt()
            mean, scale = (x.expand_as(means).reshape(-1) for x in (centre, spread))
        scale = scale.clamp_min(floor * float(stats.var.mean().sqrt()))
        scale = torch.where(scale > 1e-12 * torch.maximum(stats.low.abs(), stats.high.abs()), scale, 1.0)
        return cls(mean, scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self.exactly(x).float()

    def exactly(self, x: Tensor) -> Tensor:
        """z in float64."""
        z = (x.double() - self.mean) / self.scale
        return z if self.to_z is None else z @ self.to_z

    def inverse(self, z: Tensor) -> Tensor:
        z = z.double() if self.to_x is None else z.double() @ self.to_x
        return z * self.scale + self.mean

    def base(self, stats: ColumnStatistics, floor: float = 1e-4) -> Base:
        """The Gaussian with independent units that matches the standardised data; constant columns get the floor.

        Not of whitened data, whose base `grbm.data.whitening` gives.
        """
        mean, var = (stats.mean - self.mean) / self.scale, stats.var / self.scale**2
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
        return self.scale(self.rows[which]).to(self.device)
