"""Simpler models on the same held-out rows: the scores that a log-likelihood is read beside."""

import math
import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.data.weighting import mean_and_error
from grbm.data.whitening import independent, set_apart
from grbm.model.reference import best_mixture

FIT_ROWS = 10_000
LARGEST_MIXTURE = 64  # columns, above which mixtures with full covariances take minutes
LARGEST_KERNEL = 3
SAME = 1e-3  # nats that nobody would call a difference

Array = np.ndarray[Any, Any]
Name = Literal["independent features", "full-covariance Gaussian", "mixture of Gaussians", "kernel density"]
Verdict = Literal["better", "level", "worse"]


class Baseline(NamedTuple):
    """A simpler model's log-density of the held-out rows, in nats and their own units."""

    name: Name
    log_p: Array  # (n,)
    detail: str = ""


class Comparison(NamedTuple):
    """Ours minus a baseline's mean log-density, on the same rows."""

    name: Name
    mean: float  # the baseline's
    error: float
    difference: float
    difference_error: float  # paired, by row, and that of log Z
    verdict: Verdict
    detail: str = ""


def baselines(
    train: Any, test: Any, *, kept: Array | None = None, clusters: Array | None = None, seed: int = 0
) -> list[Baseline]:
    """Fitted to ``train`` (n, N), of the rows ``test``, in the columns ``kept`` (N,); arrays or DataFrames of numbers.

    The mixture is fitted to ``clusters`` (n', N), where they are given, rows of which none are copies.

    By default constant columns and exact linear functions of others are left out.

    Independent features are a normal each. The full-covariance Gaussian has a covariance that is shrunk as far as few
    rows ask for (Ledoit & Wolf 2004). The mixture is chosen by BIC among full, tied and diagonal covariances. Kernels
    are those of `scipy.stats.gaussian_kde`, for at most three columns.
    """
    train, test = (np.asarray(rows, dtype=np.float64) for rows in (train, test))
    train = train[np.linspace(0, len(train) - 1, min(FIT_ROWS, len(train))).astype(int)]
    kept = independent(train) if kept is None else kept
    mean, std = train[:, kept].mean(0), train[:, kept].std(0)
    clusters = train if clusters is None else clusters.astype(np.float64)
    x, y, z = ((rows[:, kept] - mean) / std for rows in (train, test, clusters))
    units = -float(np.log(std).sum())
    independent_features = Baseline("independent features", _normal(y, np.eye(x.shape[1])) + units)
    own, change = set_apart(train[:, kept])
    if own.all():  # a direction in which rows hardly vary is one like any other
        x, y, z, units = x @ change, y @ change, z @ change, units + float(np.linalg.slogdet(change)[1])
    from sklearn.covariance import ledoit_wolf

    found = [Baseline("full-covariance Gaussian", _normal(y, ledoit_wolf(x, assume_centered=True)[0]))]
    if z.shape[1] <= LARGEST_MIXTURE and len(z) > 2:
        mixture = best_mixture(z, ("full", "tied", "diag"), seed)
        detail = f"{mixture.n_components} components, {mixture.covariance_type} covariance, by BIC"
        found.append(Baseline("mixture of Gaussians", mixture.score_samples(y), detail))
    if x.shape[1] <= LARGEST_KERNEL and len(x) > x.shape[1] + 1:
        from scipy.stats import gaussian_kde  # type: ignore[import-untyped]

        with warnings.catch_warnings(), np.errstate(divide="ignore"):
            warnings.simplefilter("ignore")
            found.append(Baseline("kernel density", gaussian_kde(x.T).logpdf(y.T)))
    return [independent_features, *(b._replace(log_p=b.log_p + units) for b in found)]


def _normal(y: Array, covariance: Array) -> Array:
    factor = np.linalg.cholesky(covariance)
    z = np.linalg.solve(factor, y.T)
    constant = np.log(np.diag(factor)).sum() + 0.5 * y.shape[1] * math.log(2 * math.pi)
    return -0.5 * (z**2).sum(0) - constant


def compare(ours: Array, log_z_error: float, baseline: Baseline, weights: Tensor | None = None) -> Comparison:
    """Better or worse beyond two standard errors of the paired difference, or level; rows count by ``weights`` (n,)."""
    theirs = np.maximum(baseline.log_p, -1e6)  # a kernel density may be 0 at a row
    difference, spread = mean_and_error(torch.from_numpy(ours - theirs), weights)
    error = math.hypot(spread, log_z_error)
    verdict: Verdict = "level" if abs(difference) <= max(2 * error, SAME) else "better" if difference > 0 else "worse"
    mean, own = mean_and_error(torch.from_numpy(theirs), weights)
    return Comparison(baseline.name, mean, own, difference, error, verdict, baseline.detail)
