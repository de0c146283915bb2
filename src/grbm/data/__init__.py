"""Data sets as (n, N) tensors, and their standardisation."""

from grbm.data.mixtures import MIXTURES, Mixture
from grbm.data.standardise import Standardizer

__all__ = ["MIXTURES", "Mixture", "Standardizer"]
