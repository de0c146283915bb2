"""A mixture of Gaussians that knows where the data are: chains jump to its draws, and log Z is bridged from it."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grbm.core.randomness import Rng, normal, uniform
from grbm.model.energy import Base

CHUNK = 1 << 22  # numbers of the largest intermediate tensor


@dataclass(frozen=True, eq=False)
class Reference:
    """A normalised density with a known log-density and exact draws: Σ_k weights_k N(mean_k, factor_k factor_kᵀ).

    Parameters
    ----------
    weights : Tensor
        (K,), they add up to 1.
    means : Tensor
        (K, N).
    factors : Tensor
        (K, N, N), lower triangular: the Cholesky factors of the covariances.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor

    @property
    def n_visible(self) -> int:
        """N."""
        return self.means.shape[1]

    def to(self, like: Tensor) -> "Reference":
        """The same on the device of ``like``, in its dtype; made once for each."""
        if self.means.device == like.device and self.means.dtype == like.dtype:
            return self
        kept: dict[tuple[torch.device, torch.dtype], Reference] = self.__dict__.setdefault("_kept", {})
        where = like.device, like.dtype
        if where not in kept:
            kept[where] = Reference(*(x.to(like) for x in (self.weights, self.means, self.factors)))
        return kept[where]

    def widened(self, base: Base, share: float = 0.1, scale: float = 1.7) -> "Reference":
        """With ``share`` of its mass in a Gaussian of ``scale`` times the variance of ``base``.

        So that what the model puts where the data are not is met with too.
        """
        mean, std = (x.to(self.means) for x in (base.mean, (scale * base.var).sqrt()))
        return Reference(
            torch.cat([(1 - share) * self.weights, self.weights.new_tensor([share])]),
            torch.cat([self.means, mean[None]]),
            torch.cat([self.factors, std.diag()[None]]),
        )

    @functools.cached_property
    def _widths(self) -> Tensor | None:
        """The deviations (K, N), where all components are of independent units: N times less work, the same numbers."""
        off = self.factors.tril(-1).any() or self.factors.triu(1).any()
        return None if off else self.factors.diagonal(dim1=1, dim2=2).contiguous()

    @functools.cached_property
    def _constants(self) -> tuple[Tensor, Tensor]:
        """The inverses of the factors, transposed, or of the widths; and the log of each component's mass and peak."""
        widths = self.factors.double().diagonal(dim1=1, dim2=2)
        peak = self.weights.double().log() - widths.log().sum(1) - 0.5 * self.n_visible * math.log(2 * math.pi)
        if self._widths is not None:
            return (1 / widths).to(self.means), peak.to(self.means)
        identity = torch.eye(self.n_visible, dtype=torch.float64, device=self.means.device)
        inverse = torch.linalg.solve_triangular(self.factors.double(), identity.expand_as(self.factors), upper=False)
        return inverse.mT.contiguous().to(self.means), peak.to(self.means)

    def log_prob(self, v: Tensor) -> Tensor:
        """log q(v) in nats, per sample: (C, N) -> (C,)."""
        inverse, peak = self._constants
        K, N = self.means.shape
        parts = []
        for rows in torch.split(v, max(1, CHUNK // (K * N))):
            apart = rows - self.means[:, None]  # (K, C, N)
            z = apart @ inverse if self._widths is None else apart * inverse[:, None]
            parts.append((peak[:, None] - 0.5 * z.square().sum(-1)).logsumexp(0))
        return torch.cat(parts)

    def sample(self, n: int, rng: Rng) -> Tensor:
        """Draws (n, N)."""
        u = uniform((n, 1), self.means, rng)
        edges = self.weights.cumsum(0)[:-1].contiguous()
        which = torch.searchsorted(edges, u[:, 0].contiguous(), right=True)
        noise = normal((n, self.n_visible), self.means, rng)
        if self._widths is not None:
            return self.means[which] + self._widths[which] * noise
        N = self.n_visible
        rows = max(1, CHUNK // (N * N))  # each by a product of its own: the same numbers whatever its neighbours
        parts = [
            self.means[k] + (self.factors[k] @ e[:, :, None])[:, :, 0]
            for k, e in zip(torch.split(which, rows), torch.split(noise, rows), strict=True)
        ]
        return torch.cat(parts)
