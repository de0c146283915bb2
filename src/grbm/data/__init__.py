"""Data sets as (n, N) tensors, and their standardisation."""

from typing import TYPE_CHECKING

from grbm.core.lazy import lazily

if TYPE_CHECKING:
    from grbm.data.mixtures import MIXTURES as MIXTURES, Mixture as Mixture
    from grbm.data.transforms import Elementwise as Elementwise, Whitening as Whitening

__getattr__, __dir__ = lazily(__name__)
