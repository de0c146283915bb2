"""Hidden units drawn one by one with v integrated out, which crosses what keeps block Gibbs chains where they are.

The marginal of the hidden units is a Boltzmann machine, p(h) ∝ exp(c·h + ½ hᵀ J h) with J = Wᵀ Σ⁻¹ W and
c = b + Wᵀ Σ⁻¹ μ. To switch unit j on, a block Gibbs chain must reach the point half way along w_j, where the quadratic
term is ⅛ Σ_i w_ij²/σ_i² nats higher; here only the probabilities of the two hidden states matter. So states that two
units have together are found, even where each of them alone is far from it.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from grbm.core.randomness import Rng, normal, uniform
from grbm.model import Energy
from grbm.samplers.annealing import spaced
from grbm.samplers.engines import engine_for

TEMPERATURES, POPULATION = 50, 64  # by default
RESAMPLED = 0.5  # effective share of a population's weights below which it is resampled


class Boltzmann(NamedTuple):
    """p(h) ∝ exp(c·h + ½ hᵀ J h), the hidden units' marginal: J (M, M), symmetric, and c (M,)."""

    J: Tensor
    c: Tensor

    @classmethod
    def of(cls, energy: Energy) -> "Boltzmann":
        """With v integrated out, exactly."""
        return cls(energy.projection @ energy.W, torch.addmv(energy.b, energy.projection, energy.mu))

    def log_mass(self, h: Tensor) -> Tensor:
        """c·h + ½ hᵀ J h, per sample: (C, M) -> (C,), float64."""
        return (h * (self.c + 0.5 * (h @ self.J))).sum(-1, dtype=torch.float64)

    def alone(self) -> Tensor:
        """Log-odds of each unit where no other one is on, (M,)."""
        return self.c + 0.5 * self.J.diagonal()

    def sweep(self, h: Tensor, rng: Rng, beta: float = 1.0, start: Tensor | None = None) -> Tensor:
        """Draw every h_j from p_β(h_j | the others), one by one: exact for p_β ∝ q^(1−β) p^β, (C, M) -> (C, M).

        The log-odds are (1 − β) a_j + β (c_j + ½ J_jj + Σ_{k≠j} J_jk h_k). Units of q are independent, of log-odds a,
        ``start`` (M,); by default they are fair coins.
        """
        alone = beta * self.alone() + (0.0 if start is None else (1 - beta) * start)
        return engine_for(h, rng).sweep(self.J, alone, h, beta, rng)


class Populations(NamedTuple):
    """Populations of annealed hidden units; within one all have equal weight."""

    log_z: Tensor  # (K,) float64, in nats: what each population makes of the machine's log Z
    h: Tensor  # (C, M), one population after the other

    def mean(self) -> Tensor:
        """Mean of h (M,), in which populations count by their part of Z."""
        means = torch.stack([part.mean(0) for part in torch.split(self.h, POPULATION)])
        return self.log_z.softmax(0).to(means) @ means


def anneal(energy: Energy, n_chains: int, rng: Rng, *, n_steps: int = TEMPERATURES) -> Populations:
    """Anneal populations of 64 hidden states each, from fair coins along p(h)^β, β = (t/T)² (Hukushima & Iba 2003).

    They know nothing of data, so they find what chains that begin at data never meet. An estimate of Z is unbiased, and
    exceeds Z by a factor e^a with a probability of at most e^−a, whatever it misses.
    """
    marginal = Boltzmann.of(energy)
    h = (uniform((n_chains, energy.n_hidden), energy.W, rng) < 0.5).to(energy.W)
    betas = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64).square()
    flat = energy.n_hidden * math.log(2) + 0.5 * float((2 * math.pi * energy.var.double()).log().sum())
    log_ratio, h = engine_for(h, rng).anneal(*marginal, h, betas, RESAMPLED, rng) or annealed(marginal, h, betas, rng)
    return Populations(flat + log_ratio, h)


def annealed(marginal: Boltzmann, h: Tensor, betas: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
    """Anneal populations of h (C, M) step by step along ``betas``, as `grbm.samplers.engines.definition.Engine.anneal`.

    Returns what each makes of log Z, less that at the first β (K,), and their states.
    """
    n_chains, n_steps = len(h), len(betas) - 1
    populations = torch.split(torch.arange(n_chains, device=h.device), POPULATION)
    log_ratio = torch.zeros(len(populations), dtype=torch.float64, device=h.device)
    absent = -n_chains % POPULATION  # of the last population, whose weights are 0
    log_weight = functional.pad(log_ratio.new_zeros(n_chains), (0, absent), value=-torch.inf).view(-1, POPULATION)
    n_present = log_weight.isfinite().sum(1)
    for t, (low, high) in enumerate(itertools.pairwise(betas.tolist())):
        log_weight.view(-1)[:n_chains] += (high - low) * marginal.log_mass(h)
        total = log_weight.logsumexp(1)
        n_effective = torch.exp(2 * total - (2 * log_weight).logsumexp(1))
        offsets = uniform((n_chains, 1), h, rng)  # a population's is that of its first chain
        is_uneven = n_effective < RESAMPLED * n_present
        for k in (is_uneven | (t == n_steps - 1)).nonzero()[:, 0].tolist():
            its = populations[k]
            log_ratio[k] += total[k] - math.log(len(its))
            h[its] = h[its[spaced(log_weight[k, : len(its)], offsets[its[0]])]]
            log_weight[k, : len(its)] = 0.0
        h = marginal.sweep(h, rng, high)
    return log_ratio, h


def visible_draw(energy: Energy, h: Tensor, rng: Rng) -> Tensor:
    """v ~ p(v | h): (C, M) -> (C, N)."""
    mean = energy.visible_mean(h)
    return mean + energy.var.sqrt() * normal(mean.shape, mean, rng)
