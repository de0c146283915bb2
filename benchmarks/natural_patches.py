"""Where GRBMs stand: test log-likelihood of whitened natural-image patches against Gaussian, ICA and mixtures.

    uv run python -m benchmarks.natural_patches --data bsds500_train_200.zip

Patches of 14 x 14 as in Melchior, Wang & Wiskott 2017 (doi:10.1371/journal.pone.0171015), from photographs in grey
levels, made continuous by uniform noise of one level: the mean of each patch is removed, and ZCA whitens what is left,
fitted to the training patches. A patch without mean lies in 195 dimensions, where no model of 196 has a density, so the
removed direction is filled with unit normal noise, which costs 1.42 nats; and all is reflected so that this direction
is the first visible unit by itself, where every model can leave it alone (each other pixel gains a thirteenth of the
first one by that). Photographs, not patches, are divided into training, validation and test; errors are those over test
photographs, and leave out those of log Z and of training. What is trained is kept in --out, and taken up again.
"""

import argparse
import io
import json
import math
import re
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.special import gammaln
from sklearn.decomposition import FastICA
from sklearn.mixture import GaussianMixture
from torch import Tensor

from grbm import CD, GRBM, PCD, FitOptions, Gibbs, Objective, TrainState, fit, sparse_
from grbm.evaluate import ais
from grbm.files import replacing, write_text

SIDE = 14
N = SIDE * SIDE


