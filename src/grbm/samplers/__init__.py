"""Markov chains on (v, h): Gibbs, Langevin, Gibbs-Langevin, the exact partial moves, tempering and annealing."""

from grbm.samplers.annealing import Annealed
from grbm.samplers.chains import Chains, Sampler, Step, StepInfo, Walk, walk
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.gibbs_langevin import GibbsLangevin
from grbm.samplers.global_moves import GlobalMoves
from grbm.samplers.langevin import Langevin
from grbm.samplers.moves import Moves, MoveSampler
from grbm.samplers.partial_gibbs import PartialGibbs
from grbm.samplers.sampling import run_chains, sample
from grbm.samplers.tempering import ParallelTempering
from grbm.samplers.trajectory import TrajectoryTempering

__all__ = [
    "Annealed",
    "Chains",
    "Gibbs",
    "GibbsLangevin",
    "GlobalMoves",
    "Langevin",
    "MoveSampler",
    "Moves",
    "ParallelTempering",
    "PartialGibbs",
    "Sampler",
    "Step",
    "StepInfo",
    "TrajectoryTempering",
    "Walk",
    "run_chains",
    "sample",
    "walk",
]
