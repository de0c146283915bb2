"""A mixture of Gaussians that knows where the data are: chains jump to its draws, and log Z is bridged from it."""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Rng, normal, uniform
from grbm.model.energy import Base

CHUNK = 1 << 22  # numbers of the largest intermediate tensor


class Tables(NamedTuple):
    """Numbers that densities and draws of a `Reference` are made of.

    Factors and inverses are (K, N) where all components are of independent units.
    """

    edges: Tensor  # (K − 1,), the weights added up
    means: Tensor  # (K, N)
    peak: Tensor  # (K,), the log of each component's mass and height
    factors: Tensor  # (K, N, N), of the covariances, lower triangular
    inverse: Tensor  # (K, N, N), of the factors, transposed


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

    def __post_init__(self) -> None:
        (K, N), shapes = self.means.shape, (self.weights.shape, self.factors.shape)
        if shapes != ((K,), (K, N, N)):
            raise ValueError(
                f"means of shape {(K, N)} go with weights {(K,)} and factors {(K, N, N)}, got {tuple(shapes[0])} and "
                f"{tuple(shapes[1])}."
            )

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
    def is_diagonal(self) -> bool:
        """True if all components are of independent units: N times less work, the same numbers."""
        return not (self.factors.tril(-1).any() or self.factors.triu(1).any())

    @functools.cached_property
    def tables(self) -> "Tables":
        """Numbers of densities and draws, in the reference's dtype."""
        widths = self.factors.double().diagonal(dim1=1, dim2=2)
        peak = self.weights.double().log() - widths.log().sum(1) - 0.5 * self.n_visible * math.log(2 * math.pi)
        factors, inverse = widths, 1 / widths
        if not self.is_diagonal:
            factors, identity = self.factors, torch.eye(self.n_visible, dtype=torch.float64, device=self.means.device)
            inverse = torch.linalg.solve_triangular(factors.double(), identity.expand_as(factors), upper=False).mT
        edges = self.weights.cumsum(0)[:-1]
        return Tables(*(x.to(self.means).contiguous() for x in (edges, self.means, peak, factors, inverse)))

    def log_prob(self, v: Tensor) -> Tensor:
        """log q(v) in nats, per sample: (C, N) -> (C,)."""
        _, means, peak, _, inverse = self.tables
        K, N = means.shape
        parts = []
        for rows in torch.split(v, max(1, CHUNK // (K * N))):
            apart = rows - means[:, None]  # (K, C, N)
            z = apart * inverse[:, None] if self.is_diagonal else apart @ inverse
            parts.append((peak[:, None] - 0.5 * z.square().sum(-1)).logsumexp(0))
        return torch.cat(parts)

    def sample(self, n: int, rng: Rng) -> Tensor:
        """Draws (n, N)."""
        edges, means, _, factors, _ = self.tables
        u = uniform((n, 1), means, rng)
        which = torch.searchsorted(edges, u[:, 0].contiguous(), right=True)
        noise = normal((n, self.n_visible), means, rng)
        if self.is_diagonal:
            return means[which] + factors[which] * noise
        N = self.n_visible
        rows = max(1, CHUNK // (N * N))  # each by a product of its own: the same numbers whatever its neighbours
        parts = [
            means[k] + (factors[k] @ e[:, :, None])[:, :, 0]
            for k, e in zip(torch.split(which, rows), torch.split(noise, rows), strict=True)
        ]
        return torch.cat(parts)
