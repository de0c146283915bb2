"""Exact answers for small models: sums over hidden states and quadrature over v (N <= 2). float64.

What needs each state takes at most 20 hidden units. log Z alone takes up to 36, at two operations a state (`log_sum`).
"""

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import generator, normal
from grbm.model import GRBM, Energy
from grbm.model.censoring import UNCENSORED, Interval
from grbm.samplers.moments import Moments
from grbm.samplers.truncated import log_mass

MAX_HIDDEN = 20  # Most units of which each state is looked at.
MAX_SUMMED = 36  # Most units that log Z is summed over: of so many in seconds.
GROUP = 12  # Most units of a group that `log_sum` multiplies.
AT_ONCE = 512  # States of the first group at a time.
UNDERFLOW = -708.0  # Logarithms below which float64 loses digits.
LOST = -40.0  # Logarithm of the largest share that may be lost so.
LARGEST_BLOCK = 1 << 21  # numbers held at once for intervals


def _energy(model: GRBM) -> Energy:
    W, b, mu, log_var = (p.detach().double() for p in (model.W, model.b, model.mu, model.log_var))
    return Energy(W, b, mu, log_var.exp())


def _hidden_states(n_hidden: int, like: Tensor, block: int = 1 << 14) -> Iterator[Tensor]:
    """All 2^M hidden states in blocks (≤ block, M)."""
    if n_hidden > MAX_HIDDEN:
        raise ValueError(f"Enumeration needs n_hidden <= {MAX_HIDDEN}, got {n_hidden}; use quadrature or AIS.")
    yield from _states(n_hidden, like, block)


def _states(n: int, like: Tensor, block: int = 1 << 14) -> Iterator[Tensor]:
    """All 2^n states of n binary units, in blocks (≤ block, n)."""
    bits = torch.arange(n, device=like.device)
    for first in range(0, 2**n, block):
        index = torch.arange(first, min(first + block, 2**n), device=like.device)
        yield ((index[:, None] >> bits) & 1).to(like)


def _log_weights(energy: Energy, h: Tensor) -> Tensor:
    """log of the mass of component h of the Gaussian mixture that p(v) is, up to ½ Σ log 2πσ²."""
    mean = energy.visible_mean(h)
    return h @ energy.b + 0.5 * ((mean.square() - energy.mu.square()) / energy.var).sum(-1)


def is_enumerable(model: GRBM) -> bool:
    """Whether `log_z` can enumerate: hidden units without weights do not count."""
    return int((model.W != 0).any(0).sum()) <= MAX_SUMMED


@torch.no_grad()
def log_z(model: GRBM, max_hidden: int = MAX_SUMMED) -> float:
    """log Z = ½ Σ log 2πσ² + log Σ_h weight(h), summed over all h; a unit without weights makes a factor 1 + exp(b_j).

    36 units take seconds, and each more takes twice as long. Raises ValueError above ``max_hidden``.
    """
    energy = _energy(model)
    at_work = (energy.W != 0).any(0)
    if (n := int(at_work.sum())) > max_hidden:
        raise ValueError(
            f"log Z is summed over n_hidden <= {max_hidden}, units without weights not counted, got {n}; use "
            f"quadrature or AIS, or a larger max_hidden."
        )
    W, b = energy.W[:, at_work], energy.b
    linear = b[at_work] + W.T @ (energy.mu / energy.var)
    idle = torch.logaddexp(b[~at_work], torch.zeros_like(b[~at_work])).sum()
    return log_sum(linear, (W.T / energy.var) @ W) + float(0.5 * (2 * math.pi * energy.var).log().sum() + idle)


