"""Moves of v given h as data: v' = m + shrink (v − m) + noise_std ξ with m = μ + W h.

Gibbs is (0, σ); the exact family (ρ, σ sqrt(1 − ρ²)); K Langevin steps on E(·, h) collapse to one such pair.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.model import Energy
from grbm.ops import draw_noise, hidden_update, visible_update
from grbm.randomness import Rng
from grbm.samplers.chains import Chains, Step, StepInfo
from grbm.samplers.metropolis import accept


class Move(NamedTuple):
    """Per-unit coefficients (..., N) of a move of v given h."""

    shrink: Tensor
    noise_std: Tensor


def partial_move(var: Tensor, rho: float) -> Move:
    """The move that leaves p(v | h) unchanged for any ρ in (−1, 1); ρ = 0 is a fresh draw."""
    return Move(torch.full_like(var, rho), ((1 - rho**2) * var).sqrt())


def k_step_move(var: Tensor, step_sizes: Tensor, temperature: float = 1.0) -> Move:
    """K Langevin steps on E(·, h), collapsed (Eq. 11).

    Parameters
    ----------
    var : Tensor
        σ² (..., N).
    step_sizes : Tensor
        α_k (K, ..., N or 1), broadcast against ``var``.
    temperature : float
        T of v' = v − (α/T) ∂E + sqrt(2α) ξ; the published program has T = batch size.

    Notes
    -----
    One step is v − m ← (1 − α_k/(Tσ²)) (v − m) + sqrt(2α_k) ξ, so shrink is the product of the factors β_0, the
    noise variance Σ 2α_k β_k² builds up recursively, and the paper's a = Σ β_k α_k/σ² telescopes to 1 − β_0.
    In float64, because σ² falls to 1e-5.
    """
    exact_var = var.double()
    shrink, noise_var = torch.ones_like(exact_var), torch.zeros_like(exact_var)
    for alpha in step_sizes.double():
        factor = 1 - alpha / (temperature * exact_var)
        shrink = shrink * factor
        noise_var = noise_var * factor**2 + 2 * alpha
    return Move(shrink.to(var), noise_var.sqrt().to(var))


def k_step_loop(
    v: Tensor, mean: Tensor, var: Tensor, step_sizes: Tensor, noise: Tensor, temperature: float = 1.0
) -> Tensor:
    """The same K Langevin steps one by one (Alg. 2, lines 4-6), with ``noise`` (K, C, N): for tests and teaching."""
    for alpha, xi in zip(step_sizes.to(v), noise, strict=True):
        v = v - alpha * (v - mean) / (temperature * var) + (2 * alpha).sqrt() * xi
    return v


def conditional_step(energy: Energy, move: Move, *, adjust_from: int | None = None, temperature: float = 1.0) -> Step:
    """Move v given h, then draw h' ~ p(h | v'); from step ``adjust_from`` on, accept or reject the pair (Eq. 12).

    The hidden terms of Eq. 12 cancel because E(v, h) = F(v) − log p(h | v) and h' is drawn from p(h | v'):
    log A = (F(v) − F(v'))/T + log q(v | v', h') − log q(v' | v, h), where both q share the covariance noise_std².
    """

    def propose(v: Tensor, mean: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
        noise = draw_noise(v, rng)
        return visible_update(v, mean, move.shrink, move.noise_std, noise), noise

    def free_step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
        v, _ = propose(chains.v, energy.visible_mean(chains.h), rng)
        return Chains(v, *hidden_update(energy.hidden_logits(v), rng=rng)), StepInfo()

    def adjusted_step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
        mean, free_energy = chains.state or (energy.visible_mean(chains.h), energy.free_energy(chains.v))
        v, noise = propose(chains.v, mean, rng)
        logits = energy.hidden_logits(v)
        h, h_prob = hidden_update(logits, rng=rng)
        new_mean, new_free_energy = energy.visible_mean(h), energy.free_energy(v, logits)
        new = Chains(v, h, h_prob, (new_mean, new_free_energy))
        assert adjust_from is not None
        if t < adjust_from:
            return new, StepInfo()
        way_back = (chains.v - torch.lerp(new_mean, v, move.shrink)) / move.noise_std
        log_q = 0.5 * (noise.square() - way_back.square()).sum(-1)
        decision = accept((free_energy - new_free_energy) / temperature + log_q, rng)
        return decision.select(new, chains._replace(state=(mean, free_energy))), StepInfo(decision.accept_prob)

    return free_step if adjust_from is None else adjusted_step
