"""Gaussian-Bernoulli restricted Boltzmann machines: model, samplers, learning, exact answers.

The package imports with torch, numpy and safetensors alone; heavier things, and PyTorch itself, are imported where they
are used.
"""

from typing import TYPE_CHECKING

from grbm.core.lazy import lazily

if TYPE_CHECKING:
    from grbm.core.errors import (
        Divergence as Divergence,
        DivergenceError as DivergenceError,
        ScaleWarning as ScaleWarning,
        UserError as UserError,
    )
    from grbm.core.options import FitOptions as FitOptions
    from grbm.fitting.estimator import GaussianBernoulliRBM as GaussianBernoulliRBM
    from grbm.learning.objectives import CD as CD, PCD as PCD, ModifiedCD as ModifiedCD, Objective as Objective
    from grbm.learning.state import TrainState as TrainState
    from grbm.learning.training import fit as fit, train_step as train_step
    from grbm.model import GRBM as GRBM, Base as Base, Energy as Energy
    from grbm.model.initialise import anchored_ as anchored_, matched_ as matched_, paper_ as paper_, sparse_ as sparse_
    from grbm.model.reference import Reference as Reference
    from grbm.samplers import (
        Annealed as Annealed,
        Chains as Chains,
        Gibbs as Gibbs,
        GibbsLangevin as GibbsLangevin,
        GlobalMoves as GlobalMoves,
        Langevin as Langevin,
        MoveSampler as MoveSampler,
        ParallelTempering as ParallelTempering,
        PartialGibbs as PartialGibbs,
        Sampler as Sampler,
        TrajectoryTempering as TrajectoryTempering,
        sample as sample,
        walk as walk,
    )
    from grbm.samplers.conditional import Conditional as Conditional, Imputed as Imputed, impute as impute
    from grbm.samplers.moments import Moments as Moments, gradient as gradient

__version__ = "0.2.0"
__getattr__, __dir__ = lazily(__name__)
