"""Densities that GRBMs are set beside on patches: Gaussians, scaled Gaussians, components, mixtures and a flow."""

import math

import numpy as np
import torch
from scipy.special import gammaln
from sklearn.decomposition import FastICA
from sklearn.mixture import GaussianMixture

from benchmarks.flows import AutoregressiveFlow, learn_flow
from benchmarks.patches import Patches
from benchmarks.scores import Density, Found
from grbm.model.contrasts import Contrasts, scaled_gaussians


def gaussian(data: Patches) -> Density:
    mean, covariance = data.train.mean(0), np.cov(data.train.T, bias=True)
    precision, log_det = np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]
    constant = -0.5 * (data.n_units * math.log(2 * math.pi) + log_det)
    return lambda x: constant - 0.5 * np.einsum("ni,ij,nj->n", x - mean, precision, x - mean, optimize=True)


def contrasts_of(data: Patches, n_contrasts: int) -> Contrasts:
    """Those of the mixture of scaled Gaussians that fits the training patches, of the units that have contrast."""
    units = (torch.arange(data.n_units) >= data.first).double()
    squares = torch.from_numpy((data.contrast**2).sum(1))
    return scaled_gaussians(squares, torch.zeros(data.n_units).double(), n_contrasts, units)


def scale_mixture(data: Patches, n_contrasts: int = 8) -> Density:
    """A full-covariance Gaussian at several contrasts: how much of the gain is in the length of a patch alone."""
    contrasts, constant = contrasts_of(data, n_contrasts), 0.5 * data.n_units * math.log(2 * math.pi)

    def density(x: np.ndarray) -> np.ndarray:
        found = contrasts.free_energy(torch.from_numpy(x), lambda u: 0.5 * u.square().sum(-1))
        return np.asarray(-found - constant)

    return density


def ica(data: Patches) -> tuple[Density, Density]:
    """FastICA (logcosh) with the unit-variance density that it assumes, and with one of fitted shape per component."""
    found = FastICA(whiten="unit-variance", fun="logcosh", max_iter=400, tol=1e-3, random_state=0).fit(data.train)
    log_det = np.linalg.slogdet(found.components_)[1]
    sources = np.abs(found.transform(data.train))
    shapes = np.linspace(0.3, 2.5, 45)  # of exp(−|s/a|^shape): 2 is Gaussian, 1 Laplace
    fits = []
    for shape in shapes:
        width = (shape * (sources**shape).mean(0)) ** (1 / shape)
        fits.append(np.log(shape / (2 * width)) - gammaln(1 / shape) - 1 / shape)
    best = np.argmax(fits, 0)
    shape = shapes[best]
    width = (shape * (sources**shape).mean(0)) ** (1 / shape)
    constant = np.log(shape / (2 * width)) - gammaln(1 / shape)

    def hyperbolic(x: np.ndarray) -> np.ndarray:  # ½ sech(πs/2)
        t = 0.5 * math.pi * np.abs(found.transform(x))
        return log_det - (t + np.log1p(np.exp(-2 * t))).sum(1)

    def fitted(x: np.ndarray) -> np.ndarray:
        return log_det + (constant - (np.abs(found.transform(x)) / width) ** shape).sum(1)

    return hyperbolic, fitted


def mixture(data: Patches, sizes: tuple[int, ...]) -> GaussianMixture:
    """Full covariances; the number of components that is best on the validation patches."""
    fitted = []
    for k in sizes:
        model = GaussianMixture(k, reg_covar=1e-3, max_iter=60, init_params="random_from_data", random_state=0)
        model.fit(data.train)
        fitted.append((model.score(data.validation), k, model))
        print(f"    mixture of {k}: {fitted[-1][0]:.2f} on validation", flush=True)
    return max(fitted, key=lambda entry: entry[:2])[2]


def flow(data: Patches, seconds: float, seed: int) -> Found:
    """A masked autoregressive flow that learned for ``seconds`` of the processor's time; the best on validation."""
    model = AutoregressiveFlow(data.n_units, seed=seed)
    train, validation = (torch.from_numpy(x).float() for x in (data.train, data.validation))
    n_steps = learn_flow(model, train, validation, seconds, seed)

    @torch.no_grad()
    def density(x: np.ndarray) -> np.ndarray:
        rows = torch.from_numpy(x).float().split(5000)
        return torch.cat([model.log_prob(part) for part in rows]).double().numpy()

    return density, {"updates": n_steps}
