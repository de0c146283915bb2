"""Gaussian-Bernoulli restricted Boltzmann machines: model, samplers, learning, exact answers.

The package imports with torch, numpy and safetensors alone; heavier things are imported where they are used.
"""

import importlib
from typing import Any

from grbm.conditional import Conditional, Imputed, impute
from grbm.errors import Divergence, DivergenceError, ScaleWarning, UserError
from grbm.initialise import anchored_, paper_, sparse_
from grbm.model import GRBM, Base, Energy
from grbm.moments import Moments, gradient
from grbm.moved import forward_old_names
from grbm.objectives import CD, PCD, ModifiedCD, Objective
from grbm.samplers import (
    AdaptiveSampler,
    Annealed,
    Chains,
    Gibbs,
    GibbsLangevin,
    Langevin,
    MoveSampler,
    ParallelTempering,
    PartialGibbs,
    Sampler,
    TrajectoryTempering,
    sample,
    walk,
)
from grbm.training import FitOptions, TrainState, fit, train_step

__version__ = "0.2.0"

__all__ = [
    "CD",
    "GRBM",
    "PCD",
    "AdaptiveSampler",
    "Annealed",
    "Base",
    "Chains",
    "Conditional",
    "Divergence",
    "DivergenceError",
    "Energy",
    "FitOptions",
    "GaussianBernoulliRBM",
    "Gibbs",
    "GibbsLangevin",
    "Imputed",
    "Langevin",
    "ModifiedCD",
    "Moments",
    "MoveSampler",
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


forward_old_names()


def __getattr__(name: str) -> Any:
    """The estimator, imported when asked for: it needs scikit-learn."""
    if name == "GaussianBernoulliRBM":
        return importlib.import_module("grbm.estimator").GaussianBernoulliRBM
    raise AttributeError(f"module 'grbm' has no attribute {name!r}")
