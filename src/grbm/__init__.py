"""Gaussian-Bernoulli restricted Boltzmann machines: model, samplers, learning, exact answers.

The package imports with torch, numpy and safetensors alone; heavier things, and PyTorch itself, are imported where they
are used.
"""

from typing import TYPE_CHECKING

from grbm.lazy import lazily

if TYPE_CHECKING:
    from grbm.conditional import Conditional, Imputed, impute
    from grbm.errors import Divergence, DivergenceError, ScaleWarning, UserError
    from grbm.estimator import GaussianBernoulliRBM
    from grbm.initialise import anchored_, matched_, paper_, sparse_
    from grbm.model import GRBM, Base, Energy
    from grbm.moments import Moments, gradient
    from grbm.objectives import CD, PCD, ModifiedCD, Objective
    from grbm.options import FitOptions
    from grbm.reference import Reference
    from grbm.samplers import (
        Annealed,
        Chains,
        Gibbs,
        GibbsLangevin,
        GlobalMoves,
        Langevin,
        MoveSampler,
        ParallelTempering,
        PartialGibbs,
        Sampler,
        TrajectoryTempering,
        sample,
        walk,
    )
    from grbm.training import TrainState, fit, train_step

__version__ = "0.2.0"

__all__ = [
    "CD",
    "GRBM",
    "PCD",
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
    "GlobalMoves",
    "Imputed",
    "Langevin",
    "ModifiedCD",
    "Moments",
    "MoveSampler",
    "Objective",
    "ParallelTempering",
    "PartialGibbs",
    "Reference",
    "Sampler",
    "ScaleWarning",
    "TrainState",
    "TrajectoryTempering",
    "UserError",
    "anchored_",
    "fit",
    "gradient",
    "impute",
    "matched_",
    "paper_",
    "sample",
    "sparse_",
    "train_step",
    "walk",
]
PUBLIC = {
    "grbm.conditional": ["Conditional", "Imputed", "impute"],
    "grbm.errors": ["Divergence", "DivergenceError", "ScaleWarning", "UserError"],
    "grbm.estimator": ["GaussianBernoulliRBM"],
    "grbm.initialise": ["anchored_", "matched_", "paper_", "sparse_"],
    "grbm.model": ["GRBM", "Base", "Energy"],
    "grbm.moments": ["Moments", "gradient"],
    "grbm.objectives": ["CD", "PCD", "ModifiedCD", "Objective"],
    "grbm.options": ["FitOptions"],
    "grbm.reference": ["Reference"],
    "grbm.samplers": [
        "Annealed",
        "Chains",
        "Gibbs",
        "GibbsLangevin",
        "GlobalMoves",
        "Langevin",
        "MoveSampler",
        "ParallelTempering",
        "PartialGibbs",
        "Sampler",
        "TrajectoryTempering",
        "sample",
        "walk",
    ],
    "grbm.training": ["TrainState", "fit", "train_step"],
}
MODULES = (
    *("conditional", "errors", "estimator", "initialise", "model", "moments", "objectives", "options", "randomness"),
    *("runs", "samplers", "schedules", "training"),
)

__getattr__, __dir__ = lazily(__name__, PUBLIC, MODULES)
