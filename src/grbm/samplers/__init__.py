"""Markov chains on (v, h): Gibbs, Langevin, Gibbs-Langevin, the exact partial moves, tempering and annealing."""

from grbm.samplers.annealing import Annealed as Annealed
from grbm.samplers.chains import Chains as Chains, Sampler as Sampler, Step as Step, StepInfo as StepInfo
from grbm.samplers.chains import Walk as Walk, walk as walk
from grbm.samplers.gibbs import Gibbs as Gibbs
from grbm.samplers.gibbs_langevin import GibbsLangevin as GibbsLangevin
from grbm.samplers.global_moves import GlobalMoves as GlobalMoves
from grbm.samplers.langevin import Langevin as Langevin
from grbm.samplers.moves import Moves as Moves, MoveSampler as MoveSampler
from grbm.samplers.partial_gibbs import PartialGibbs as PartialGibbs
from grbm.samplers.sampling import run_chains as run_chains, sample as sample
from grbm.samplers.tempering import ParallelTempering as ParallelTempering
from grbm.samplers.trajectory import TrajectoryTempering as TrajectoryTempering
