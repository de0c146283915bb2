"""Where GRBMs stand: test log-likelihood of whitened natural-image patches beside Gaussians, ICA, mixtures and a flow.

    uv run python -m benchmarks.natural_patches --data bsds500_train_200.zip [--protocol 63]

Patches of 14 x 14 as in Melchior, Wang & Wiskott 2017 (doi:10.1371/journal.pone.0171015), from photographs in grey
levels, made continuous by uniform noise of one level: the mean of each patch is removed, and ZCA whitens what is left,
fitted to the training patches. A patch without mean lies in 195 dimensions, where no model of 196 has a density, so the
removed direction is filled with unit normal noise, which costs 1.42 nats; and all is reflected so that this direction
is the first visible unit by itself, where every model can leave it alone (each other pixel gains a thirteenth of the
first one by that). ``--protocol 63`` has patches of 8 x 8 as the literature on BSDS300 has them, in its units; the
photographs are another selection. Photographs, not patches, are divided into training, validation and test; errors are
those over test photographs, and leave out those of log Z and of training. Mixtures and machines also take noise of 25
grey levels from test patches; the error is per pixel, of patches without their mean. What is trained is kept in --out,
and taken up again.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import patch_models
from benchmarks.denoising import Noisy, by_machine, by_mixture, error_of, noisy
from benchmarks.patches import SIDES, Patches, load
from benchmarks.scores import Found, Rows, Scores, by_group
from benchmarks.trainers import units
from grbm import CD, GRBM, PCD, FitOptions, Gibbs, Objective, TrainState, fit, sparse_
from grbm.core.files import write_text
from grbm.core.randomness import generator
from grbm.evaluate import ais

NOISE, DENOISED = 25.0, 2000  # grey levels; test patches
CHAINS = 4  # whose mean is taken for what was there
OTHER = 6000  # updates of machines of other hidden units


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


class Steps(NamedTuple):
    """How a machine learns: its optimizer, by the machine and the longest row's length, and options of `fit`."""

    optimizer: Callable[[GRBM, float], torch.optim.Optimizer]
    options: dict[str, Any]


def adam(rate: float) -> Steps:
    return Steps(lambda model, _: torch.optim.Adam(model.parameters(), lr=rate), {"average_decay": 0.999})


def spectral(rate: float) -> Steps:
    """Plain steps, centred, those of W with all singular values alike."""
    options = {"average_decay": 0.99, "clip_norm": 10.0, "centred": True, "spectral_norm": 0.5}
    return Steps(lambda model, _: torch.optim.SGD(model.parameters(), lr=rate), options)


class Recipe(NamedTuple):
    n_hidden: int
    objective: Objective
    n_updates: int
    batch_size: int
    steps: Steps
    n_contrasts: int = 1
    learns_scales: bool = False

    def train(self, data: Patches, seed: int) -> GRBM:
        rows, model = torch.from_numpy(data.train).float(), GRBM(data.n_units, self.n_hidden)
        some = rows
        if self.n_contrasts > 1:
            contrasts = patch_models.contrasts_of(data, self.n_contrasts).to(rows)
            some = contrasts.removed(rows, lambda u: 0.5 * u.square().sum(-1), generator(seed, "contrasts"))
            model.contrasts = contrasts
        sparse_(model, some, seed=seed)
        state = TrainState(model, self.steps.optimizer(model, float(rows.norm(dim=1).max())), seed=seed)
        options = FitOptions(
            n_updates=self.n_updates,
            batch_size=self.batch_size,
            contrast_scales=self.learns_scales,
            **{"clip_norm": None, "average_decay": None} | self.steps.options,
        )
        for _ in fit(state, rows, self.objective, options):
            pass
        return state.average or model