class Patches(NamedTuple):
    """Whitened patches (n, 196), float64, and the photograph that each is from."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    test_photograph: np.ndarray


def load(path: Path, n_train: int, n_test: int, seed: int = 0) -> Patches:
    """Patches at random places: 70 % of the photographs for training, 10 % for validation, 20 % for the test."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".png")))
        photographs = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("L")) for name in names]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(photographs))
    first, second = round(0.7 * len(order)), round(0.8 * len(order))

    def cut(which: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = which[rng.integers(len(which), size=n)]
        rows = np.empty((n, N))
        for row, number in zip(rows, chosen, strict=True):
            image = photographs[number]
            top, left = (rng.integers(size - SIDE + 1) for size in image.shape)
            row[:] = image[top : top + SIDE, left : left + SIDE].reshape(-1)
        rows += rng.random(rows.shape)
        return rows - rows.mean(1, keepdims=True), chosen

    parts = [cut(order[:first], n_train), cut(order[first:second], n_test // 2), cut(order[second:], n_test)]
    values, vectors = np.linalg.eigh(np.cov(parts[0][0].T, bias=True))
    whiten = (vectors[:, 1:] / np.sqrt(values[1:])) @ vectors[:, 1:].T  # the first is the removed direction
    mirror = np.full(N, N**-0.5) - np.eye(N)[0]  # of the Householder reflection that takes the removed direction to e_0
    reflect = np.eye(N) - 2 * np.outer(mirror, mirror) / (mirror @ mirror)
    train, validation, test = (x @ whiten @ reflect for x, _ in parts)
    for x in (train, validation, test):
        x[:, 0] = rng.standard_normal(len(x))
    return Patches(train, validation, test, parts[2][1])


Density = Callable[[np.ndarray], np.ndarray]  # rows to their log-densities


def gaussian(data: Patches) -> Density:
    mean, covariance = data.train.mean(0), np.cov(data.train.T, bias=True)
    precision, log_det = np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]
    constant = -0.5 * (N * math.log(2 * math.pi) + log_det)
    return lambda x: constant - 0.5 * np.einsum("ni,ij,nj->n", x - mean, precision, x - mean, optimize=True)


def scale_mixture(data: Patches, n_scales: int = 8) -> Density:
    """One Gaussian at several contrasts, by EM: how much of the gain is in the length of a patch alone.

    The unit that was filled with noise has no contrast and stays apart.
    """
    lengths = (data.train[:, 1:] ** 2).sum(1)[:, None]
    scales = np.quantile(lengths, np.linspace(0.05, 0.95, n_scales)) / (N - 1)
    weights = np.full(n_scales, 1 / n_scales)

    def parts(squares: np.ndarray) -> np.ndarray:
        return np.log(weights) - 0.5 * ((N - 1) * np.log(2 * math.pi * scales) + squares / scales)

    def density(x: np.ndarray) -> np.ndarray:
        apart = -0.5 * (x[:, 0] ** 2 + math.log(2 * math.pi))
        return apart + np.logaddexp.reduce(parts((x[:, 1:] ** 2).sum(1)[:, None]), axis=1)

    for _ in range(200):
        joint = parts(lengths)
        responsibility = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
        weights = responsibility.mean(0)
        scales = (responsibility * lengths).sum(0) / ((N - 1) * responsibility.sum(0))
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


def mixture(data: Patches, sizes: tuple[int, ...]) -> tuple[Density, dict[str, float | bool]]:
    """Full covariances; the number of components that is best on the validation patches."""
    fitted = []
    for k in sizes:
        model = GaussianMixture(k, reg_covar=1e-3, max_iter=60, init_params="random_from_data", random_state=0)
        model.fit(data.train)
        fitted.append((model.score(data.validation), k, model))
        print(f"    mixture of {k}: {fitted[-1][0]:.2f} on validation", flush=True)
    _, k, model = max(fitted, key=lambda entry: entry[:2])
    return model.score_samples, {"components": k}


class Melchior(torch.optim.Optimizer):
    """The steps of Melchior et al. 2017 as in PyDeep: constant rates, one for σ itself, and clamped columns of ΔW."""

    def __init__(self, model: GRBM, longest: float) -> None:
        super().__init__(model.parameters(), {"lr": 1.0})  # which the cosine of `fit` moves and nothing reads
        self.model, self.limit = model, 0.01 * longest

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        model = self.model
        assert model.W.grad is not None
        assert model.b.grad is not None
        assert model.log_var.grad is not None
        step = -0.1 * model.W.grad
        model.W += step * (self.limit / step.norm(dim=0).clamp_min(1e-12)).clamp_max(1)
        model.b -= 0.1 * model.b.grad
        sigma = (0.5 * model.log_var).exp()
        sigma -= 0.01 * 2 * model.log_var.grad / sigma  # ∂/∂σ = (2/σ) ∂/∂log σ²
        model.log_var.copy_(2 * sigma.clamp_min(1e-3).log())


class Recipe(NamedTuple):
    n_hidden: int
    objective: Objective
    n_updates: int
    batch_size: int
    learning_rate: float | None  # Adam's; None for Melchior's optimiser

    def train(self, data: Tensor, seed: int) -> GRBM:
        model = sparse_(GRBM(N, self.n_hidden), data, seed=seed)
        if self.learning_rate is None:
            optimizer: torch.optim.Optimizer = Melchior(model, float(data.norm(dim=1).max()))
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        state = TrainState(model, optimizer, seed=seed)
        decay = None if self.learning_rate is None else 0.999
        options = FitOptions(n_updates=self.n_updates, batch_size=self.batch_size, clip_norm=None, average_decay=decay)
        for _ in fit(state, data, self.objective, options):
            pass
        return state.average or model


def recipes(shrink: int, wide: bool) -> dict[str, Recipe]:
    """The published recipe; its steps with our optimiser; ours, at the same number of hidden units and more."""
    one = CD(Gibbs(), 1, probabilities=True)
    persistent = PCD(Gibbs(), 5, 500, probabilities=True)
    found = {
        "GRBM 196, CD-1 (Melchior)": Recipe(N, one, 80_000 // shrink, 100, None),
        "GRBM 196, CD-1, our optimiser": Recipe(N, one, 20_000 // shrink, 500, 0.01),
        "GRBM 196, PCD (ours)": Recipe(N, persistent, 20_000 // shrink, 500, 0.01),
    }
    return found | ({"GRBM 784, PCD (ours)": Recipe(4 * N, persistent, 20_000 // shrink, 500, 0.003)} if wide else {})


def by_photograph(x: np.ndarray, photograph: np.ndarray) -> tuple[float, float]:
    """Mean of x, and its standard error over photographs, whose patches resemble each other."""
    total = np.bincount(photograph, x - x.mean())
    return float(x.mean()), math.sqrt(float((total**2).sum())) / len(x)


class Scores:
    """Log-densities of the test patches by name, kept in a folder as they are found."""

    def __init__(self, folder: Path, data: Patches) -> None:
        self.folder, self.data = folder, data
        self.test: dict[str, np.ndarray] = {}
        self.notes: dict[str, dict[str, float | bool]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, make: Callable[[], tuple[Density, dict[str, float | bool]]]) -> None:
        """Take up what is kept under this name, else make it; and print the line of the table."""
        path = self.folder / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.npz"
        if not path.is_file():
            began = time.time()
            density, note = make()
            found = {"test": density(self.data.test), "train": np.mean(density(self.data.train))}
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.savez(file, **found, **note, seconds=time.time() - began)
        kept = dict(np.load(path))
        self.test[name] = kept.pop("test")
        mean, error = by_photograph(self.test[name], self.data.test_photograph)
        note = {key: x.item() for key, x in kept.items() if key not in ("train", "seconds")}
        self.notes[name] = {"train": kept["train"].item(), "test": mean, "error": error, **note}
        shown = f"{kept['train']:9.2f} {mean:9.2f} ± {error:5.2f}  {kept['seconds']:6.0f} s"
        print(f"{name:<36} {shown}  {note or ''}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="zip of photographs (BSDS500, training part)")
    parser.add_argument("--out", type=Path, default=Path("runs/natural-patches"))
    parser.add_argument("--seeds", type=int, default=2, help="runs of each GRBM recipe")
    parser.add_argument("--shrink", type=int, default=1, help="divide updates and patches: a quick look, not a result")
    parser.add_argument("--wide", action="store_true", help="also 784 hidden units")
    parser.add_argument("--only", choices=("references", "grbm"), help="a part of the table")
    options = parser.parse_args()
    data = load(options.data, 40_000 // options.shrink, 20_000 // options.shrink)
    scores = Scores(options.out / f"shrink-{options.shrink}", data)
    print(f"{'':<36} {'train':>9} {'test':>9}   (nats per patch; errors over test photographs)")
    if options.only != "grbm":
        scores.add("Gaussian", lambda: (gaussian(data), {}))
        scores.add("One Gaussian at 8 contrasts", lambda: (scale_mixture(data), {}))
        scores.add("ICA (FastICA, ½ sech(πs/2))", lambda: (ica(data)[0], {}))
        scores.add("ICA, shapes fitted", lambda: (ica(data)[1], {}))
        sizes = (2, 5, 10, 20, 40) if options.shrink == 1 else (2, 5)
        scores.add("Gaussian mixture, full covariances", lambda: mixture(data, sizes))
    train = torch.from_numpy(data.train).float()
    for name, recipe in recipes(options.shrink, options.wide).items():
        for seed in range(options.seeds if options.only != "references" else 0):
            scores.add(f"{name}, seed {seed}", lambda recipe=recipe, seed=seed: grbm(recipe, train, seed))
    print("\nDifferences on the same test patches:")
    ours = [name for name in scores.test if name.startswith("GRBM 196, PCD")]
    for name in scores.test:
        if ours and name not in ours:
            gain = np.mean([scores.test[k] for k in ours], 0) - scores.test[name]
            mean, error = by_photograph(gain, data.test_photograph)
            scores.notes[name] |= {"ours_better_by": mean, "ours_better_error": error}
            print(f"  ours - {name:<36} {mean:8.2f} ± {error:.2f}")
    write_text(scores.folder / "scores.json", json.dumps(scores.notes, indent=1) + "\n")


def grbm(recipe: Recipe, train: Tensor, seed: int) -> tuple[Density, dict[str, float | bool]]:
    """A trained GRBM's density, with log Z from both ends."""
    model = recipe.train(train, seed)
    z = ais.log_z(model, train[:10_000], seed=seed)
    model = model.double()

    @torch.no_grad()
    def density(x: np.ndarray) -> np.ndarray:
        return np.asarray(model.log_prob(torch.from_numpy(x), z.log_z).numpy())

    return density, {"log_z_error": round(z.error, 4), "gap": round(z.upper - z.lower, 4), "converged": z.converged}


if __name__ == "__main__":
    main()
