"""Markov chains on (v, h): Gibbs, Langevin, Gibbs-Langevin, the exact partial moves, tempering and annealing."""

from grbm.samplers.annealing import Annealed
from grbm.samplers.chains import Chains, Sampler, Step, StepInfo, walk
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.gibbs_langevin import GibbsLangevin
from grbm.samplers.langevin import Langevin
from grbm.samplers.partial_gibbs import PartialGibbs
from grbm.samplers.run import run, sample
from grbm.samplers.tempering import ParallelTempering
from grbm.samplers.trajectory import TrajectoryTempering

__all__ = [
    "Annealed",
    "Chains",
    "Gibbs",
    "GibbsLangevin",
    "Langevin",
    "ParallelTempering",
    "PartialGibbs",
    "Sampler",
    "Step",
    "StepInfo",
    "TrajectoryTempering",
    "run",
    "sample",
    "walk",
]
