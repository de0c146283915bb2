"""Block Gibbs sampling (Alg. 5)."""

from dataclasses import dataclass

import torch

from grbm.model import Energy
from grbm.samplers.moves import Moves, MoveSampler


@dataclass(frozen=True)
class Gibbs(MoveSampler):
    """v' ~ p(v | h), then h' ~ p(h | v'). Exact, no step size; forgets v at once but not h."""

    exact = True

    def moves(self, energy: Energy, n_steps: int) -> Moves:
        """v' = m + σ ξ: nothing of v is kept."""
        return Moves(torch.zeros_like(energy.var)[None], energy.var.sqrt()[None])
