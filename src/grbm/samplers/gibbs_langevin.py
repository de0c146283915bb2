"""Gibbs-Langevin sampling (Alg. 2, Eqs. 9-12), the paper's contribution, with its inner loop collapsed."""

from dataclasses import dataclass

from grbm.model import Energy
from grbm.samplers.langevin import LangevinOptions, first_step_size
from grbm.samplers.moves import Moves, MoveSampler, k_step_moves
from grbm.schedules import cosine_steps


@dataclass(frozen=True)
class GibbsLangevin(LangevinOptions, MoveSampler):
    """Given h, K Langevin steps on E(·, h); then h' ~ p(h | v').

    The K steps are linear and Gaussian, so they cost one product with W and one normal draw whatever K is (Eq. 11).
    Options as in `Langevin`, and ``n_inner`` = K; the cosine schedule runs over the K inner steps.
    Unadjusted, the move overshoots or undershoots σ² and the sampler is biased.
    """

    n_inner: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_inner < 1:
            raise ValueError(f"n_inner must be at least 1, got {self.n_inner}.")

    def moves(self, energy: Energy, n_steps: int) -> Moves:
        first = first_step_size(energy.var, self.step_size, self.per_unit)
        schedule = cosine_steps(self.n_inner, first.device)
        step_sizes = schedule.view(-1, *[1] * first.ndim) * first
        return k_step_moves(energy.var, step_sizes, self.temperature, self.adjust_from)
