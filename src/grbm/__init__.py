"""Gaussian-Bernoulli restricted Boltzmann machines: model, samplers, learning, exact answers.

The package imports with torch, numpy and safetensors alone; heavier things are imported where they are used.
"""

import importlib
from typing import Any

from grbm.conditional import Conditional, Imputed, impute
from grbm.errors import DivergenceError, ScaleWarning, UserError
from grbm.initialise import anchored_, paper_, sparse_
from grbm.model import GRBM, Base, Energy
from grbm.moments import Moments, gradient
from grbm.objectives import CD, PCD, ModifiedCD, Objective
from grbm.samplers import (
    Annealed,
    Chains,
    Gibbs,
    GibbsLangevin,
    Langevin,
    ParallelTempering,
    PartialGibbs,
    Sampler,
    TrajectoryTempering,
    sample,
    walk,
)
from grbm.training import TrainState, fit, train_step

__version__ = "0.1.0"

__all__ = [
    "CD",
    "GRBM",
    "PCD",
    "Annealed",
    "Base",
    "Chains",
    "Conditional",
    "DivergenceError",
    "Energy",
    "GaussianBernoulliRBM",
    "Gibbs",
    "GibbsLangevin",
    "Imputed",
    "Langevin",
    "ModifiedCD",
    "Moments",
    "Objective",
    "ParallelTempering",
    "PartialGibbs",
    "Sampler",
    "ScaleWarning",
    "TrainState",
    "TrajectoryTempering",
    "UserError",
    "anchored_",
    "fit",
    "gradient",
    "impute",
    "paper_",
    "sample",
    "sparse_",
    "train_step",
    "walk",
]


def __getattr__(name: str) -> Any:
    """The estimator, imported when asked for: it needs scikit-learn."""
    if name == "GaussianBernoulliRBM":
        return importlib.import_module("grbm.estimator").GaussianBernoulliRBM
    raise AttributeError(f"module 'grbm' has no attribute {name!r}")
