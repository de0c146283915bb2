"""`grbm figures`: every figure of a run, drawn anew from its files."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from grbm import files, runs
from grbm.data.loading import Dataset
from grbm.evaluate.exact import quadrature
from grbm.evaluate.mixtures import model_grid
from grbm.report import plots
from grbm.runs.config import SamplingConfig
from grbm.runs.sampling import generate, on_device, trajectory, tuned_sampler
from grbm.samplers import Sampler


def draw(run: runs.Run, *, seed: int = 1, dataset: Dataset | None = None) -> list[Path]:
    """Draw all figures that the run's data allow into ``figures/`` and return their paths."""
    dataset = dataset or run.load_data()
    folder = run.folder / runs.FIGURES
    written = []

    def save(figure: Figure, name: str) -> None:
        with files.replacing(folder / name) as temporary:
            figure.savefig(temporary, dpi=150)
        written.append(folder / name)

    sampling, shape = run.config.sampling, dataset.image_shape
    sampler = tuned_sampler(run, sampling.sampler, on_device(run))
    if shape is not None:
        how = f"{sampling.n_steps} steps from noise" + (", conditional means" if sampling.mean else "")
        save(plots.image_grid(generate(run, 128, sampler=sampler, seed=seed), shape, f"Samples: {how}"), "samples.png")
        states, steps = trajectory(run, 10, sampler=sampler, seed=seed, n_states=13)
        save(plots.chain_grid(states, shape, steps, "From noise to samples"), "chains.png")
        states, _ = trajectory(run, 32, sampler=sampler, seed=seed, n_states=50)
        with files.replacing(folder / "chains.gif") as temporary:
            plots.save_animation(temporary, states, shape)
        written.append(folder / "chains.gif")
        save(plots.filters(run.model.W, shape), "filters.png")
    elif run.model.n_visible == 2:
        save(_plane(run, dataset, sampling, sampler, seed), "density.png")
    else:
        drawn = generate(run, 1000, sampler=sampler, seed=seed)
        save(plots.scatter(drawn, dataset.train[:1000], "Samples from noise"), "samples.png")
    if run.metrics:
        save(plots.learning_curves(run.metrics), "learning.png")
    return written


@torch.no_grad()
def _plane(run: runs.Run, dataset: Dataset, sampling: SamplingConfig, sampler: Sampler, seed: int) -> Figure:
    """Data, learned density and samples of a model of the plane."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    rows = dataset.train[:1000]
    limits = None if dataset.mixture else plots.limits_of(rows)
    plots.sample_panel(left, rows, dataset.mixture, "data", limits)
    title = "model: log-density (quadrature)"
    try:
        grid = model_grid(run.model, dataset.mixture) if dataset.mixture else quadrature(run.model, max_spacing=0.1)
        points = run.standardizer.inverse(grid.points)
        plots.density_panel(middle, points, grid.shape, grid.log_density, title, limits)
    except ValueError:
        middle.text(0.5, 0.5, "too sharp for a grid", ha="center", transform=middle.transAxes)
    drawn = generate(run, 1000, sampler=sampler, seed=seed)
    plots.sample_panel(right, drawn, dataset.mixture, f"model: {sampling.n_steps} steps from noise", limits)
    return figure
