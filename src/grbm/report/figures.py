"""`grbm figures`: every figure of a run, drawn anew from its files."""

from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from grbm import runs
from grbm.core import files
from grbm.core.streams import plain
from grbm.data.images import tile
from grbm.data.loading import Dataset
from grbm.data.pictures import ImageShape
from grbm.data.tables import spread
from grbm.evaluate import exact
from grbm.evaluate.mixtures import spacing
from grbm.evaluate.nearest import nearest
from grbm.report import plots, sheets, table_plots
from grbm.runs.sampling import generate, on_device, trajectory, tuned_sampler
from grbm.samplers import Sampler


def draw(run: runs.Run, *, seed: int = 1, dataset: Dataset | None = None) -> list[Path]:
    """Draw all figures that the run's data allow into ``figures/`` and return their paths."""
    dataset = dataset or run.load_data()
    folder = run.folder / runs.FIGURES
    written = []

    def save(figure: Figure, name: str) -> None:
        written.append(plots.save(figure, folder / name))

    sampling, shape = run.config.sampling, dataset.image_shape
    sampler = tuned_sampler(run, sampling.sampler, on_device(run).model)
    if shape is not None:
        how = f"{sampling.n_steps} steps from noise" + (", conditional means" if sampling.mean else "")
        drawn, real = generate(run, 100, sampler=sampler, seed=seed), dataset.train[spread(len(dataset.train), 100)]
        both = (tile(real, shape, 10), "training images"), (tile(drawn, shape, 10), f"samples: {how}")
        save(sheets.gallery(both, 9, 4.5 * both[1][0].shape[0] / both[1][0].shape[1] + 0.3), "samples.png")
        states, steps = trajectory(run, 10, sampler=sampler, seed=seed, n_states=13)
        save(sheets.chain_grid(states, shape, steps, "From noise to samples"), "chains.png")
        states, _ = trajectory(run, 32, sampler=sampler, seed=seed, n_states=50)
        with files.replacing(folder / "chains.gif") as temporary:
            sheets.save_animation(temporary, states, shape)
        written.append(folder / "chains.gif")
        save(sheets.filters(run.model.W, shape), "filters.png")
        if drawn.isfinite().all():
            sheet, caption = nearest_sheet(drawn, dataset, shape)
            save(sheets.whole_sheet(sheet, fill(caption, 90), width=7.0, room=0.6), "nearest.png")
    elif run.transform.n_columns == run.model.n_visible == 2:
        save(plane(run, dataset, sampler=sampler, seed=seed), "density.png")
    else:
        real, drawn, names = table_samples(run, dataset, sampler, seed)
        if drawn.isfinite().all():
            save(table_plots.marginals(real, drawn, names), "marginals.png")
        if drawn.isfinite().all() and len(names) > 1:
            save(table_plots.correlations(real, drawn, names), "correlations.png")
    if run.metrics:
        save(plots.learning_curves(run.metrics, run.config.train.first_round), "learning.png")
    return written


def nearest_sheet(drawn: Tensor, dataset: Dataset, shape: ImageShape) -> tuple[np.ndarray, str]:
    """20 of the images ``drawn`` (n, N), each beside the 4 nearest training images; and a caption with numbers."""
    drawn = drawn.clamp(0, 1)  # as they are shown
    found = nearest(drawn, dataset.train, 4)
    shown = spread(len(drawn), 20)
    rows = dataset.train[found.rows[shown].flatten()].view(len(shown), -1, drawn.shape[1])
    sheet = sheets.beside_nearest(drawn[shown], rows, shape)
    caption = "Each sample and the 4 training images nearest to it. Median distance to the nearest: "
    caption += f"{found.distance[:, 0].median():.2f} of {len(drawn)} samples"
    if len(dataset.test):
        held = nearest(dataset.test[spread(len(dataset.test), len(drawn))], dataset.train).distance[:, 0]
        caption += f", {held.median():.2f} of {len(held)} held-out images"
    return sheet, f"{caption}."


def table_samples(
    run: runs.Run, dataset: Dataset, sampler: Sampler, seed: int
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Rows of a table (n, N), as many samples, and the names of its columns."""
    real = dataset.some("train", 2000)
    drawn = generate(run, 2000, sampler=sampler, seed=seed)
    names = dataset.columns or (f"column {k}" for k in range(real.shape[1]))
    return real, drawn, tuple(plain(name) for name in names)


@torch.no_grad()
def plane(run: runs.Run, dataset: Dataset, *, sampler: Sampler | None = None, seed: int = 1) -> Figure:
    """Data, learned density and samples of a model of the plane."""
    figure, (left, middle, right) = plots.panels(1, 3, 10.5, 3.5)
    rows = dataset.train[:1000] if dataset.weights is None else dataset.some("train", 1000)
    limits = None if dataset.mixture else plots.limits_of(rows)
    plots.sample_panel(left, rows, dataset.mixture, f"data: {len(rows):,} rows", limits, ticks=True)
    title = "model: log-density (quadrature)"
    grid = exact.plane(run.model, spacing(dataset.mixture) if dataset.mixture else 0.1)
    if grid is not None:
        points = run.frame.placed(run.transform.inverse(grid.points))
        density = (
            grid.log_density + run.transform.log_det + run.frame.log_slope(points)
        )  # of the data in their own units
        even = not run.frame.is_scaled.any()
        mesh = plots.density_panel(middle, points, grid.shape, density, title, limits, ticks=True, even=even)
        bar = figure.colorbar(mesh, ax=middle, shrink=0.85)
        bar.set_label("nats", fontsize=8)
        bar.ax.tick_params(labelsize=6)
    else:
        middle.text(0.5, 0.5, "too sharp for a grid", ha="center", transform=middle.transAxes)
    drawn = generate(run, 1000, sampler=sampler, seed=seed)
    title = f"model: 1,000 samples, {run.config.sampling.n_steps} steps from noise"
    plots.sample_panel(right, drawn, dataset.mixture, title, limits, ticks=True)
    for axes in (left, middle, right):
        axes.set_xlabel(plain(run.columns[0]) if run.columns else "$v_1$", fontsize=8)
        axes.set_ylabel(plain(run.columns[1]) if run.columns else "$v_2$", fontsize=8)
    if dataset.mixture is not None:
        text = "red: three standard deviations around each mode of the true density"
        figure.supxlabel(text, fontsize=8, color=plots.RUST)
    return figure
