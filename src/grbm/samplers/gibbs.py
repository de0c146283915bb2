"""Block Gibbs sampling (Alg. 5)."""

from dataclasses import dataclass

from grbm.model import Energy
from grbm.samplers.moves import Moves, MoveSampler, partial_moves


@dataclass(frozen=True)
class Gibbs(MoveSampler):
    """v' ~ p(v | h), then h' ~ p(h | v'). Exact, no step size; forgets v at once but not h."""

    exact = True

    def moves(self, energy: Energy, n_steps: int) -> Moves:
        return partial_moves(energy.var, 0.0)
