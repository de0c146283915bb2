"""Noise taken from patches: the mean of what was there given what is seen, under a mixture and under a machine."""

import math
from typing import NamedTuple

import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from benchmarks.patches import Patches
from benchmarks.scores import by_group
from grbm import GRBM
from grbm.core.randomness import generator

UNKNOWN = 1e6  # variance of the noise of a unit that was filled and not seen


class Noisy(NamedTuple):
    """Test patches with noise: whitened rows y (n, N), and the covariance of their noise (N, N)."""

    clean: np.ndarray  # whitened
    y: np.ndarray
    noise: np.ndarray
    photograph: np.ndarray


def noisy(data: Patches, n: int, deviation: float, seed: int = 0) -> Noisy:
    """The first ``n`` test patches with noise of a ``deviation`` in grey levels; its mean is removed as theirs is."""
    n_pixels = len(data.to_white)
    left = np.eye(n_pixels) - 1 / n_pixels
    noise = deviation**2 * data.to_white.T @ left @ data.to_white
    rng = np.random.default_rng(seed)
    added = deviation * rng.standard_normal((n, n_pixels)) @ left @ data.to_white
    y = data.test[:n] + added
    y[:, : data.first] = 0
    noise[range(data.first), range(data.first)] += UNKNOWN
    return Noisy(data.test[:n], y, noise, data.test_photograph[:n])


def error_of(found: np.ndarray, given: Noisy, data: Patches) -> tuple[float, float]:
    """Mean squared error in grey levels squared per pixel, of patches without their mean, and its standard error."""
    squares = ((found - given.clean) @ data.to_pixels) ** 2
    return by_group(squares.mean(1), given.photograph)


def by_mixture(model: GaussianMixture, y: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """E[v | y] of rows y (n, N), in closed form."""
    log_weights, means = [], []
    for weight, mean, covariance in zip(model.weights_, model.means_, model.covariances_, strict=True):
        factor = np.linalg.cholesky(covariance + noise)
        white = np.linalg.solve(factor, (y - mean).T)
        log_weights.append(math.log(weight) - np.log(factor.diagonal()).sum() - 0.5 * (white**2).sum(0))
        means.append(mean + (covariance @ np.linalg.solve(factor.T, white)).T)
    share = np.exp(log_weights - np.logaddexp.reduce(log_weights))
    return np.asarray((share[:, :, None] * np.stack(means)).sum(0))


@torch.no_grad()
def by_machine(model: GRBM, y: Tensor, noise: Tensor, *, n_steps: int = 60, burn_in: int = 20, seed: int = 0) -> Tensor:
    """E[v | y] of rows y (n, N), by Gibbs steps of hidden units, contrast and v given y; float64.

    y | h, k ~ N(c + s_k (μ + W h − c), s_k² σ² + R), which draws k with v integrated out, and then v at unit contrast.
    """
    energy, rng = model.double().freeze(), generator(seed, "denoise")
    contrasts = model.contrasts.to(energy.mu)
    S = contrasts.stretch(contrasts.log_scales.exp()[:, None]).expand(-1, y.shape[1])  # (K, N)
    factors = torch.linalg.cholesky(torch.diag_embed(S**2 * energy.var) + noise)  # (K, N, N)
    inverse = torch.cholesky_inverse(factors)
    gain = (S * energy.var)[:, :, None] * inverse
    left = torch.diag_embed(energy.var.expand_as(S)) - gain * (S * energy.var)[:, None]  # covariance of v given h, y
    roots = torch.linalg.cholesky(left)
    log_det = factors.diagonal(dim1=1, dim2=2).log().sum(1)
    h, total = torch.zeros(len(y), model.n_hidden).double(), torch.zeros_like(y)
    for t in range(n_steps):
        mean = energy.visible_mean(h)
        apart = y - contrasts.centre - S[:, None] * (mean - contrasts.centre)  # (K, n, N)
        squares = torch.einsum("kni,kij,knj->kn", apart, inverse, apart)
        share = (contrasts.log_weights[:, None] - log_det[:, None] - 0.5 * squares).softmax(0)
        corrected = mean + apart @ gain.mT  # (K, n, N), at unit contrast
        if t >= burn_in:
            seen = contrasts.centre + S[:, None] * (corrected - contrasts.centre)
            total += (share[:, :, None] * seen).sum(0)
        k = torch.multinomial(share.T, 1, generator=rng)[:, 0]
        drawn = torch.randn(y.shape, generator=rng, dtype=torch.float64)
        v = corrected[k, torch.arange(len(y))] + torch.einsum("nij,nj->ni", roots[k], drawn)
        h = torch.bernoulli(energy.hidden_logits(v).sigmoid(), generator=rng)
    return total / (n_steps - burn_in)
