"""`grbm reproduce table1` to `fig9`: the paper's image experiments, trained where missing, scored and drawn."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import torch
from matplotlib.figure import Figure

from grbm import runs
from grbm.core.errors import UserError
from grbm.core.options import Precision
from grbm.data.images import tile
from grbm.data.pictures import ImageShape
from grbm.data.tables import spread
from grbm.evaluate.features import Features
from grbm.report import plots, sheets
from grbm.report.page import report
from grbm.reproduce import campaign
from grbm.reproduce.tables import about, notes, table, title
from grbm.reproduce.targets import ABOUT, TABLES, Recipe, runs_of
from grbm.runs.config import Dynamics, LogConfig, RunConfig, showing
from grbm.runs.paper import EXPERIMENTS, configure
from grbm.runs.presets import PRESETS
from grbm.runs.sampling import generate, trajectory


class Options(NamedTuple):
    """What a reproduction is made with."""

    folder: Path
    dynamics: Dynamics
    scale: float | None  # None: what each experiment has for a CPU
    data_dir: Path
    celeba: Path | None = None
    seed: int = 0
    jobs: int = 1
    mean: bool | None = None  # conditional means in place of v; None: as each run says
    n_seeds: int = 1  # from ``seed`` on, for tables
    recipe: Recipe = "paper"
    precision: Precision = "highest"  # of products in chains, in training and in drawing
    changes: Callable[[RunConfig], RunConfig] = lambda config: config


def reproduce(what: str, options: Options, judge: Callable[[str], Features | None], n_images: int) -> str:
    """Train what is missing of a table or figure, score and draw it into ``options.folder``; returns it as text.

    ``judge`` gives the Inception network for a data set's name; only tables call it.

    Raises
    ------
    UserError
        For data that are not there, before anything is trained, and for runs of other settings in the folder.
    """
    wanted = planned(what, options)
    todo = campaign.missing(wanted, options.folder)
    network = judge("mnist") if what in TABLES else None
    print(f"{what}: {len(wanted)} runs, {len(todo)} to train, in {options.folder}", flush=True)
    campaign.train_missing(todo, options.folder, at_once=options.jobs)
    done = {}
    for name, where in wanted:  # the data may have moved since
        run = runs.read(options.folder / name)
        config = replace(run.config, data_dir=where.data_dir, data=where.data)
        done[name] = run._replace(config=config if options.mean is None else showing(config, options.mean))
    if what in TABLES:
        lines = list(table(what, list(done.values()), options.folder, network, n_images))
    else:
        lines = [*notes(done.values()), f"Figure: {plots.save(_draw(what, done), options.folder / f'{what}.png')}"]
    for run in done.values():
        print(f"  {report(run)}", flush=True)  # with the scores of the table
    return "\n".join(lines)


def planned(what: str, options: Options) -> list[campaign.Planned]:
    """The runs of a target: those of the first seed in folders of their names, the others under their seed's.

    Raises UserError for data that are not there, and for more than one seed of a figure.
    """
    if what not in TABLES and options.n_seeds > 1:
        raise UserError(f"{what} shows one run of each kind; --seeds is for tables.")
    found = []
    for seed in range(options.seed, options.seed + options.n_seeds):
        for name in runs_of(what, options.recipe, options.scale):
            place = name if seed == options.seed else f"seed-{seed}/{name}"
            found.append(campaign.Planned(place, _config(name, seed, place, options)))
    for config in {run.config.dataset: run.config for run in found}.values():
        config.load_data()
    return found


def _config(name: str, seed: int, place: str, options: Options) -> RunConfig:
    config, words = PRESETS[name].config, ["grbm", "train", name]
    if name in EXPERIMENTS:
        scale = EXPERIMENTS[name].cpu_scale if options.scale is None else options.scale
        config = configure(name, options.dynamics, scale)
        words += ["--dynamics", options.dynamics, "--scale", f"{scale:g}"]
    config = options.changes(config)
    where = options.celeba if config.dataset.name == "celeba" else None
    config = replace(config, data_dir=options.data_dir, data=where, seed=seed, precision=options.precision)
    config = replace(config, log=LogConfig(tensorboard=False))
    words += [] if options.precision == "highest" else ["--precision", options.precision]
    words += ["--seed", str(seed), "--data-dir", str(options.data_dir), "--out", str(options.folder / place)]
    words += [] if where is None else ["--data", str(where)]
    config = replace(config, command=shlex.join(words))
    config.check()
    return config


def _draw(what: str, done: dict[str, runs.Run]) -> Figure:
    """The figure in the paper's layout, with what was run as its title."""
    first = next(iter(done.values()))
    head = f"Figure {what.removeprefix('fig')}: {ABOUT[what]}"
    if what == "fig2":
        states, steps = trajectory(first, 10, n_states=13)
        return sheets.chain_grid(states, _shape(first), steps, fill(f"{head}; {about(first)}", 8 * len(steps)))
    if what == "fig3":
        figure = Figure(figsize=(11.5, 4.0), layout="constrained")
        curve, middle, right = figure.subplots(1, 3)
        plots.log_variance(curve, first.metrics)
        curve.set_title("(a) log σ²: mean, and range over units", fontsize=9)
        curve.set_xlabel("update", fontsize=8)
        sheets.show(middle, sheets.filter_sheet(first.model.W, _shape(first), 100), "(b) filters of largest norm")
        sheets.show(right, tile(generate(first, 100), _shape(first), 10), "(c) samples")
    elif what in ("fig4", "fig5"):
        rows, columns = (1, 3) if what == "fig4" else (2, 3)
        figure = Figure(figsize=(11.5, 4.3 * rows), layout="constrained")
        panels = list(figure.subplots(rows, columns).flat)
        for letter, axes, (name, run) in zip("abcde", panels, done.items(), strict=False):
            sheets.show(axes, tile(generate(run, 100), _shape(run), 10), f"({letter}) {title(name)}")
        if what == "fig5":
            data = first.load_data()
            sheet = tile(data.train[spread(len(data.train), 100)], _shape(first), 10)
            sheets.show(panels[-1], sheet, "training images")
        if what == "fig4":
            figure.suptitle("\n".join([head, *(fill(about(run), 150) for run in done.values())]), fontsize=8)
            return figure
    else:
        figure = Figure(figsize=(11.5, 6.2), layout="constrained")
        images = generate(first, 512)
        for axes, part in zip(figure.subplots(1, 2), torch.split(images, 256), strict=True):
            sheets.show(axes, tile(part, _shape(first), 16), "")
    made = about(first, title=len(done) == 1)  # else what all of them have in common
    figure.suptitle(fill(f"{head}; {made}", 130), fontsize=10)
    return figure


def _shape(run: runs.Run) -> ImageShape:
    if run.image_shape is None:
        raise UserError(f"{run.folder} is not a run on images.")
    return run.image_shape
