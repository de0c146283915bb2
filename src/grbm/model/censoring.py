"""Censoring: measurements that stop at limits, as pixels at black, values below a detection limit and scores at a top.

x = clip(v, low, high) of a latent v that the machine describes (Tobit 1958). A value inside the limits is v itself and
has a density; a value at a limit says that v lies at it or beyond, and has a probability.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from grbm.core.errors import UserError


class Interval(NamedTuple):
    """Intervals of latent values, (..., N) each; both ends are equal where the value is known."""

    low: Tensor
    high: Tensor

    @property
    def is_open(self) -> Tensor:
        """(..., N) bool: the values that are not known."""
        return self.low < self.high

    def within(self, depth: float) -> Self:
        """The part of half-open intervals that lies within ``depth`` of their finite end."""
        return self._replace(
            low=torch.where(self.low.isinf(), self.high - depth, self.low),
            high=torch.where(self.high.isinf(), self.low + depth, self.high),
        )


class Censoring(NamedTuple):
    """Limits of the visible units: ``low`` and ``high`` (N,), infinite where there is none."""

    low: Tensor
    high: Tensor

    @property
    def n(self) -> int:
        """Number of visible units that have a limit."""
        return int((self.low.isfinite() | self.high.isfinite()).sum())

    def recorded(self, v: Tensor) -> Tensor:
        """x = clip(v, low, high), (..., N)."""
        return torch.minimum(torch.maximum(v, self.low), self.high)

    def interval(self, x: Tensor, width: float = 0.0) -> Interval:
        """Intervals of the latent values of measurements x (..., N). A value beyond a limit counts as at it.

        With a ``width`` measurements are also rounded to multiples of it: inside the limits each is an interval.
        """
        at_low = (x <= self.low) | (x == self.low.float().to(x))  # as float32 has it, where x is of such numbers
        at_high = (x >= self.high) | (x == self.high.float().to(x))
        x = self.recorded(x)
        low, high = x - 0.5 * width, x + 0.5 * width
        return Interval(torch.where(at_low, -torch.inf, low), torch.where(at_high, torch.inf, high))

    def mean(self, mean: Tensor, std: Tensor) -> Tensor:
        """The mean of measurements of v ~ N(mean, std²), per unit: (..., N)."""
        a, b = (self.low - mean) / std, (self.high - mean) / std
        below, inside = torch.special.ndtr(a), torch.special.ndtr(b) - torch.special.ndtr(a)
        density = (torch.exp(-0.5 * a.square()) - torch.exp(-0.5 * b.square())) / math.sqrt(2 * math.pi)
        ends = below * self.low.nan_to_num(neginf=0.0) + torch.special.ndtr(-b) * self.high.nan_to_num(posinf=0.0)
        return ends + inside * mean + density * std

    def mapped(self, coordinates: Callable[[Tensor], Tensor]) -> Self:
        """Limits in other ``coordinates``: a rising map of each unit by itself."""
        return type(self)(coordinates(self.low), coordinates(self.high))

    def to(self, like: Tensor) -> Self:
        """On the device of ``like``, in its dtype."""
        return type(self)(self.low.to(like), self.high.to(like))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in files."""
        return dict(zip(NAMES, self, strict=True))


class Uncensored(Censoring):
    """No limits: passes everything through. Files hold nothing of it."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "UNCENSORED"  # a copy is the one that there is

    def recorded(self, v: Tensor) -> Tensor:
        return v

    def mean(self, mean: Tensor, std: Tensor) -> Tensor:
        return mean

    def interval(self, x: Tensor, width: float = 0.0) -> Interval:
        return Interval(x - 0.5 * width, x + 0.5 * width) if width else Interval(x, x)

    def mapped(self, coordinates: Callable[[Tensor], Tensor]) -> Self:
        return self

    def to(self, like: Tensor) -> Self:
        return self

    def tensors(self) -> dict[str, Tensor]:
        return {}


NAMES = ("limit_low", "limit_high")
UNCENSORED = Uncensored(torch.full((1,), -torch.inf), torch.full((1,), torch.inf))


def from_tensors(tensors: dict[str, Tensor], n_visible: int, source: str) -> Censoring:
    """Build what `Censoring.tensors` gave, for that many visible units; other names are ignored.

    Raises UserError, which names the ``source``, where they are damaged.
    """
    low, high = (tensors.get(name) for name in NAMES)
    if low is None and high is None:
        return UNCENSORED
    if low is None or high is None or not (low.shape == high.shape == (n_visible,)) or not bool((low < high).all()):
        raise UserError(f"{source} holds limits that are not whole; restore the file, or train again.")
    return Censoring(low, high)
