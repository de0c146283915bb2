"""Normal numbers truncated to intervals: draws, and probabilities."""

import math

import torch
from torch import Tensor

from grbm.model.censoring import Interval

DEEP = -700.0  # log-probability below which exp leaves float64
LEAST_MASS = 1e-290  # of which float64 has all digits
ITERATIONS = 3  # Newton steps from the asymptote of a tail, which double the digits each


def truncated_normal(mean: Tensor, std: Tensor, within: Interval, u: Tensor) -> Tensor:
    """Draw from N(mean, std²) between the ends of ``within``, by inversion of the distribution function at u in [0, 1).

    Computed in float64 in the lighter tail, so that intervals hundreds of deviations out are exact too; the result has
    the dtype of ``mean``. Where the ends are equal it is that number.
    """
    exact_mean, exact_std = mean.double(), std.double()
    low, high = (within.low.double() - exact_mean) / exact_std, (within.high.double() - exact_mean) / exact_std
    is_right = low + high > 0  # NaN, of an interval without ends, is not
    low, high = torch.where(is_right, -high, low), torch.where(is_right, -low, high)
    log_high = torch.special.log_ndtr(high)
    lost = torch.expm1(torch.special.log_ndtr(low) - log_high)  # minus the share of the tail that lies inside
    z = log_ndtri(log_high + torch.log1p((1 - u.double() - 2.0**-26) * lost))
    v = (exact_mean + exact_std * torch.where(is_right, -z, z)).to(mean)
    return torch.minimum(torch.maximum(v, within.low), within.high)


def log_ndtri(log_p: Tensor) -> Tensor:
    """z with log Φ(z) = ``log_p``, float64."""
    z = torch.special.ndtri(log_p.exp())
    if not (deep := log_p < DEEP).any():
        return z
    y = torch.where(deep, log_p, DEEP)
    tail = -(-2 * y - (-4 * math.pi * y).log()).sqrt()
    for _ in range(ITERATIONS):
        log_phi = -0.5 * tail.square() - 0.5 * math.log(2 * math.pi)
        log_cdf = torch.special.log_ndtr(tail)
        tail = tail - (log_cdf - y) * (log_cdf - log_phi).exp()
    return torch.where(deep, tail, z)


def log_mass(mean: Tensor, std: Tensor, within: Interval) -> Tensor:
    """log of the probability of each interval under N(mean, std²), or of the density where the value is known; float64.

    Shapes are broadcast: (..., N).
    """
    mean, std = mean.double(), std.double()
    low, high = (within.low.double() - mean) / std, (within.high.double() - mean) / std
    density = -0.5 * low.square() - std.log() - 0.5 * math.log(2 * math.pi)
    is_right = low + high > 0
    low, high = torch.where(is_right, -high, low), torch.where(is_right, -low, high)
    log_high = torch.special.log_ndtr(high)
    mass = log_high + torch.log(-torch.expm1(torch.special.log_ndtr(low) - log_high))
    return torch.where(within.is_open, mass, density)


class LogMass:
    """Σ_i of `log_mass` over units of one deviation each, for many means, in a quarter of the time.

    An interval of two ends is mirrored so that it lies in the lower tail. Rows of which a probability leaves float64,
    and rows in which a value is known, are left to `log_mass`.

    Parameters
    ----------
    std : Tensor
        (N,), float64.
    within : Interval
        (C, N) each, float64.
    """

    def __init__(self, std: Tensor, within: Interval) -> None:
        low, high = within
        self.std, self.within, self.scale = std, within, std * math.sqrt(2)
        self.is_open = bool(within.is_open.all())
        one_sided = low.isinf() != high.isinf()
        centre = torch.where(one_sided, torch.where(low.isinf(), high, low), 0.5 * (low + high))
        self.centre = centre.nan_to_num() / self.scale  # NaN: no ends
        self.half = torch.where(one_sided, 0.0, 0.5 * (high - low) / self.scale)
        self.sign = torch.where(one_sided, torch.where(low.isinf(), 1.0, -1.0), 0.0).to(low)
        self.two_sided = (~one_sided).to(low)

    def __call__(self, mean: Tensor) -> Tensor:
        """Sum for each row of means (C, N): (C,)."""
        if not self.is_open:
            return log_mass(mean, self.std, self.within).sum(1)
        from_centre = self.centre - mean / self.scale
        away = self.two_sided * from_centre.abs()
        upper = torch.addcmul(self.half - away, self.sign, from_centre)
        mass = torch.erfc(-upper).sub_(torch.erfc(self.half + away).mul_(self.two_sided)).mul_(0.5)
        found = mass.log().sum(1)
        lost = (mass.amin(1) < LEAST_MASS).nonzero()[:, 0]
        if len(lost):
            found[lost] = log_mass(mean[lost], self.std, Interval(*(end[lost] for end in self.within))).sum(1)
        return found
