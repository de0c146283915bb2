"""Visible units that were not measured, or not exactly, given those that were: inpainting, imputation, denoising.

A measurement y_i = v_i + noise of variance s_i² (0: exact, ∞: missing) changes the conditional of v alone:
v_i | h, y ~ N(m_i + g_i (y_i − m_i), (1 − g_i) σ_i²) with m = μ + W h and g_i = σ_i²/(σ_i² + s_i²), while h | v stays
as it is. Where v is only known to lie in an interval, as beyond a limit, this normal is truncated to it. Block Gibbs
between the two leaves p(v, h | y) unchanged: nothing to tune, nothing to reject.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, Rng, normal, seed_of, uniform
from grbm.model import GRBM, Base, Energy
from grbm.model.censoring import Interval
from grbm.samplers import Chains, ParallelTempering, Sampler, Step, StepInfo, walk
from grbm.samplers.chains import Walk, Walked
from grbm.samplers.engines import engine_for
from grbm.samplers.truncated import truncated_normal
from grbm.samplers.updates import hidden_update

CHUNK = 8192  # chains at a time


@dataclass(frozen=True, eq=False)
class Conditional(Sampler):
    """Block Gibbs on p(v, h | y): chain c moves under what was measured in row c.

    ``grbm.sample(model, Conditional(y), n_chains=len(y), n_steps=200)`` draws the rest of every row. Tempered, where
    the rest could be one of several quite different things: ``ParallelTempering(sampler=Conditional(y))``.

    Parameters
    ----------
    observed : Tensor
        y (C, N) in the model's units; NaN where nothing was measured.
    noise_var : Tensor or float
        s², broadcast against ``observed``: the variance of the measurements' errors. 0 keeps v at y.
    within : Interval, optional
        Where v lies, (C, N) each, infinite ends where nothing is known.
    """

    observed: Tensor
    noise_var: Tensor | float = 0.0
    within: Interval | None = None
    exact = True  # it leaves p(v, h | y) unchanged
    conditions = True

    def __post_init__(self) -> None:
        if not (torch.as_tensor(self.noise_var) >= 0).all():
            raise ValueError("noise_var is a variance and must not be negative.")

    @classmethod
    def of(cls, within: Interval) -> Self:
        """Under measurements that are intervals: known where both ends are equal."""
        return cls(torch.where(within.is_open, torch.nan, within.low), within=within)

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """From N(0, I) where nothing was measured, else from the measurement."""
        self._check(n_chains)
        y = self.observed.to(energy.W)
        return torch.where(y.isnan(), super().noise(energy, n_chains, rng), y)

    def start(self, energy: Energy, v: Tensor, rng: Rng) -> Chains:
        self._check(v.shape[-2])
        return super().start(energy, v, rng)

    def _check(self, n_chains: int) -> None:
        if n_chains != len(self.observed):
            raise ValueError(f"There is a chain for each of the {len(self.observed)} rows observed, not {n_chains}.")

    def bind(self, energy: Energy, n_steps: int) -> Step:
        given = self.given_hidden(energy)

        def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
            v = given.draw(energy, chains, rng)
            return Chains(v, *hidden_update(energy.hidden_logits(v), rng=rng)), StepInfo()

        return step

    def at_once(self, energy: Energy, walk: Walk, rng: Rng) -> Walked | None:
        if walk.burn_in is not None:  # sums by block are not taken
            return None
        self._check(walk.v.shape[-2])
        found = engine_for(energy.W, rng).run_given(energy, self.given_hidden(energy), walk, rng)
        return None if found is None else Walked(found[0], None)

    def given_hidden(self, energy: Energy) -> "GivenHidden":
        """Parts of p(v | h, y)."""
        if self.observed.shape[1:] != (energy.n_visible,):
            raise ValueError(f"observed must be (C, {energy.n_visible}), got shape {tuple(self.observed.shape)}.")
        given, like = self.noise_var, energy.W
        if isinstance(given, (int, float)):
            noise_var = like.new_full((), given)  # which waits for no copy from the host
        else:
            noise_var = torch.as_tensor(given, dtype=like.dtype, device=like.device)
        y = self.observed.to(energy.W)
        unknown = y.isnan() | noise_var.isinf()
        g = torch.where(unknown, 0.0, energy.var / (energy.var + noise_var))
        var = torch.where(unknown, energy.var, g * noise_var)  # (1 − g) σ², without a difference
        within = None if self.within is None else Interval(*(end.to(energy.W) for end in self.within))
        return GivenHidden(y.nan_to_num(), g, var.sqrt(), within)


class GivenHidden(NamedTuple):
    """p(v | h, y), each (C, N): its mean is m + g (y − m) with m = μ + W h."""

    y: Tensor  # 0 where nothing was measured
    g: Tensor
    std: Tensor  # 0 where v is known
    within: Interval | None = None  # to which it is truncated

    def mean(self, energy: Energy, h: Tensor) -> Tensor:
        """For h ([R,] C, M)."""
        return torch.lerp(energy.visible_mean(h), self.y, self.g)

    def draw(self, energy: Energy, chains: Chains, rng: Rng) -> Tensor:
        """v ~ p(v | h, y)."""
        v, mean = chains.v, self.mean(energy, chains.h)
        if self.within is None:
            return torch.addcmul(mean, self.std, normal(v.shape, v, rng))
        return torch.where(self.std > 0, truncated_normal(mean, self.std, self.within, uniform(v.shape, v, rng)), mean)


class Imputed(NamedTuple):
    """Mean and deviation of p(v | y), (n, N)."""

    mean: Tensor
    std: Tensor


class Filled(NamedTuple):
    """Mean and deviation of p(v | y), (n, N), and draws of it (n, C, N), one of each chain; none where not kept."""

    mean: Tensor
    std: Tensor
    draws: Tensor

    @property
    def imputed(self) -> Imputed:
        """Without the draws."""
        return Imputed(self.mean, self.std)


class Filling(NamedTuple):
    """Chains that fill the gaps of rows, begun at noise."""

    n_steps: int = 200
    burn_in: int = 50  # first steps, which do not count
    n_chains: int = 4  # for each row
    n_replicas: int | None = None  # of parallel tempering; None: 4 for up to 20 visible units, else 1
    seed: int = 0
    keep_draws: bool = False  # whether the last states of the chains are kept, as draws

    def new_draws(self, known: Tensor) -> Tensor:
        """Tensor for the draws of rows ``known`` (n, N), copies of them: (n, n_chains, N), or (n, 0, N)."""
        return known[:, None].repeat(1, self.n_chains if self.keep_draws else 0, 1)

    def tempered(self, given: Conditional, base: Base | None, n_visible: int) -> Sampler:
        """Temper chains that move under measurements; in many dimensions few replicas hardly swap."""
        n_replicas = self.n_replicas or (4 if n_visible <= 20 else 1)
        return given if n_replicas == 1 else ParallelTempering(base, n_replicas, sampler=given)

    def parts(self, is_open: Tensor, size: int) -> Iterator[tuple[Tensor, Blocks]]:
        """Numbers of the rows that ``is_open`` (n,), so many at a time, and the random numbers of their chains."""
        rows, size = is_open.nonzero()[:, 0], max(1, size)
        for first in range(0, len(rows), size):
            yield rows[first : first + size], Blocks(seed_of(self.seed, "impute", first), 1, device=rows.device)

    def over(self, *sums: Tensor) -> list[Tensor]:
        """Means over the steps that count and the chains of each row, of sums over steps by chain (n C, K)."""
        return [x.view(-1, self.n_chains, x.shape[1]).mean(1) / (self.n_steps - self.burn_in) for x in sums]

    def summed(
        self, energy: Energy, sampler: Sampler, v: Tensor, rng: Rng, seen: Callable[[Chains], Tensor]
    ) -> tuple[Tensor, Tensor, Chains]:
        """Sums of what is ``seen`` (n C, K) of chains from v, and of its square, over the steps that count.

        And the chains as they end.
        """
        start, sums = sampler.start(energy, v, rng), torch.zeros((), dtype=torch.float64)
        total, squares, last = sums, sums, start
        for t, last, _ in walk(energy, sampler, start, self.n_steps, rng):
            if t >= self.burn_in:
                x = seen(last).double()
                total, squares = total + x, squares + x.square()
        return total, squares, last


@torch.no_grad()
def impute(
    model: GRBM,
    observed: Any,
    *,
    noise_var: Any = 0.0,
    n_steps: int = 200,
    burn_in: int = 50,
    n_chains: int = 4,
    n_replicas: int | None = None,
    base: Base | None = None,
    seed: int = 0,
) -> Imputed:
    """Mean and deviation of p(v | y): the best guess of what is missing or noisy, and how sure the model is.

    Parameters
    ----------
    observed : Tensor or array
        y (n, N) in the model's units; NaN where nothing was measured.
    noise_var : Tensor, array or float
        Variance of the measurements' errors, broadcast against ``observed``.
    n_steps, burn_in : int
        Steps of every chain, and how many of the first do not count.
    n_chains : int
        Chains for each row, all from noise where it has gaps.
    n_replicas, base : int, Base
        More than 1 replica temper the chains, from ``base`` (by default N(0, I)), so that they go from one way to fill
        the gaps to another. By default 4 for up to 20 visible units, else 1: in more dimensions so few hardly swap.

    Returns
    -------
    Imputed
        Exact as the chains get longer. Rows are independent, but share a stream of random numbers: alone, one gives
        other numbers than among others, within the chains' errors. Averages are of the conditional mean and variance of
        v given h, not of draws, which makes them as sure as several times as many steps.

    Raises
    ------
    ValueError
        For a wrong shape, infinite numbers, a negative variance, or a burn-in that leaves no steps.
    """
    observed = torch.as_tensor(observed)
    if observed.ndim != 2 or observed.shape[1] != model.n_visible:
        raise ValueError(f"observed must be (n, {model.n_visible}), got shape {tuple(observed.shape)}.")
    if model.contrasts.n > 1:
        raise ValueError("Gaps in data of several contrasts are filled by grbm.fitting.impute.impute_columns.")
    if model.censoring.n:
        raise ValueError("Gaps in censored data are filled by grbm.fitting.density.Fitted.impute.")
    if observed.isinf().any():
        raise ValueError("observed holds infinite numbers; NaN marks what is missing.")
    if not 0 <= burn_in < n_steps or n_chains < 1 or (n_replicas is not None and n_replicas < 1):
        raise ValueError(
            f"Need 0 <= burn_in < n_steps, n_chains >= 1 and n_replicas >= 1, got {burn_in}, {n_steps}, {n_chains} and "
            f"{n_replicas}."
        )
    return fill(model, observed, noise_var, Filling(n_steps, burn_in, n_chains, n_replicas, seed), base).imputed


@torch.no_grad()
def fill(model: GRBM, observed: Tensor, noise_var: Any, filling: Filling, base: Base | None = None) -> Filled:
    """Fill rows ``observed`` (n, N), as `impute` does."""
    energy, n_chains = model.freeze(), filling.n_chains
    noise: Tensor = torch.as_tensor(noise_var, dtype=energy.W.dtype, device=energy.W.device).expand(observed.shape)
    if not (noise >= 0).all():
        raise ValueError("noise_var is a variance and must not be negative.")
    observed = observed.to(energy.W)
    mean, std, draws = observed.clone(), torch.zeros_like(observed), filling.new_draws(observed)
    is_open = (observed.isnan() | (noise > 0)).any(1)  # the others are known
    for here, rng in filling.parts(is_open, CHUNK // n_chains):
        y, noise_of_y = (x[here].repeat_interleave(n_chains, 0) for x in (observed, noise))
        given = Conditional(y, noise_of_y)
        sampler = filling.tempered(given, base, model.n_visible)
        mean[here], var, last = _moments(energy, given, sampler, filling, rng)
        std[here] = var.sqrt().to(std)
        if filling.keep_draws:
            draws[here] = last.view(-1, *draws.shape[1:])
    return Filled(mean, std, draws)


def _moments(
    energy: Energy, given: Conditional, sampler: Sampler, filling: Filling, rng: Blocks
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of v given y, and last states, of rows whose chains are one after another."""
    conditional = given.given_hidden(energy)
    v = sampler.noise(energy, len(conditional.std), rng)
    found = None
    if sampler is given:
        whole = Walk(v, filling.n_steps, filling.burn_in)
        found = engine_for(energy.W, rng).run_given(energy, conditional, whole, rng)
    if found is None or found[1] is None:
        *sums, last = filling.summed(energy, sampler, v, rng, lambda chains: conditional.mean(energy, chains.h))
    else:
        last, sums = found[0], list(found[1])
    mean, second = filling.over(*sums)
    var = (second - mean.square()).clamp_min(0) + conditional.std[:: filling.n_chains].square()
    return mean.to(v), var, last.v
