"""Likelihood of dequantised MNIST with ends of log Z that meet: bits per pixel of test images, in two coordinates.

    uv run python -m benchmarks.mnist_likelihood --data-dir DIR [--only GRBM] [--n-hidden 512 1024]

Levels k of 256 get uniform noise, x = (k + u)/256, and all densities are of these x: the published protocol, in which
one full Gaussian of logits has 2.01 bits, a masked autoregressive flow 1.89 and a mixture of MADEs 1.41 (Papamakarios,
Pavlakou & Murray 2017). A model stands in coordinates that the training images give, whitened (ZCA):

- logits of 1e-6 + (1 − 2e-6) x, as published;
- each pixel by its own distribution function to a normal one, Φ⁻¹(F_i(x_i)), where F_i is linear within each level. A
  pixel that is always black is then a normal number that costs nothing, and a Gaussian is a Gaussian copula.

50,000 images are learned from, 10,000 choose among settings, and the test images are the usual 10,000. What is trained
is kept in --out, and taken up again.
"""

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch
from scipy.special import ndtri
from sklearn.mixture import GaussianMixture
from torch import Tensor

from benchmarks.flows import AutoregressiveFlow, learn_flow
from benchmarks.scores import Density, Found, Rows, Scores, by_group
from grbm import GRBM, PCD, FitOptions, Gibbs, TrainState, fit, sparse_
from grbm.core.files import write_text
from grbm.core.options import Precision
from grbm.data.images import load_idx
from grbm.evaluate import ais

N, LEVELS, SQUEEZE = 784, 256, 1e-6
LEARNED_FROM, SCORED = 50_000, 5000
COMPONENTS = (5, 20, 80)  # of mixtures
Array = np.ndarray


class Images(NamedTuple):
    """Levels k (n, N) and the uniform noise u that is added to them."""

    k: Array
    u: Array


class Coordinates(NamedTuple):
    """Whitened rows of the three parts, and the logarithm of their density's change to x (n,)."""

    train: Rows
    validation: Rows
    test: Rows


def load(data_dir: Path, seed: int = 0) -> dict[str, Images]:
    """The three parts; noise is drawn once."""
    rng = np.random.default_rng(seed)
    grey = (load_idx("mnist", data_dir, train=part)[0].double() for part in (True, False))
    known, unseen = ((255 * x).round().numpy() for x in grey)
    levels = {"train": known[:LEARNED_FROM], "validation": known[LEARNED_FROM:], "test": unseen}
    return {part: Images(k, rng.random(k.shape)) for part, k in levels.items()}


def logits(images: Images) -> tuple[Array, Array]:
    """Rows (n, N), and log |dy/dx| (n,)."""
    s = SQUEEZE + (1 - 2 * SQUEEZE) * (images.k + images.u) / LEVELS
    return np.log(s) - np.log1p(-s), (math.log(1 - 2 * SQUEEZE) - np.log(s) - np.log1p(-s)).sum(1)


def shares(levels: Array, prior: float = 1.0) -> Array:
    """Each level at each pixel (N, 256): counts, and a ``prior`` of so many images: half as all pixels, half even."""
    counts = np.stack([np.bincount(column, minlength=LEVELS) for column in levels.astype(np.int64).T]).astype(float)
    counts += prior * (0.5 * counts.sum(0) / counts.sum() + 0.5 / LEVELS)
    return np.asarray(counts / counts.sum(1, keepdims=True))


def normal_scores(images: Images, p: Array) -> tuple[Array, Array]:
    """Φ⁻¹(F(x)) by the shares p (N, 256) of levels, and log |dy/dx| (n,)."""
    k, pixel = images.k.astype(np.int64), np.arange(p.shape[0])
    below = np.hstack([np.zeros((len(p), 1)), p.cumsum(1)[:, :-1]])
    here = p[pixel, k]
    y = ndtri((below[pixel, k] + here * images.u).clip(1e-12, 1 - 1e-12))
    return y, (np.log(LEVELS * here) + 0.5 * y**2 + 0.5 * math.log(2 * math.pi)).sum(1)


def whitened(parts: dict[str, tuple[Array, Array]]) -> Coordinates:
    """By the mean and covariance of the training rows."""
    mean, covariance = parts["train"][0].mean(0), np.cov(parts["train"][0].T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    zca, log_det = (vectors / np.sqrt(values)) @ vectors.T, -0.5 * float(np.log(values).sum())
    return Coordinates(*(Rows((y - mean) @ zca, volume + log_det) for y, volume in parts.values()))


def normal(x: Array) -> Array:
    """The standard normal log-density of rows: of whitened ones that of the full Gaussian."""
    return np.asarray(-0.5 * (x**2).sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi))


