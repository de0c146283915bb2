"""The paper's 2-D Gaussian mixtures (Fig. 1), whose density is known."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import generator


class Mixture(NamedTuple):
    """A mixture of K Gaussians with independent units."""

    weights: Tensor  # (K,)
    means: Tensor  # (K, N)
    stds: Tensor  # (K, N)

    def log_prob(self, v: Tensor) -> Tensor:
        """log p(v) in nats, per sample: (..., N) -> (...), float64."""
        log_norm = self.weights.log() - self.stds.log().sum(-1) - 0.5 * self.means.shape[1] * math.log(2 * math.pi)
        return (log_norm - 0.5 * self._scaled(v).square().sum(-1)).logsumexp(-1)

    def distances(self, v: Tensor) -> Tensor:
        """Mahalanobis distance to each mode: (..., N) -> (..., K)."""
        return self._scaled(v).norm(dim=-1)

    def modes(self, v: Tensor) -> Tensor:
        """Index of the mode most likely to have made each v: (..., N) -> (...)."""
        log_norm = self.weights.log() - self.stds.log().sum(-1)
        return (log_norm - 0.5 * self._scaled(v).square().sum(-1)).argmax(-1)

    def _scaled(self, v: Tensor) -> Tensor:
        """v beside each mode, in its deviations: (..., N) -> (..., K, N)."""
        return (v.double()[..., None, :] - self.means) / self.stds

    def sample(self, n_samples: int, *, seed: int = 0, stratified: bool = False) -> Tensor:
        """Draws (n, N) in float64; ``stratified`` fixes the counts per mode at n·weights, rounded."""
        rng = generator(seed, "mixture")
        if stratified:
            edges = (self.weights.cumsum(0) * n_samples).round().long()
            edges[-1] = n_samples
            mode = torch.searchsorted(edges, torch.arange(n_samples), right=True)
            mode = mode[torch.randperm(n_samples, generator=rng)]
        else:
            mode = torch.multinomial(self.weights, n_samples, replacement=True, generator=rng)
        noise = torch.randn(n_samples, self.means.shape[1], generator=rng, dtype=torch.float64)
        return self.means[mode] + self.stds[mode] * noise


def _mixture(stds: list[list[float]]) -> Mixture:
    means = [[-5.0, -5.0], [5.0, -5.0], [0.0, 5.0]]
    return Mixture(*(torch.tensor(x, dtype=torch.float64) for x in ([0.33, 0.33, 0.34], means, stds)))


MIXTURES = {
    "isotropic": _mixture([[1.0, 1.0]] * 3),
    "anisotropic": _mixture([[1.25, 0.5], [1.25, 0.5], [0.5, 1.25]]),
}
