"""Langevin Monte Carlo on the free energy (Alg. 1), with or without Metropolis adjustment."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

from torch import Tensor

from grbm.core.schedules import cosine_steps
from grbm.model import Energy
from grbm.samplers.moves import Moves, MoveSampler


@dataclass(frozen=True)
class LangevinOptions:
    """Parts that the two Langevin samplers share.

    Parameters
    ----------
    step_size : float
        α₀, in units of the variance: α = α₀ · mean(σ²), or α₀ σ_i² with ``per_unit``.
    adjust_from : int, optional
        The paper's adjust step η: Metropolis-Hastings from this step on; 0 = always, None = never.
    temperature : float
        T in v' = v − (α/T) ∂ + sqrt(2α) ξ; 1 is the paper, the batch size is the published program.
    per_unit : bool
        A step size per unit keeps α/σ_i² equal for all; else the unit of smallest variance overshoots first.
    accept_temperature : float, optional
        T of the Metropolis test alone, whose target is exp(−F/T) p(h | v) (but see ``joint`` of `GibbsLangevin`); by
        default that of the proposals. At 1 the sampler is exact whatever the temperature of its proposals, which are
        then wide, global ones: the published program as it was when the paper was written.
    """

    step_size: float = 0.04
    _: KW_ONLY
    adjust_from: int | None = None
    temperature: float = 1.0
    per_unit: bool = False
    accept_temperature: float | None = None

    has_step_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.step_size > 0 and self.temperature > 0):
            raise ValueError(f"step_size and temperature must be positive, got {self.step_size}, {self.temperature}.")
        if self.accept_temperature is not None and not self.accept_temperature > 0:
            raise ValueError(f"accept_temperature must be positive, got {self.accept_temperature}.")
        if self.adjust_from is not None and self.adjust_from < 0:
            raise ValueError(f"adjust_from must be None or at least 0, got {self.adjust_from}.")

    @property
    def exact(self) -> bool:
        """Adjusted at every step, and at temperature 1."""
        return self.adjust_from == 0 and self.target_temperature == 1

    @property
    def target_temperature(self) -> float:
        """Of what adjusted chains leave unchanged."""
        return self.temperature if self.accept_temperature is None else self.accept_temperature

    def step_sizes(self, var: Tensor, n: int) -> Tensor:
        """α_k for k = 0..n−1 by the cosine (Eq. 22), (n, ..., N or 1), float64."""
        first = self._first_step_size(var)
        return cosine_steps(n, first.device).view(-1, *[1] * first.ndim) * first

    def _first_step_size(self, var: Tensor) -> Tensor:
        """α_0, as the paper has it (..., 1), or per unit (..., N); float64."""
        var = var.double()
        return self.step_size * (var if self.per_unit else var.mean(-1, keepdim=True))

    def overshoot(self, energy: Energy) -> Tensor:
        """α₀-step over Tσ_i² per unit (N,): above 2 the proposal moves v away from the mean, and v diverges."""
        return (self._first_step_size(energy.var) / (self.temperature * energy.var)).squeeze()

    def rescaled(self, share: float) -> Self:
        """With a ``share`` of the step size."""
        return replace(self, step_size=self.step_size * share)

    def for_batch(self, size: int, usual: int) -> Self:
        """A temperature that is the size of a batch, as in the published program, is that of this batch."""
        return replace(self, temperature=float(size)) if self.temperature == usual else self


@dataclass(frozen=True)
class Langevin(LangevinOptions, MoveSampler):
    """v' = v − (α_t/T) ∂F/∂v + sqrt(2α_t) ξ (Eqs. 6-8); the cosine schedule runs over the steps of the walk.

    h is not needed to move; it is drawn from p(h | v') for the statistics. Unadjusted, it is biased by the step size.
    Its parameters are those of `grbm.samplers.langevin.LangevinOptions`.
    """

    def moves(self, energy: Energy, n_steps: int) -> Moves:
        """∂F = (v − m)/σ² with m = μ + W p(h | v) (Eq. 21)."""
        var = energy.var
        step_sizes = self.step_sizes(var, n_steps).expand(-1, *var.shape)
        shrink, noise_std = 1 - step_sizes / (self.temperature * var.double()), (2 * step_sizes).sqrt()
        return Moves(shrink.to(var), noise_std.to(var), True, self.adjust_from, self.target_temperature)