def grbm(data: Coordinates, n_hidden: int, n_updates: int, rate: float, precision: Precision, seed: int) -> Found:
    """A machine from rare hidden units by persistent chains and Adam, as on patches, and log Z from both ends."""
    rows = torch.from_numpy(data.train.x).float()
    model = sparse_(GRBM(N, n_hidden), rows[:10_000], seed=seed)
    state, began = TrainState(model, torch.optim.Adam(model.parameters(), lr=rate), seed=seed), time.process_time()
    options = FitOptions(n_updates, 256, clip_norm=None, average_decay=0.999)
    for _ in fit(state, rows, PCD(Gibbs(), 5, 256, probabilities=True), options, precision=precision):
        pass
    seconds = time.process_time() - began
    model = state.average or model
    z = ais.log_z(model, rows[:10_000], seed=seed)
    model = model.double()

    @torch.no_grad()
    def density(x: Array) -> Array:
        return np.concatenate([model.log_prob(part, z.log_z).numpy() for part in _parts(x)])

    about = {"log_z_error": round(z.error, 3), "gap": round(z.upper - z.lower, 3), "converged": z.converged}
    return density, {**about, "validation": _validation(density, data), "learned_s": round(seconds)}


def mixture(data: Coordinates) -> Found:
    """Gaussians with independent whitened coordinates; the number of them that is best on the validation images."""
    found = []
    for n_components in COMPONENTS:
        model = GaussianMixture(n_components, covariance_type="diag", reg_covar=1e-3, max_iter=60, random_state=0)
        model.fit(data.train.x)
        found.append((model.score(data.validation.x), n_components, model))
    best = max(found, key=lambda entry: entry[:2])[2]
    return best.score_samples, {"components": best.n_components, "validation": _validation(best.score_samples, data)}


def autoregressive(data: Coordinates, n_layers: int, seconds: float, seed: int) -> Found:
    """MADE, or a flow of several."""
    model = AutoregressiveFlow(N, n_layers=n_layers, seed=seed)
    train, validation = (torch.from_numpy(rows.x).float() for rows in (data.train, data.validation))
    learn_flow(model, train, validation[:SCORED], seconds, seed)

    @torch.no_grad()
    def density(x: Array) -> Array:
        return np.concatenate([model.log_prob(part.float()).double().numpy() for part in _parts(x)])

    return density, {"validation": _validation(density, data)}


def _validation(density: Density, data: Coordinates) -> float:
    return round(float((density(data.validation.x) + data.validation.log_volume).mean()), 2)


def _parts(x: Array) -> tuple[Tensor, ...]:
    return torch.from_numpy(x).split(2000)


def bits(nats: float) -> str:
    return f"  {(math.log(LEVELS) - nats / N) / math.log(2):.4f} bits"


def measured(kind: str, data: Coordinates, options: argparse.Namespace) -> Scores:
    """All models in one kind of coordinates."""
    train = Rows(data.train.x[:SCORED], np.asarray(data.train.log_volume)[:SCORED])
    scores = Scores(options.out, train, data.test, np.arange(len(data.test.x)), options.only, bits)
    scores.add(f"{kind}: full Gaussian", lambda: (normal, {}))
    scores.add(f"{kind}: mixture", partial(mixture, data))
    for name, n_layers in (("MADE", 1), ("flow", 5)):
        scores.add(
            f"{kind}: {name}, {options.seconds:g} s",
            partial(autoregressive, data, n_layers, options.seconds, 0),
        )
    for n_hidden in options.n_hidden:
        make = partial(grbm, data, n_hidden, options.updates, options.rate, options.precision, 0)
        fast = "" if options.precision == "highest" else f", {options.precision}"
        scores.add(f"{kind}: GRBM {n_hidden}, {options.updates} updates at {options.rate:g}{fast}", make)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/mnist-likelihood"))
    parser.add_argument("--n-hidden", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--precision", choices=get_args(Precision), default="highest", help="of the machines' chains")
    parser.add_argument("--seconds", type=float, default=600.0, help="that MADE and the flow learn")
    parser.add_argument("--only", nargs="+", default=None, help="parts of names in the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = load(options.data_dir)
    p = shares(images["train"].k)
    kinds = {"logits": logits, "normal scores": lambda part: normal_scores(part, p)}
    print(f"{'':<36} {'train':>9} {'test':>9}   (nats per image; errors over test images)")
    kept: dict[str, Array] = {}
    notes: dict[str, object] = {}
    for kind, to in kinds.items():
        scores = measured(kind, whitened({part: to(x) for part, x in images.items()}), options)
        kept |= scores.test
        notes |= scores.notes
    print("\nAbove the full Gaussian of logits, on the same test images:")
    for name, found in kept.items():
        if "logits: full Gaussian" in kept and name != "logits: full Gaussian":
            mean, error = by_group(found - kept["logits: full Gaussian"], np.arange(len(found)))
            print(f"  {name:<36} {mean:8.2f} ± {error:.2f}")
    write_text(options.out / "scores.json", json.dumps(notes, indent=1) + "\n")


if __name__ == "__main__":
    main()
