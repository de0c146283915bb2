"""The Gaussian-Bernoulli RBM: its energy, `GRBM` as a PyTorch module, contrasts, references and initial parameters."""

from grbm.model.energy import Base, Energy, TemperedEnergy, base_for, softplus
from grbm.model.grbm import GRBM

__all__ = ["GRBM", "Base", "Energy", "TemperedEnergy", "base_for", "softplus"]
