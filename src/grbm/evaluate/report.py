"""`grbm evaluate`: the numbers that a run's data allow."""

from dataclasses import replace
from typing import Any

import torch

from grbm.data.loading import Dataset, load_for
from grbm.evaluate import exact
from grbm.evaluate.mixtures import density_score, model_grid, sample_score
from grbm.generate import generate, on_device
from grbm.model import Base
from grbm.runs import Run
from grbm.samplers import Annealed, sample


def evaluate(run: Run, *, n_samples: int = 10_000, seed: int = 1, dataset: Dataset | None = None) -> dict[str, Any]:
    """Scores by name: densities in nats per sample, of the data in their own units.

    The log-likelihood is exact where n_hidden <= 20 or n_visible <= 2. Elsewhere log Z is estimated from annealed
    chains (5 independent repeats; the spread between them is reported) and is too low on average, so the
    log-likelihood is too high: a number to compare runs by, not yet one to publish.
    """
    dataset = dataset or load_for(run.config, run.model.n_visible)
    model, scale = run.model, run.standardizer
    log_scale = float(scale.scale.log().sum())
    scores: dict[str, Any] = {"n_visible": model.n_visible, "n_hidden": model.n_hidden}
    # v itself, not conditional means, which lie where the free energy is lower than anywhere in a sample
    generated = generate(run, n_samples, seed=seed, sampling=replace(run.config.sampling, mean=False))
    scores["samples"] = n_samples
    grid = _grid(run, dataset)
    if grid is not None:
        log_z, spread, how = grid.log_z, 0.0, "quadrature"
    elif model.n_hidden <= exact.MAX_HIDDEN:
        log_z, spread, how = exact.log_z(model), 0.0, "enumeration"
    else:
        log_z, spread = _annealed_log_z(run, seed)
        how = "annealing estimate"
    scores |= {"log_z": log_z, "log_z_spread": spread, "log_z_method": how}
    with torch.no_grad():
        for name, rows in (("train", dataset.train), ("test", dataset.test)):
            if len(rows) == 0:
                continue
            z = scale(rows[:10_000])
            mean = model.visible_mean(model(z))
            scores[f"free_energy_{name}"] = float(model.free_energy(z).double().mean())
            scores[f"log_likelihood_{name}"] = -scores[f"free_energy_{name}"] - log_z - log_scale
            scores[f"reconstruction_{name}"] = float((z - mean).square().mean())
        scores["free_energy_samples"] = float(model.free_energy(scale(generated)).double().mean())
    if dataset.mixture is not None and grid is not None and run.config.dataset.standardise == "none":
        density = density_score(model, dataset.mixture, grid)
        drawn = sample_score(generated, dataset.mixture)
        scores |= {
            "kl_data_model": density.kl,
            "mode_mass": list(density.mode_mass),
            "within_3_deviations": drawn.within,
            "mode_share": list(drawn.mode_share),
        }
    return scores


def _grid(run: Run, dataset: Dataset) -> exact.Grid | None:
    """Quadrature in the plane; None elsewhere, or where the density is too sharp or wide for any grid."""
    if run.model.n_visible > 2:
        return None
    try:
        return model_grid(run.model, dataset.mixture) if dataset.mixture else exact.quadrature(run.model)
    except ValueError:
        return None


def _annealed_log_z(
    run: Run, seed: int, *, repeats: int = 5, n_chains: int = 200, n_steps: int = 1000
) -> tuple[float, float]:
    """Mean and standard deviation of log Z over independent annealed populations."""
    model = on_device(run)
    sampler = Annealed(Base(*(x.to(model.W) for x in run.base)))
    estimates = torch.tensor(
        [
            float(sample(model, sampler, n_steps=n_steps, n_chains=n_chains, seed=1000 * seed + k).state.log_z)
            for k in range(repeats)
        ],
        dtype=torch.float64,
    )
    return float(estimates.mean()), float(estimates.std())
