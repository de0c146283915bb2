"""Standardisation per column, per channel or by one scalar, and its inverse."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Mode = Literal["none", "pixel", "channel", "scalar"]


class Standardizer(NamedTuple):
    """x -> (x − mean)/scale in float32, and back in float64; mean and scale are (N,), float64."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, x: Tensor, mode: Mode, *, n_channels: int = 1, floor: float = 0.0) -> "Standardizer":
        """Fit to data x (n, N), with columns in channel-major order (channels, height, width).

        Constant columns, and those that vary by rounding alone, keep their scale. Where all columns have the same
        unit, as pixels do, ``floor`` bounds the scale below by that share of the overall deviation, so that a pixel
        that is lit once in the whole data is not blown up.
        """
        n_columns = x.shape[1]
        x = x.double()
        if mode == "none":
            mean, scale = torch.zeros(n_columns), torch.ones(n_columns)
        elif mode == "pixel":
            mean, scale = x.mean(0), x.std(0, correction=0)
        else:
            grouped = x.view(len(x), n_channels if mode == "channel" else 1, -1)
            mean = grouped.mean((0, 2))[:, None].expand(grouped.shape[1:]).reshape(-1)
            scale = grouped.std((0, 2), correction=0)[:, None].expand(grouped.shape[1:]).reshape(-1)
        if mode != "none":
            overall = float((x - x.mean(0)).square().mean().sqrt())
            scale = scale.clamp_min(floor * overall)
            scale = torch.where(scale > 1e-12 * x.abs().amax(0), scale, 1.0)
        return cls(mean.double(), scale.double())

    def __call__(self, x: Tensor) -> Tensor:
        return ((x.double() - self.mean) / self.scale).float()

    def inverse(self, z: Tensor) -> Tensor:
        return z.double() * self.scale + self.mean
