"""Distances between sets of images by their features: Fréchet, kernel, and nearest neighbours. float64 throughout.

A Fréchet distance is FID when the features are the 2048 of the published Inception network; of other features it is on
another scale and can only be compared with itself.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import generator


class FeatureStatistics(NamedTuple):
    """Mean (d,) and covariance (d, d) of features, float64."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "FeatureStatistics":
        """The statistics of features (n, d), n >= 2."""
        x = features.double()
        return cls(x.mean(0), torch.cov(x.T, correction=1).reshape(x.shape[1], x.shape[1]))


def frechet(a: FeatureStatistics, b: FeatureStatistics) -> float:
    """‖m_a − m_b‖² + tr(C_a + C_b − 2 (C_a C_b)^½), the squared distance of two Gaussians (Heusel et al. 2017).

    The eigenvalues of C_a C_b are those of the symmetric C_a^½ C_b C_a^½, which keeps them real and not negative.
    """
    values, vectors = torch.linalg.eigh(a.covariance)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ b.covariance @ root).clamp_min(0).sqrt().sum()
    trace = a.covariance.trace() + b.covariance.trace() - 2 * cross
    return max(0.0, float((a.mean - b.mean).square().sum() + trace))


class Estimate(NamedTuple):
    """A number and its standard error."""

    mean: float
    error: float


def frechet_estimate(real: FeatureStatistics, generated: Tensor, *, n_groups: int = 10) -> Estimate:
    """The Fréchet distance of ``generated`` features (n, d) to ``real``, and its standard error.

    The error is what other draws of as many images would vary by, found by leaving out a tenth at a time (the grouped
    jackknife). The distance's bias, which fades as 1/n, is not in it.
    """
    group = torch.arange(len(generated)) % n_groups
    without = [frechet(real, FeatureStatistics.of(generated[group != k])) for k in range(n_groups)]
    error = _jackknife(torch.tensor(without, dtype=torch.float64))
    return Estimate(frechet(real, FeatureStatistics.of(generated)), error)


def _jackknife(without: Tensor) -> float:
    """The standard error of an estimate, from its values with one group of the data left out at a time."""
    return float(((len(without) - 1) * without.var(correction=0)).sqrt())


def kernel_distance(
    real: Tensor, generated: Tensor, *, n_subsets: int = 100, size: int = 1000, seed: int = 0
) -> Estimate:
    """KID: the unbiased squared MMD with kernel (x·y/d + 1)³, averaged over random subsets (Binkowski et al. 2018).

    Its error is what other draws of as many generated images would vary by, by the same jackknife, of all of them; the
    deviation over subsets that is often printed is another number, and no standard error.
    """
    rng = generator(seed, "kernel distance")
    size = min(size, len(real), len(generated))
    found = []
    for _ in range(n_subsets):
        x, y = (z[torch.randperm(len(z), generator=rng)[:size]].double() for z in (real, generated))
        xx, yy, xy = ((p @ q.T / x.shape[1] + 1) ** 3 for p, q in ((x, x), (y, y), (x, y)))
        within = sum((k.sum() - k.trace()) / (size * (size - 1)) for k in (xx, yy))
        found.append(float(within - 2 * xy.mean()))
    return Estimate(sum(found) / n_subsets, _kernel_error(real.double(), generated.double()))


def _kernel_error(real: Tensor, generated: Tensor, n_groups: int = 10) -> float:
    """The jackknife error of `kernel_distance`, by sums over pairs of groups, so that each pair is looked at once."""
    n, d = generated.shape
    groups = [generated[torch.arange(n) % n_groups == k] for k in range(n_groups)]

    def total(x: Tensor, y: Tensor) -> Tensor:
        return sum((((part @ y.T / d + 1) ** 3).sum() for part in torch.split(x, 1024)), torch.zeros(()).double())

    within = torch.stack([torch.stack([total(x, y) for y in groups]) for x in groups])
    own = torch.stack([((x.square().sum(1) / d + 1) ** 3).sum() for x in groups])  # of each image with itself
    cross = torch.stack([total(x, real) for x in groups])
    without = []
    for k in range(n_groups):
        left = torch.arange(n_groups) != k
        m = sum(len(groups[j]) for j in range(n_groups) if j != k)
        same = within[left][:, left].sum() - own[left].sum()
        without.append(same / (m * (m - 1)) - 2 * cross[left].sum() / (m * len(real)))
    return _jackknife(torch.stack(without))


class Neighbours(NamedTuple):
    """Shares in [0, 1], but for density, which can exceed 1."""

    precision: float  # generated images that lie within the neighbourhood of a real one
    recall: float  # real images that lie within the neighbourhood of a generated one (Kynkäänniemi et al. 2019)
    density: float  # real neighbourhoods that hold a generated image, in units of what real images would have
    coverage: float  # real images whose neighbourhood holds a generated one (Naeem et al. 2020)


def neighbours(real: Tensor, generated: Tensor, k: int = 5) -> Neighbours:
    """Precision, recall, density and coverage with balls that reach to the k-th nearest neighbour.

    ``real`` and ``generated`` are features (n, d), equally many, since all four depend on their number; n > k.
    """
    if len(real) != len(generated) or len(real) <= k:
        raise ValueError(f"Need equally many images, more than {k}, got {len(real)} and {len(generated)}.")
    real, generated = real.double(), generated.double()
    real_radius, generated_radius = _radius(real, k), _radius(generated, k)
    held = torch.zeros(len(generated))  # real balls that hold each generated image
    near_generated = torch.zeros(len(real), dtype=torch.bool)
    covered = torch.zeros(len(real), dtype=torch.bool)
    for first in range(0, len(real), 1024):
        part = slice(first, first + 1024)
        distance = torch.cdist(real[part], generated)
        inside = distance <= real_radius[part, None]
        held += inside.sum(0)
        covered[part] = inside.any(1)
        near_generated[part] = (distance <= generated_radius).any(1)
    shares = (held > 0).float().mean(), near_generated.float().mean(), held.mean() / k, covered.float().mean()
    return Neighbours(*(float(share) for share in shares))


def _radius(x: Tensor, k: int) -> Tensor:
    """Distance of each row to its k-th nearest other row."""
    parts = torch.split(x, 1024)
    return torch.cat([torch.cdist(part, x).kthvalue(k + 1, dim=1).values for part in parts])  # the nearest is itself