def log_sum(linear: Tensor, pairs: Tensor) -> float:
    """log Σ_h exp(h·linear + ½ h·pairs h) over all h in {0, 1}^M, of (M,) and symmetric (M, M), float64.

    In spins s = h − ½ the units are three groups. For a state of the first, the sum over the states a and b of the
    others is Σ_ab exp(A_a + T_ab + B_b), in which T does not depend on it: for many of them, a product of matrices.
    Factors are divided by largest values, which bound the sum. Terms that leave float64 are lost then: where they could
    count, logarithms are summed one by one, from the states with the highest bounds on, until the rest is negligible.
    """
    if not (linear.isfinite().all() and pairs.isfinite().all()):
        return math.nan
    M = len(linear)
    n_b = min(GROUP, M // 3)
    n_a = min(GROUP, (M - n_b) // 2)
    first, a, b = slice(M - n_a - n_b), slice(M - n_a - n_b, M - n_b), slice(M - n_b, M)
    constant = float(0.5 * linear.sum() + 0.125 * pairs.sum())
    linear = linear + 0.5 * pairs.sum(0)

    def own(s: Tensor, group: slice) -> Tensor:
        return s @ linear[group] + 0.5 * ((s @ pairs[group, group]) * s).sum(1)

    s_a, s_b = (torch.cat(list(_states(n, linear))) - 0.5 for n in (n_a, n_b))
    T, own_a, own_b = s_a @ pairs[a, b] @ s_b.T, own(s_a, a), own(s_b, b)

    def parts_of(s: Tensor) -> tuple[Tensor, Tensor]:
        return own(s, first)[:, None] + own_a + s @ pairs[first, a] @ s_a.T, own_b + s @ pairs[first, b] @ s_b.T

    largest = T.amax(1)
    factor, blocks = (T - largest[:, None]).exp(), []
    for h in _states(M - n_a - n_b, linear, AT_ONCE):
        A, B = parts_of(h - 0.5)
        top_a, top_b = (A + largest).amax(1, keepdim=True), B.amax(1, keepdim=True)
        found = (((A + largest - top_a).exp() @ factor) * (B - top_b).exp()).sum(1).log()
        blocks.append((h - 0.5, found, (top_a + top_b)[:, 0]))
    s, found, top = (torch.cat(x) for x in zip(*blocks, strict=True))
    n_terms = (n_a + n_b) * math.log(2)
    is_sure = UNDERFLOW + n_terms - found < LOST
    total = (found + top)[is_sure].logsumexp(0) if is_sure.any() else linear.new_tensor(-math.inf)
    unsure = (~is_sure).nonzero()[:, 0]
    for k in unsure[top[unsure].argsort(descending=True)].tolist():
        if top[k] + n_terms < total + LOST:
            break
        A, B = parts_of(s[k : k + 1])
        total = torch.logaddexp(total, (A.T + T + B).flatten().logsumexp(0))
    return float(total) + constant


@torch.no_grad()
def log_prob(model: GRBM, v: Tensor) -> Tensor:
    """log p(v) in nats, per sample: (..., N) -> (...), float64, by enumeration. It has no gradient.

    Of a censored machine v are measurements, and it is the density of those inside their limits times the probability
    of the others.
    """
    if model.censoring is not UNCENSORED:
        return log_prob_within(model, model.censoring.interval(v.to(model.mu)))  # limits are in its dtype
    return -copy.deepcopy(model).double().free_energy(v.double()) - log_z(model)


@torch.no_grad()
def log_prob_within(model: GRBM, within: Interval) -> Tensor:
    """log of the probability of intervals of v, and of the density where v is known: (n,) float64, by enumeration.

    Given h visible units are independent, so that each state of h gives a product.
    """
    parts = [(joint.logsumexp(1), log_weight.logsumexp(0)) for _, log_weight, joint in _joint(model, within)]
    joint, total = (torch.stack(x).logsumexp(0) for x in zip(*parts, strict=True))
    return joint - total


def _joint(model: GRBM, within: Interval) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Hidden states (k, M) in blocks, their log-weights (k,), and those times the probabilities of rows (n, k)."""
    energy = _energy(model)
    std, ends = energy.var.sqrt(), Interval(within.low.double()[:, None], within.high.double()[:, None])
    for h in _hidden_states(model.n_hidden, energy.W, max(1, LARGEST_BLOCK // max(1, within.low.numel()))):
        log_weight = _log_weights(energy, h)
        yield h, log_weight, log_weight + log_mass(energy.visible_mean(h), std, ends).sum(-1)


@torch.no_grad()
def hidden_within(model: GRBM, within: Interval) -> Tensor:
    """p(h = 1 | v in its intervals): (n, M) float64, by enumeration."""
    total = torch.stack([joint.logsumexp(1) for _, _, joint in _joint(model, within)]).logsumexp(0)
    return torch.stack([(joint - total[:, None]).exp() @ h for h, _, joint in _joint(model, within)]).sum(0)


@torch.no_grad()
def moments(model: GRBM) -> Moments:
    """Exact means of v, v², h and v hᵀ under the model, at unit contrast, by enumeration."""
    energy = _energy(model)
    normaliser = log_z(model) - 0.5 * float((2 * math.pi * energy.var).log().sum())
    parts = []
    for h in _hidden_states(model.n_hidden, energy.W):
        weight = (_log_weights(energy, h) - normaliser).exp()[:, None]
        mean = energy.visible_mean(h)
        second = weight * (mean.square() + energy.var)
        parts.append(((weight * mean).sum(0), second.sum(0), (weight * h).sum(0), mean.T @ (weight * h)))
    return Moments(*(sum(x[1:], x[0]) for x in zip(*parts, strict=True)))


@torch.no_grad()
def sample(model: GRBM, n_samples: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Independent exact draws (v, h), (n, N) and (n, M), in float64: h by its exact mass, then v ~ p(v | h)."""
    energy = _energy(model)
    states = list(_hidden_states(model.n_hidden, energy.W))
    mass = torch.cat([_log_weights(energy, h) for h in states]).softmax(0)
    rng = generator(seed, "exact", device=energy.W.device)
    uniform = torch.rand(n_samples, generator=rng, dtype=torch.float64, device=energy.W.device)
    index = torch.searchsorted(mass.cumsum(0), uniform).clamp_max(len(mass) - 1)
    h = torch.cat(states)[index]
    mean = energy.visible_mean(h)
    v = mean + energy.var.sqrt() * normal(mean.shape, mean, rng)
    return model.censoring.to(v).recorded(model.contrasts.to(v).applied(v, rng)), h


class GaussianMixture(NamedTuple):
    """Mixture that a GRBM with few hidden units is: a component for each h, all of one diagonal covariance. float64."""

    log_weights: Tensor  # (2^M,), normalised; component c has h_j = bit j of c
    means: Tensor  # (2^M, N)
    var: Tensor  # (N,), the diagonal of the covariance that all components share

    def log_prob(self, v: Tensor) -> Tensor:
        """log p(v) in nats, per sample: (n, N) -> (n,)."""
        distance = ((v.double()[:, None] - self.means) ** 2 / self.var).sum(-1)
        normaliser = 0.5 * (2 * math.pi * self.var).log().sum()
        return (self.log_weights - 0.5 * distance).logsumexp(-1) - normaliser

    def sample(self, n_samples: int, *, seed: int = 0) -> Tensor:
        """Independent draws (n, N)."""
        rng = generator(seed, "mixture of a GRBM", device=self.means.device)
        component = torch.multinomial(self.log_weights.exp(), n_samples, replacement=True, generator=rng)
        mean = self.means[component]
        return mean + self.var.sqrt() * normal(mean.shape, mean, rng)


@torch.no_grad()
def mixture(model: GRBM) -> GaussianMixture:
    """The Gaussian mixture that p(v) is: weights ∝ exp(b·h + ½ Σ (m_i² − μ_i²)/σ_i²), means m = μ + W h, variances σ².

    Raises ValueError above 20 hidden units, and for several contrasts; memory grows as 2^M N.
    """
    if model.contrasts.n > 1:
        raise ValueError("A machine of several contrasts is no mixture of Gaussians of one covariance.")
    energy = _energy(model)
    states = torch.cat(list(_hidden_states(model.n_hidden, energy.W)))
    return GaussianMixture(_log_weights(energy, states).log_softmax(0), energy.visible_mean(states), energy.var)


@torch.no_grad()
def posterior(model: GRBM, observed: Tensor, noise_var: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mean and variance of p(v | y), (n, N) each, for y (n, N) measured with errors of variance ``noise_var``.

    NaN in y is what was not measured. By enumeration: each component of the mixture, weighed by how well it explains y.
    """
    parts, y = mixture(model), observed.double()[:, None]
    missing = y.isnan()
    log_fit = -0.5 * ((y - parts.means).square() / (parts.var + noise_var)).masked_fill(missing, 0.0).sum(-1)
    weight = (parts.log_weights + log_fit).softmax(-1)[..., None]
    gain = (parts.var / (parts.var + noise_var)).expand_as(y).masked_fill(missing, 0.0)
    mean = parts.means + gain * (y.nan_to_num() - parts.means)
    average = (weight * mean).sum(1)
    variance = (weight * (mean - average[:, None]).square()).sum(1)
    return average, variance + ((1 - gain) * parts.var)[:, 0]


class Grid(NamedTuple):
    """A quadrature rule over v: points (P, N), the volume of a cell, and the normalised log-density there (P,)."""

    points: Tensor
    cell: float
    log_density: Tensor
    log_z: float
    shape: tuple[int, ...]

    def mean(self, f: Tensor) -> Tensor:
        """∫ p(v) f(v) dv for f (P, ...)."""
        weight = self.log_density.exp() * self.cell
        return torch.tensordot(weight, f.double(), dims=1)


def plane(model: GRBM, max_spacing: float = torch.inf) -> "Grid | None":
    """`quadrature` where it can be had: None above two visible units, or where no grid is fine and wide enough."""
    with suppress(ValueError):
        return quadrature(model, max_spacing=max_spacing)
    return None


@torch.no_grad()
def quadrature(model: GRBM, *, max_spacing: float = torch.inf, max_points: int = 4_000_000) -> Grid:
    """The model's density on a grid, for n_visible <= 2; accurate to 1e-6 in log Z.

    p(v) is a mixture of Gaussians of deviation σ, all centred in the box of μ + W h, so nothing can hide: a first
    grid of spacing 2σ over that box finds where the density lives, and a second of spacing at most σ/1.5 (or
    ``max_spacing``) covers it. There the trapezoid rule errs by about exp(−2π² 1.5²).

    Raises
    ------
    ValueError
        If n_visible > 2, or a grid would need more than ``max_points``.
    """
    if model.n_visible > 2:
        raise ValueError(f"Quadrature needs n_visible <= 2, got {model.n_visible}; use enumeration or AIS.")
    energy = _energy(model)
    std, contrasts = energy.var.sqrt(), model.contrasts.to(energy.var)
    low = energy.mu + energy.W.clamp_max(0).sum(1) - 10 * std
    high = energy.mu + energy.W.clamp_min(0).sum(1) + 10 * std
    scales = contrasts.log_scales.exp()
    low = torch.stack([contrasts.seen(low, s) for s in scales]).amin(0)
    high = torch.stack([contrasts.seen(high, s) for s in scales]).amax(0)
    std = std * contrasts.stretch(scales[:, None]).min().clamp_max(1.0)

    free_energy = copy.deepcopy(model).double().free_energy
    for spacing in (2 * std, (std / 1.5).clamp_max(max_spacing)):
        counts = ((high - low) / spacing).ceil().long() + 1
        if counts.prod() > max_points or not torch.isfinite(high - low).all():
            raise ValueError(
                f"Quadrature over {low.tolist()} to {high.tolist()} with σ = {std.tolist()} needs "
                f"{int(counts.prod())} points, more than max_points={max_points}."
            )
        axes = [a + s * torch.arange(int(n)).to(a) for a, s, n in zip(low, spacing, counts, strict=True)]
        points = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        log_p = -torch.cat([free_energy(block) for block in torch.split(points, 1 << 14)])
        inhabited = points[log_p > log_p.max() - 36]
        low, high = inhabited.amin(0) - 10 * std, inhabited.amax(0) + 10 * std
    cell = float(spacing.prod())
    total = float(log_p.logsumexp(0)) + math.log(cell)
    return Grid(points, cell, log_p - total, total, tuple(counts.tolist()))
