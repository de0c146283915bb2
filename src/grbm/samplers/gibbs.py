"""Block Gibbs sampling (Alg. 5)."""

from dataclasses import dataclass

from grbm.model import Energy
from grbm.samplers.chains import Sampler, Step
from grbm.samplers.moves import conditional_step, partial_move


@dataclass(frozen=True)
class Gibbs(Sampler):
    """v' ~ p(v | h), then h' ~ p(h | v'). Exact, no step size; forgets v at once but not h."""

    exact = True

    def bind(self, energy: Energy, n_steps: int) -> Step:
        return conditional_step(energy, partial_move(energy.var, 0.0))
