"""Censoring: measurements that stop at limits, as pixels at black, values below a detection limit and scores at a top.

x = clip(v, low, high) of a latent v that the machine describes (Tobit 1958). A value inside the limits is v itself and
has a density; a value at a limit says that v lies at it or beyond, and has a probability.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from grbm.core.errors import UserError


class Interval(NamedTuple):
    """Where latent values lie, (..., N) each: between two numbers, which are equal where the value is known."""

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
        """Where the latent values of measurements x (..., N) lie. A value outside its limits counts as at them.

        With a ``width`` measurements are also rounded to multiples of it: inside the limits each is an interval.
        """
        x = self.recorded(x)
        low, high = x - 0.5 * width, x + 0.5 * width
        return Interval(torch.where(x <= self.low, -torch.inf, low), torch.where(x >= self.high, torch.inf, high))

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

    def recorded(self, v: Tensor) -> Tensor:
        return v

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
