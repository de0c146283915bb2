"""Standardisation per column, per channel or by one scalar, and its inverse."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.data.config import Mode
from grbm.data.tables import ColumnStatistics, StoredTable, measure
from grbm.model import Base


class Standardizer(NamedTuple):
    """x -> (x − mean)/scale in float32, and back in float64; mean and scale are (N,), float64."""

    mean: Tensor
    scale: Tensor

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
        return ((x.double() - self.mean) / self.scale).float()

    def inverse(self, z: Tensor) -> Tensor:
        return z.double() * self.scale + self.mean

    def base(self, stats: ColumnStatistics, floor: float = 1e-4) -> Base:
        """The Gaussian with independent units that matches the standardised data; constant columns get the floor."""
        mean, var = (stats.mean - self.mean) / self.scale, stats.var / self.scale**2
        return Base(mean.float(), var.clamp_min(floor).float())


class Standardised:
    """A table as a model sees it: float32, standardised, on the model's device; indexed by a tensor of row numbers."""

    def __init__(self, rows: StoredTable, scale: Standardizer, device: torch.device | str = "cpu") -> None:
        self.rows, self.scale, self.device = rows, scale, device

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Tensor | slice) -> Tensor:
        return self.scale(self.rows[which]).to(self.device)