def recipes(N: int, shrink: int, wide: bool) -> dict[str, Recipe]:
    """The published recipe; its steps with our optimiser; ours; ours at several contrasts, wider too."""
    one = CD(Gibbs(), 1, probabilities=True)
    persistent = PCD(Gibbs(), 5, 500, probabilities=True)
    n_updates = 20_000 // shrink
    found = {
        f"GRBM {N}, CD-1 (Melchior)": Recipe(N, one, 80_000 // shrink, 100, Steps(Melchior, {})),
        f"GRBM {N}, CD-1, our optimiser": Recipe(N, one, n_updates, 500, adam(0.01)),
        f"GRBM {N}, PCD (ours)": Recipe(N, persistent, n_updates, 500, adam(0.01)),
        f"GRBM {N}, 8 contrasts": Recipe(N, persistent, n_updates, 500, adam(0.01), 8),
        f"GRBM {N}, 8 contrasts learned": Recipe(N, persistent, n_updates, 500, adam(0.01), 8, True),
        f"GRBM {N}, 24 contrasts": Recipe(N, persistent, n_updates, 500, adam(0.01), 24),
        f"GRBM {N}, PCD by spectral steps": Recipe(N, persistent, n_updates // 5, 500, spectral(0.3)),
        f"GRBM {N}, 8 contrasts by spectral steps": Recipe(N, persistent, n_updates // 5, 500, spectral(0.3), 8),
    }
    if wide:
        found[f"GRBM {4 * N}, 8 contrasts"] = Recipe(4 * N, persistent, n_updates, 500, adam(0.003), 8)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="zip of photographs (BSDS500, training part)")
    parser.add_argument("--protocol", choices=SIDES, default="14x14")
    parser.add_argument("--out", type=Path, default=Path("runs/natural-patches"))
    parser.add_argument("--seeds", type=int, default=2, help="runs of each GRBM recipe")
    parser.add_argument("--shrink", type=int, default=1, help="divide updates and patches: a quick look, not a result")
    parser.add_argument("--flow-seconds", type=float, default=None, help="that the flow learns; as long as ours")
    parser.add_argument("--wide", action="store_true", help="also four times as many hidden units")
    parser.add_argument("--only", nargs="+", default=None, help="parts of names in the table")
    options = parser.parse_args()
    data = load(options.data, 40_000 // options.shrink, 20_000 // options.shrink, protocol=options.protocol)
    folder = options.out / f"{options.protocol}-shrink-{options.shrink}"
    train, test = (Rows(x, data.log_det) for x in (data.train, data.test))
    scores = Scores(folder, train, test, data.test_photograph, options.only)
    print(f"{'':<36} {'train':>9} {'test':>9}   (nats per patch; errors over test photographs)")
    scores.add("Gaussian", lambda: (patch_models.gaussian(data), {}))
    scores.add("full-covariance Gaussian at 8 contrasts", lambda: (patch_models.scale_mixture(data), {}))
    scores.add("ICA (FastICA, ½ sech(πs/2))", lambda: (patch_models.ica(data)[0], {}))
    scores.add("ICA, shapes fitted", lambda: (patch_models.ica(data)[1], {}))
    sizes = (2, 5, 10, 20, 40) if options.shrink == 1 else (2, 5)
    scores.add("Gaussian mixture, full covariances", lambda: mixture(data, sizes, options.shrink))
    for name, recipe in recipes(data.n_units, options.shrink, options.wide).items():
        for seed in range(options.seeds):
            scores.add(f"{name}, seed {seed}", partial(grbm, recipe, data, seed, options.shrink))
    ours = [note["learned_s"] for name, note in scores.notes.items() if "8 contrasts, " in name]
    seconds = options.flow_seconds or float(np.mean(ours or [600])) / (1 if ours else options.shrink)
    scores.add(f"Autoregressive flow, {seconds:.0f} s", lambda: patch_models.flow(data, max(1.0, seconds), 0))
    for name, kind in units.MACHINES.items():
        scores.add(f"{name}, {data.n_units} units", partial(other, kind, data, options.shrink))
    print("\nDifferences on the same test patches:")
    best = [name for name in scores.test if name.startswith(f"GRBM {data.n_units}, 8 contrasts, ")]
    for name in scores.test:
        if best and name not in best:
            gain = np.mean([scores.test[k] for k in best], 0) - scores.test[name]
            mean, error = by_group(gain, data.test_photograph)
            scores.notes[name] |= {"ours_better_by": mean, "ours_better_error": error}
            print(f"  ours - {name:<36} {mean:8.2f} ± {error:.2f}")
    write_text(scores.folder / "scores.json", json.dumps(scores.notes, indent=1) + "\n")


def mixture(data: Patches, sizes: tuple[int, ...], shrink: int) -> Found:
    """The mixture's density, and the error of patches with noise taken away."""
    model = patch_models.mixture(data, sizes)
    given = noisy(data, DENOISED // shrink, NOISE)
    found = by_mixture(model, given.y, given.noise)
    return model.score_samples, {"components": model.n_components, **denoised(found, given, data)}


def grbm(recipe: Recipe, data: Patches, seed: int, shrink: int) -> Found:
    """A trained GRBM's density, with log Z from both ends, and the same error."""
    began = time.process_time()
    model = recipe.train(data, seed)
    seconds = time.process_time() - began
    z = ais.log_z(model, torch.from_numpy(data.train[:10_000]).float(), seed=seed)
    model, given = model.double(), noisy(data, DENOISED // shrink, NOISE)

    @torch.no_grad()
    def density(x: np.ndarray) -> np.ndarray:
        parts = torch.from_numpy(x).split(5000)
        return torch.cat([model.log_prob(part, z.log_z) for part in parts]).numpy()

    y, noise = torch.from_numpy(given.y), torch.from_numpy(given.noise)
    found = torch.stack([by_machine(model, y, noise, seed=seed + k) for k in range(CHAINS)]).mean(0).numpy()
    about = {"log_z_error": round(z.error, 4), "gap": round(z.upper - z.lower, 4), "converged": z.converged}
    return density, {**about, "learned_s": round(seconds), **denoised(found, given, data)}


def other(kind: type[units.Machine], data: Patches, shrink: int) -> Found:
    """A machine of other hidden units, by its own way of learning."""
    rows, began = torch.from_numpy(data.train).float(), time.process_time()
    model = units.learn(kind(data.n_units, data.n_units), rows, OTHER // shrink)
    seconds = time.process_time() - began
    z = units.log_z(model, rows, n_steps=2000 // shrink, settling=200 // shrink)

    @torch.no_grad()
    def density(x: np.ndarray) -> np.ndarray:
        return np.asarray((-model.free_energy(torch.from_numpy(x))).numpy()) - z.log_z

    about = {"log_z_error": round(z.error, 3), "gap": round(z.upper - z.lower, 3), "converged": z.converged}
    return density, {**about, "learned_s": round(seconds)}


def denoised(found: np.ndarray, given: Noisy, data: Patches) -> dict[str, float]:
    mean, error = error_of(found, given, data)
    return {"denoised": round(mean, 2), "denoised_error": round(error, 2)}


if __name__ == "__main__":
    main()
