"""Data sets as (n, N) tensors, and their standardisation."""

from typing import TYPE_CHECKING

from grbm.lazy import lazily

if TYPE_CHECKING:
    from grbm.data.mixtures import MIXTURES, Mixture
    from grbm.data.transforms import Elementwise, Whitening

__all__ = ["MIXTURES", "Elementwise", "Mixture", "Whitening"]
__getattr__, __dir__ = lazily(
    __name__, {"grbm.data.mixtures": ["MIXTURES", "Mixture"], "grbm.data.transforms": ["Elementwise", "Whitening"]}
)
