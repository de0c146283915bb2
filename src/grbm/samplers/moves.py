"""Moves of v given h as data: v' = m + shrink (v − m) + noise_std ξ with m = μ + W h.

Gibbs is (0, σ); the exact family (ρ, σ sqrt(1 − ρ²)); K Langevin steps on E(·, h) collapse to one such pair; Langevin
on the free energy is such a pair around m = μ + W p(h | v). `move_step` is the definition that `native.c` reproduces.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from grbm.model import Energy
from grbm.ops import draw_noise, hidden_update, visible_update
from grbm.randomness import Rng
from grbm.samplers.chains import Chains, Sampler, Step, StepInfo
from grbm.samplers.metropolis import accept


class Moves(NamedTuple):
    """Per-unit coefficients (T, ..., N) of the moves of a walk, one for each of T steps or one for all.

    With ``mean_field`` the hidden units drive v by their probabilities. From step ``adjust_from`` on each move is
    accepted or rejected at ``temperature``.
    """

    shrink: Tensor
    noise_std: Tensor
    mean_field: bool = False
    adjust_from: int | None = None
    temperature: float = 1.0

    def part(self, first: int, last: int) -> "Moves":
        """The moves of steps first..last−1."""
        adjust_from = None if self.adjust_from is None else max(0, self.adjust_from - first)
        if len(self.shrink) == 1:
            return self._replace(adjust_from=adjust_from)
        here = slice(first, max(last, first + 1))  # a walk of no steps has moves all the same
        return self._replace(shrink=self.shrink[here], noise_std=self.noise_std[here], adjust_from=adjust_from)


def partial_moves(var: Tensor, rho: float) -> Moves:
    """The moves that leave p(v | h) unchanged for any ρ in (−1, 1); ρ = 0 is a fresh draw."""
    return Moves(torch.full_like(var, rho)[None], ((1 - rho**2) * var).sqrt()[None])


def langevin_moves(var: Tensor, step_sizes: Tensor, temperature: float, adjust_from: int | None) -> Moves:
    """Langevin on the free energy: v − (α/T) ∂F + sqrt(2α) ξ, where ∂F = (v − m)/σ² and m = μ + W p(h | v) (Eq. 21)."""
    step_sizes = step_sizes.expand(-1, *var.shape)
    shrink = 1 - step_sizes / (temperature * var.double())
    return Moves(shrink.to(var), (2 * step_sizes).sqrt().to(var), True, adjust_from, temperature)


def k_step_moves(var: Tensor, step_sizes: Tensor, temperature: float = 1.0, adjust_from: int | None = None) -> Moves:
    """K Langevin steps on E(·, h), collapsed (Eq. 11).

    Parameters
    ----------
    var : Tensor
        σ² (..., N).
    step_sizes : Tensor
        α_k (K, ..., N or 1), broadcast against ``var``.
    temperature : float
        T of v' = v − (α/T) ∂E + sqrt(2α) ξ; the published program has T = batch size.
    adjust_from : int, optional
        As in `Moves`.

    Notes
    -----
    One step is v − m ← (1 − α_k/(Tσ²)) (v − m) + sqrt(2α_k) ξ, so shrink is the product of the factors β_0, the
    noise variance is Σ 2α_k β_k² with β_k the later ones', and the paper's a = Σ β_k α_k/σ² telescopes to 1 − β_0.
    In float64, because σ² falls to 1e-5.
    """
    alpha = step_sizes.double()
    factor = 1 - alpha / (temperature * var.double())
    from_here = factor.flip(0).cumprod(0).flip(0)  # products of this step's factor and all later ones
    later = torch.cat([from_here[1:], torch.ones_like(from_here[:1])])
    noise_var = (2 * alpha * later.square()).sum(0, keepdim=True)
    return Moves(from_here[:1].to(var), noise_var.sqrt().to(var), False, adjust_from, temperature)


def k_step_loop(
    v: Tensor, mean: Tensor, var: Tensor, step_sizes: Tensor, noise: Tensor, temperature: float = 1.0
) -> Tensor:
    """The same K Langevin steps one by one (Alg. 2, lines 4-6), with ``noise`` (K, C, N): for tests and teaching."""
    for alpha, xi in zip(step_sizes.to(v), noise, strict=True):
        v = v - alpha * (v - mean) / (temperature * var) + (2 * alpha).sqrt() * xi
    return v


def move_step(energy: Energy, moves: Moves) -> Step:
    """Move v, then draw h' ~ p(h | v'); from step ``adjust_from`` on, accept or reject the pair (Eq. 12).

    The hidden terms of Eq. 12 cancel because E(v, h) = F(v) − log p(h | v) and h' is drawn from p(h | v'):
    log A = (F(v) − F(v'))/T + log q(v | v', h') − log q(v' | v, h), where both q share the covariance noise_std².
    For Langevin, whose q does not depend on h, this is the Metropolis-adjusted algorithm.
    """

    def drive(h: Tensor, h_prob: Tensor) -> Tensor:
        return energy.visible_mean(h_prob if moves.mean_field else h)

    def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
        shrink, noise_std = (x[t if len(x) > 1 else 0] for x in (moves.shrink, moves.noise_std))
        adjusted = moves.adjust_from is not None and t >= moves.adjust_from
        mean, free_energy = chains.state or (drive(chains.h, chains.h_prob), None)
        noise = draw_noise(chains.v, rng)
        v = visible_update(chains.v, mean, shrink, noise_std, noise)
        logits = energy.hidden_logits(v)
        h, h_prob = hidden_update(logits, rng=rng)
        if not adjusted:
            return Chains(v, h, h_prob), StepInfo()
        if free_energy is None:
            free_energy = energy.free_energy(chains.v)
        state = drive(h, h_prob), energy.free_energy(v, logits)
        way_back = (chains.v - torch.lerp(state[0], v, shrink)) / noise_std
        log_q = 0.5 * (noise.square() - way_back.square()).sum(-1)
        decision = accept((free_energy - state[1]) / moves.temperature + log_q, rng)
        old = chains._replace(state=(mean, free_energy))
        return decision.select(Chains(v, h, h_prob, state), old), StepInfo(decision.accept_prob)

    return step


class MoveSampler(Sampler, Protocol):
    """A sampler that is nothing but moves: give ``moves``, and every implementation of the walk can run it."""

    def moves(self, energy: Energy, n_steps: int) -> Moves:
        """The moves of a walk of ``n_steps`` steps."""
        ...

    def bind(self, energy: Energy, n_steps: int) -> Step:
        return move_step(energy, self.moves(energy, n_steps))
