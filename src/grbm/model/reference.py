"""A mixture of Gaussians that knows where the data are: chains jump to its draws, and log Z is bridged from it."""

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.core.randomness import Rng, normal, uniform
from grbm.model.energy import Base

CHUNK = 1 << 22  # numbers of the largest intermediate tensor
COMPONENTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
FIT_ROWS = 4000  # rows that mixtures are fitted to

Array = np.ndarray[Any, Any]


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

    @classmethod
    def fit(cls, data: Tensor, *, seed: int = 0) -> "Reference":
        """Fit ``data`` (n, N): the mixture of 1 to 24 Gaussians with the lowest BIC, and a wide Gaussian beside it.

        The wide one has a tenth of the mass and 1.7 times the variance of each column, since a model may put mass where
        no data are. Needs scikit-learn. Of more than 4,000 rows as many, evenly spaced, count.
        """
        rows = data[torch.arange(min(FIT_ROWS, len(data))) * len(data) // min(FIT_ROWS, len(data))]
        mixture = best_mixture(rows.double().cpu().numpy(), ("full", "tied", "diag"), seed)
        return as_reference(mixture).to(data).widened(Base.fit(data))

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


def best_mixture(
    x: Array,
    types: tuple[str, ...],
    seed: int = 0,
    *,
    least: float = 1e-6,
    seen: Array | None = None,
    components: tuple[int, ...] = COMPONENTS,
) -> Any:
    """The `sklearn.mixture.GaussianMixture` of rows x with the lowest Bayesian information criterion (BIC).

    ``least`` is added to every variance. Where the same rows are ``seen`` in other coordinates, components with one
    covariance begin at the clusters that k-means finds there as well: among many directions it may see in one what is
    hidden in others.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    best, lowest = None, math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for kind in types:
            worse = 0
            for k in components:
                if 3 * k > len(x) or worse == 4:
                    break
                settings: dict[str, Any] = {"covariance_type": kind, "reg_covar": least, "random_state": seed % 2**32}
                starts: list[dict[str, Any]] = [{}]
                if seen is not None and kind == "tied" and k > 1:
                    starts = [_clustered(x, where, k, seed, least) for where in (x, seen)]
                mixtures = [GaussianMixture(k, **settings, **start).fit(x) for start in starts]
                found, mixture = min(((m.bic(x), m) for m in mixtures), key=lambda pair: pair[0])
                worse = 0 if found < lowest else worse + 1
                if found < lowest:
                    best, lowest = mixture, found
    if best is None:
        best = GaussianMixture(1, covariance_type=types[0], reg_covar=least).fit(x)
    return best


def _clustered(x: Array, seen: Array, k: int, seed: int, least: float) -> dict[str, Any]:
    """Fit a mixture with one covariance to rows x (n, N), from the clusters that k-means finds in the rows ``seen``.

    Returns settings of `sklearn.mixture.GaussianMixture` for a last step there. Its steps take k N² operations a row;
    those here k N, and what all components share: the rows' squared lengths, and the scatter of all rows, of which that
    within is left.
    """
    from scipy.special import logsumexp  # type: ignore[import-untyped]
    from sklearn.cluster import KMeans

    n, N = x.shape
    shares = np.eye(k)[KMeans(k, n_init=1, random_state=seed % 2**32).fit_predict(seen)]
    scatter, bound = x.T @ x / n + least * np.eye(N), -math.inf
    for _ in range(100):
        weights = shares.mean(0) + 1e-15
        means = shares.T @ x / (n * weights)[:, None]
        within = scatter - (means.T * weights) @ means
        drawn = np.linalg.solve(within, means.T)  # (N, k)
        squares = (means.T * drawn).sum(0)
        logits = x @ drawn - 0.5 * squares + np.log(weights)
        total = logsumexp(logits, axis=1, keepdims=True)
        shares = np.exp(logits - total)
        last, bound = bound, float(total.mean() - 0.5 * (np.linalg.slogdet(within)[1] + weights @ squares))
        if bound - last < 1e-3:
            break
    precision = np.linalg.inv(within)
    precision = (precision + precision.T) / 2
    found = {"weights_init": weights / weights.sum(), "means_init": means, "precisions_init": precision}
    return found | {"max_iter": 1}


def as_reference(mixture: Any) -> Reference:
    """A fitted `sklearn.mixture.GaussianMixture` as a `Reference`, float32."""
    means, covariances = mixture.means_, mixture.covariances_
    match mixture.covariance_type:
        case "tied":
            covariances = np.repeat(covariances[None], len(means), 0)
        case "diag":
            covariances = np.stack([np.diag(c) for c in covariances])
    factors = np.linalg.cholesky(covariances)
    return Reference(*(torch.from_numpy(np.ascontiguousarray(a)).float() for a in (mixture.weights_, means, factors)))
