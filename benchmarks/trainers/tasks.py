"""What trainers are to learn, and how they are judged: mixtures of the plane, digits, patches of photographs, MNIST."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks import patches
from benchmarks.speedrun import judge_of
from grbm import GRBM, Gibbs, anchored_, sample, sparse_
from grbm.data.images import load_digits, load_idx
from grbm.data.mixtures import MIXTURES, Mixture
from grbm.data.tables import spread
from grbm.evaluate import ais
from grbm.evaluate.features import inception_768
from grbm.evaluate.mixtures import density_score
from grbm.model import Base
from grbm.report.image_scores import compare

Scores = dict[str, float]
N_TUNED, N_JUDGED, N_SEEN = 500, 2000, 128  # images of a machine: for its rate, for its score, and for Inception


class Task(NamedTuple):
    """Rows (n, N), a machine's size and start, and what a learned one scores."""

    name: str
    rows: Tensor  # float32, as the machine sees them
    n_hidden: int
    start: Callable[[GRBM, int], object]  # of a machine and a seed, in place
    judge: Callable[[GRBM, int], Scores]
    goal: str  # name of the score that says which is better
    more: bool  # whether more of it is better
    tune: Callable[[GRBM, int], Scores]  # the same of rows that nothing else is judged by, where there are some
    batch_size: int = 100
    n_chains: int = 100
    variance_rate: float = 1.0
    min_var: float = 1e-3
    seconds: float = 5.0
    n_updates: int = 2000

    @property
    def base(self) -> Base:
        """A full-covariance Gaussian with the mean and variance of each column."""
        return Base.fit(self.rows)

    def machine(self, seed: int) -> GRBM:
        """One at the start."""
        model = GRBM(self.rows.shape[1], self.n_hidden, seed=seed)
        self.start(model, seed)
        return model


def plane(name: str, mixture: Mixture) -> Task:
    """10,000 points of a known mixture; KL(data ‖ model) by quadrature."""
    rows = mixture.sample(10_000, seed=0).float()
    narrowest = float(mixture.stds.min()) ** 2

    def start(model: GRBM, seed: int) -> object:
        return anchored_(model, rows, var=0.8 * narrowest, seed=seed)

    def judge(model: GRBM, seed: int) -> Scores:
        del seed
        try:
            found = density_score(model, mixture)
        except ValueError:  # a density so narrow or so wide that no grid holds it
            return {"KL": math.inf, "mass": math.inf}
        off = 0.5 * float((torch.tensor(found.mode_mass) - mixture.weights).abs().sum())
        return {"KL": found.kl, "mass": off}

    return Task(name, rows, 128, start, judge, "KL", False, judge, 500, 100, 0.1)


def random_mixture(k: int) -> Mixture:
    """Mixture number ``k`` of 3 to 8 components in the plane, of widths between 0.4 and 1.2."""
    rng = np.random.default_rng([k, 2])
    n = int(rng.integers(3, 9))
    weights, means, stds = rng.dirichlet(np.full(n, 3.0)), rng.uniform(-6, 6, (n, 2)), rng.uniform(0.4, 1.2, (n, 2))
    return Mixture(*(torch.from_numpy(x) for x in (weights, means, stds)))


def digits() -> Task:
    """8 x 8 digits of scikit-learn with the noise of dequantisation; nats per held-out row, annealed from both ends."""
    rng, images = np.random.default_rng(0), load_digits()[0].double()
    order = torch.from_numpy(rng.permutation(len(images)))
    images = (16 * images + torch.from_numpy(rng.uniform(size=images.shape))) / 17
    rows = ((images - images.mean()) / images.std()).float()[order]
    train, validation, test = rows[:1350], rows[1350:1500], rows[1500:]
    judge, tune = annealed(train, test), annealed(train, validation)
    return Task("digits", train, 128, _as_it_is, judge, "nats", True, tune, min_var=2e-3, seconds=10.0, n_updates=3000)


def photographs(path: Path) -> Task:
    """Whitened patches of 14 x 14; nats per patch of other photographs."""
    data = patches.load(path, 40_000, 20_000)
    train, validation, test = (torch.from_numpy(x).float() for x in (data.train, data.validation, data.test))

    def start(model: GRBM, seed: int) -> object:
        return sparse_(model, train, seed=seed)

    judge, tune = annealed(train, test), annealed(train, validation)
    return Task("patches", train, 196, start, judge, "nats", True, tune, 500, 500, 1.0, 1e-3, 20.0, 500)


