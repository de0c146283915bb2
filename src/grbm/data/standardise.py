"""Standardisation per column, per channel or by one scalar; tables as a machine sees them."""

import torch
from torch import Tensor

from grbm.core.errors import UserError
from grbm.data.config import Mode
from grbm.data.tables import ROUNDING, ColumnStatistics, StoredTable, measure, vary
from grbm.data.transforms import Elementwise, Transform
from grbm.model import Base


def standardise(x: Tensor | ColumnStatistics, mode: Mode, *, n_channels: int = 1, floor: float = 0.0) -> Elementwise:
    """Standardise data x (n, N), or data of such statistics; columns are in channel-major order (c, height, width).

    Columns that are constant, or vary by rounding alone, keep their scale; in mode "pixel" they are left out. Where
    all columns have the same unit, as pixels do, ``floor`` bounds the scale below by that share of the overall
    deviation, so that a pixel that is lit once in the whole data is not blown up, and none is left out.
    """
    stats = measure(x) if isinstance(x, Tensor) else x
    n_columns = len(stats.mean)
    if mode == "whiten":
        raise ValueError("Whitening needs all rows: grbm.data.whitening.whiten.")
    if mode == "none":
        return Elementwise.of(torch.zeros(n_columns), torch.ones(n_columns))
    largest = torch.maximum(stats.low.abs(), stats.high.abs())
    if mode == "pixel":
        mean, scale = stats.mean, stats.var.sqrt()
        varies = torch.from_numpy(vary(scale.numpy(), stats.low.numpy(), stats.high.numpy()))
        if floor == 0 and not varies.all():
            mean, scale = torch.where(varies, mean, stats.low), torch.where(varies, scale, 1.0)
            return Elementwise(mean, scale, varies.nonzero().squeeze(1))
    else:
        groups = n_channels if mode == "channel" else 1
        means, variances = stats.mean.view(groups, -1), stats.var.view(groups, -1)
        centre = means.mean(1, keepdim=True)
        spread = (variances + (means - centre).square()).mean(1, keepdim=True).sqrt()
        mean, scale = (x.expand_as(means).reshape(-1) for x in (centre, spread))
    scale = scale.clamp_min(floor * float(stats.var.mean().sqrt()))
    return Elementwise.of(mean, torch.where(scale > ROUNDING * largest, scale, 1.0))


def base_of(transform: Elementwise, stats: ColumnStatistics) -> Base:
    """The Gaussian with independent units that matches the standardised data; variances are 1e-4 at least."""
    mean, var = transform.scaled(stats.mean), stats.var / transform.scale**2
    return Base(mean[transform.columns].float(), var[transform.columns].clamp_min(1e-4).float())


class Standardised:
    """A table as a model sees it: float32, standardised, on the model's device; indexed by a tensor of row numbers."""

    def __init__(self, rows: StoredTable, transform: Transform, device: torch.device | str = "cpu") -> None:
        self.rows, self.transform, self.device = rows, transform, device

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.transform.n_units

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
        return self.transform(x).to(self.device)
