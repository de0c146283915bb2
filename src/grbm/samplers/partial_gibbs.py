"""The rejection-free family: partial moves of v that leave p(v | h) unchanged."""

from dataclasses import dataclass

import torch

from grbm.model import Energy
from grbm.samplers.moves import Moves, MoveSampler


@dataclass(frozen=True)
class PartialGibbs(MoveSampler):
    """v' = m + ρ (v − m) + sqrt(1 − ρ²) σ ξ with m = μ + W h, then h' ~ p(h | v'). Exact for any ρ in (−1, 1).

    ρ = 0 is Gibbs; ρ > 0 is Gibbs-Langevin with exact noise: small moves of v between redraws of h, which cross from
    one h to another more easily; ρ < 0 is Adler's over-relaxation.
    """

    rho: float = 0.8
    exact = True

    def __post_init__(self) -> None:
        if not -1 < self.rho < 1:
            raise ValueError(f"rho must lie strictly between -1 and 1, got {self.rho}.")

    def moves(self, energy: Energy, n_steps: int) -> Moves:
        """The variance is kept: ρ² σ² + (1 − ρ²) σ² = σ²."""
        return Moves(torch.full_like(energy.var, self.rho)[None], ((1 - self.rho**2) * energy.var).sqrt()[None])