def mnist(data_dir: Path, fid_weights: Path | None) -> Task:
    """MNIST in units of its deviation; Fréchet distance of images from noise in the features of a small classifier.

    Images are drawn by 100 Gibbs steps, which suits trainers whose chains begin as noise. With ``fid_weights`` the
    first of them are seen by Inception as well, of the first seed alone, since that takes longer than to learn; so few
    make its Fréchet distance larger, of all trainers alike, but not its kernel distance.
    """
    images = load_idx("mnist", data_dir, train=True)[0].float()
    mean, std = images.mean(), images.std()
    rows, judge = (images - mean) / std, judge_of(data_dir)[0]
    shown = images[spread(len(images), N_JUDGED)].view(-1, 1, 28, 28)
    real = judge.extract(shown)
    network = None if fid_weights is None else inception_768(fid_weights)
    seen = None if network is None else network.extract(shown[::2])

    def score(n_drawn: int, model: GRBM, seed: int) -> Scores:
        drawn = sample(model, Gibbs(), n_chains=n_drawn, n_steps=100, mean=True, seed=seed + 1).v * std + mean
        if not drawn.isfinite().all():
            return {"Fréchet": math.inf}
        drawn = drawn.clamp(0, 1).view(-1, 1, 28, 28)
        found = compare(judge, real, judge.extract(drawn), seed)
        scores = {"Fréchet": found[judge.label], "precision": found["precision"], "recall": found["recall"]}
        if seed == 0 and network is not None and seen is not None:
            more = compare(network, seen, network.extract(drawn[:N_SEEN]), seed)
            scores |= {"FID-768": more["FID-768"], "KID-768 x1000": more["KID-768 x1000"]}
        return scores

    judged, tuned = partial(score, N_JUDGED), partial(score, N_TUNED)
    return Task("mnist", rows, 512, _as_it_is, judged, "Fréchet", False, tuned, 256, 256, 1.0, 0.02, 20.0, 100)


def annealed(train: Tensor, test: Tensor) -> Callable[[GRBM, int], Scores]:
    """Held-out nats per row; where log Z is not sure, by the largest that anything says of it: rather too few.

    Beside them those that chains from the data say: more, where hidden states that none of them visits have mass.
    """

    def judge(model: GRBM, seed: int) -> Scores:
        found = ais.log_z(model, train, n_steps=1000, n_chains=500, seed=seed)
        with torch.no_grad():
            free_energy = float(model.double().free_energy(test.double()).mean())
        log_z = found.log_z
        if not found.converged:
            beyond = log_z + max(found.at_data or 0.0, 0.0)
            log_z = max(x for x in (found.lower, found.upper, log_z, beyond) if not math.isnan(x))
        near = {"near": -free_energy - found.log_z - (found.at_data or 0.0), "gap": found.upper - found.lower}
        return {"nats": -free_energy - log_z, **near, "converged": float(found.converged)}

    return judge


def _as_it_is(model: GRBM, seed: int) -> object:
    del model, seed
    return None


def tasks(names: list[str], data_dir: Path | None, photos: Path | None, fid_weights: Path | None = None) -> list[Task]:
    """Those of the names; raises SystemExit where their data are not given."""
    found = []
    for name in names:
        if name in MIXTURES:
            found.append(plane(name, MIXTURES[name]))
        elif name.startswith("random-"):
            found.append(plane(name, random_mixture(int(name.removeprefix("random-")))))
        elif name == "digits":
            found.append(digits())
        elif name == "patches":
            if photos is None:
                raise SystemExit("The task patches needs --photographs ZIP.")
            found.append(photographs(photos))
        elif name == "mnist":
            if data_dir is None:
                raise SystemExit("The task mnist needs --data-dir DIR.")
            found.append(mnist(data_dir, fid_weights))
        else:
            raise SystemExit(f"There is no task {name!r}; choose of {', '.join(NAMES)}.")
    return found


NAMES = [*MIXTURES, *(f"random-{k}" for k in range(8)), "digits", "patches", "mnist"]
