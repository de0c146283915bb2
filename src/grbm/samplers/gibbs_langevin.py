"""Gibbs-Langevin sampling (Alg. 2, Eqs. 9-12), the paper's contribution, with its inner loop collapsed."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from grbm.model import Energy
from grbm.samplers.langevin import LangevinOptions
from grbm.samplers.moves import Moves, MoveSampler


@dataclass(frozen=True)
class GibbsLangevin(LangevinOptions, MoveSampler):
    """Given h, K Langevin steps on E(·, h); then h' ~ p(h | v').

    The K steps are linear and Gaussian, so they cost one product with W and one normal draw whatever K is (Eq. 11).
    Unadjusted, the move overshoots or undershoots σ² and the sampler is biased.

    Parameters
    ----------
    step_size, adjust_from, temperature, per_unit, accept_temperature
        As in `grbm.samplers.langevin.LangevinOptions`: by default 0.04, no Metropolis test, 1. All but the first are
        given by name. The cosine of step sizes runs over the K inner steps.
    n_inner : int
        K.
    joint : bool
        The test's target is exp(−E(v, h)/T), h included, as in the last public version of the published program; it
        matters at T other than 1.
    """

    n_inner: int = field(default=10, kw_only=True)
    joint: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_inner < 1:
            raise ValueError(f"n_inner must be at least 1, got {self.n_inner}.")

    def moves(self, energy: Energy, n_steps: int) -> Moves:
        moves = k_step_moves(energy.var, self.step_sizes(energy.var, self.n_inner), self.temperature)
        return moves._replace(adjust_from=self.adjust_from, temperature=self.target_temperature, joint=self.joint)


def k_step_moves(var: Tensor, step_sizes: Tensor, temperature: float = 1.0) -> Moves:
    """K Langevin steps on E(·, h), collapsed (Eq. 11), of step sizes α_k (K, ..., N or 1) for σ² (..., N).

    One step is v − m ← (1 − α_k/(Tσ²)) (v − m) + sqrt(2α_k) ξ, so shrink is the product of the factors β_0, the
    noise variance is Σ 2α_k β_k² with β_k the later ones', and the paper's a = Σ β_k α_k/σ² telescopes to 1 − β_0.
    In float64, because σ² falls to 1e-5.
    """
    alpha = step_sizes.double()
    factor = 1 - alpha / (temperature * var.double())
    from_here = factor.flip(0).cumprod(0).flip(0)  # products of this step's factor and all later ones
    later = torch.cat([from_here[1:], torch.ones_like(from_here[:1])])
    noise_var = (2 * alpha * later.square()).sum(0, keepdim=True)
    return Moves(from_here[:1].to(var), noise_var.sqrt().to(var))
