"""`grbm reproduce table1` to `fig9`: the paper's image experiments, trained where missing, scored and drawn."""

import json
import math
import shlex
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from grbm import files, runs
from grbm.data.images import tile
from grbm.data.pictures import ImageShape
from grbm.data.tables import spread
from grbm.errors import UserError
from grbm.evaluate.features import Features
from grbm.report import plots
from grbm.report.image_scores import OWN, cells, judges_of, score_images, widths
from grbm.report.page import report
from grbm.report.words import ending
from grbm.reproduce import campaign
from grbm.reproduce.targets import ABOUT, TABLES, TARGETS
from grbm.runs.config import Dynamics, LogConfig, RunConfig, showing
from grbm.runs.paper import EXPERIMENTS, configure, describe
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
    changes: Callable[[RunConfig], RunConfig] = lambda config: config


def reproduce(what: str, options: Options, judge: Callable[[str], Features | None], n_images: int) -> str:
    """Train what is missing of a table or figure, score and draw it into ``options.folder``; returns it as text.

    ``judge`` gives the Inception network for a data set's name; only tables call it.

    Raises
    ------
    UserError
        For data that are not there, before anything is trained, and for runs of other settings in the folder.
    """
    planned = [campaign.Planned(name, _config(name, options)) for name in TARGETS[what]]
    todo = campaign.missing(planned, options.folder)
    for _, config in {run.config.dataset: run for run in planned}.values():
        config.load_data()
    network = judge("mnist") if what in TABLES else None
    print(f"{what}: {len(planned)} runs, {len(todo)} to train, in {options.folder}", flush=True)
    campaign.train_missing(todo, options.folder, at_once=options.jobs)
    done = {run.name: runs.read(options.folder / run.name) for run in planned}
    where = {name: _config(name, options) for name in done}  # the data may have moved since
    for name, run in done.items():
        config = replace(run.config, data_dir=where[name].data_dir, data=where[name].data)
        config = config if options.mean is None else showing(config, options.mean)
        done[name] = run._replace(config=config)
    if what in TABLES:
        text = "\n".join(_table(what, done, options, network, n_images))
        _pages(done)
        return text
    _pages(done)
    path = options.folder / f"{what}.png"
    with files.replacing(path) as temporary:
        _draw(what, done).savefig(temporary, dpi=150)
    return "\n".join([*_notes(done), f"Figure: {path}"])


def _pages(done: dict[str, runs.Run]) -> None:
    """A report.html in every run's folder; after scores, so that they are on it."""
    for run in done.values():
        print(f"  {report(run)}", flush=True)


def _config(name: str, options: Options) -> RunConfig:
    scale = EXPERIMENTS[name].cpu_scale if options.scale is None else options.scale
    config = options.changes(configure(name, options.dynamics, scale))
    where = options.celeba if EXPERIMENTS[name].dataset == "celeba" else None
    config = replace(config, data_dir=options.data_dir, data=where, seed=options.seed, log=LogConfig(tensorboard=False))
    words = ["grbm", "train", name, "--dynamics", options.dynamics, "--scale", f"{scale:g}"]
    words += ["--seed", str(options.seed), "--data-dir", str(options.data_dir), "--out", str(options.folder / name)]
    words += [] if where is None else ["--data", str(where)]
    config = replace(config, command=shlex.join(words))
    config.check()
    return config


def _notes(done: dict[str, runs.Run]) -> Iterator[str]:
    """What each run is, and how it ended where that was early."""
    for name, run in done.items():
        yield from textwrap.wrap(f"{name}: {_about(run)}", 110, subsequent_indent="  ")
        if run.status.ended != "finished":
            yield f"  {ending(run)}"


def _table(
    what: str, done: dict[str, runs.Run], options: Options, network: Features | None, n_images: int
) -> Iterator[str]:
    """The paper's number beside ours, reference points, and the order of the rows in print and here."""
    rows: dict[str, dict[str, float]] = {}
    dataset, references, protocol, judges = None, {}, [], []
    for name, run in done.items():
        dataset = dataset or run.load_data()
        print(f"  scoring {name} ...", flush=True)
        table = score_images(run, dataset, network, n=n_images)
        rows[name] = table.rows[OWN]
        protocol = [f"{table.settings['n']:,} images from noise each, against as many training images, evenly spaced."]
        protocol += table.protocol
        references = {k: row for k, row in table.rows.items() if k != OWN}
        judges = [judge.label for judge in judges_of(run, network)]
    shown = {name: cells(row) for name, row in (rows | references).items()}
    columns = {name: w for name, w in widths(rows | references).items() if name not in ("density", "coverage")}
    titles = {name: _title(name) for name in rows}
    width = max(map(len, [*titles.values(), *references]))

    def line(title: str, printed: float | None, row: dict[str, str]) -> str:
        number = "" if printed is None else f"{printed:.2f}"
        return f"{title:<{width}}  {number:>9}" + "".join(f"  {row.get(c, '–'):>{w}}" for c, w in columns.items())

    yield f"Table {what.removeprefix('table')} of the paper, its FID (2048 features, full scale) beside ours"
    yield f"{'':<{width}}  {'paper FID':>9}" + "".join(f"  {c:>{w}}" for c, w in columns.items())
    for name in rows:
        yield line(titles[name], EXPERIMENTS[name].fid, shown[name]) + (
            "" if done[name].status.ended == "finished" else "  stopped"
        )
    for name in references:
        yield line(name, None, shown[name])
    for column in judges:
        yield _order(column, rows, titles)
    yield from ("", *protocol, *_notes(done))
    content: dict[str, Any] = {
        "rows": {name: {"paper FID": EXPERIMENTS[name].fid, **row} for name, row in rows.items()},
        "references": references,
        "protocol": protocol,
        "about": {name: describe(run.config) for name, run in done.items()},
    }
    path = options.folder / f"{what}.json"
    files.write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    yield f"Written to {path}."


def _title(name: str) -> str:
    return EXPERIMENTS[name].title + (", annealed" if EXPERIMENTS[name].anneal else "")


def _order(column: str, rows: dict[str, dict[str, float]], titles: dict[str, str]) -> str:
    """How many pairs stand in the order of the paper, how many cannot be told apart, and which stand the other way."""
    scored = [name for name in rows if column in rows[name]]
    names = sorted(scored, key=lambda name: EXPERIMENTS[name].fid or 0.0)
    pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
    gaps = [rows[b][column] - rows[a][column] for a, b in pairs]
    errors = [math.hypot(rows[a].get(f"{column} ±", 0.0), rows[b].get(f"{column} ±", 0.0)) for a, b in pairs]
    right = sum(gap > 2 * error for gap, error in zip(gaps, errors, strict=True))
    wrong = [pair for pair, gap, error in zip(pairs, gaps, errors, strict=True) if gap < -2 * error]
    text = f"{column}: {right} of {len(pairs)} pairs stand in the paper's order by more than two standard errors, "
    text += f"{len(wrong)} the other way round"
    text += "".join(f"; {titles[b]} is better than {titles[a]} here" for a, b in wrong) + "."
    return textwrap.fill(text, 110, subsequent_indent="  ")


def _draw(what: str, done: dict[str, runs.Run]) -> Figure:
    """The figure in the paper's layout, with what was run as its title."""
    first = next(iter(done.values()))
    head = f"Figure {what.removeprefix('fig')}: {ABOUT[what]}"
    if what == "fig2":
        states, steps = trajectory(first, 10, n_states=13)
        return plots.chain_grid(states, _shape(first), steps, _wrap(f"{head}; {_about(first)}", 8 * len(steps)))
    if what == "fig3":
        figure = Figure(figsize=(11.5, 4.0), layout="constrained")
        curve, middle, right = figure.subplots(1, 3)
        plots.log_variance(curve, first.metrics, "(a) log σ²: mean, and range over units")
        plots.show(middle, plots.filter_sheet(first.model.W, _shape(first), 100), "(b) filters of largest norm")
        plots.show(right, _samples(first, 100, 10), "(c) samples")
    elif what in ("fig4", "fig5"):
        rows, columns = (1, 3) if what == "fig4" else (2, 3)
        figure = Figure(figsize=(11.5, 4.3 * rows), layout="constrained")
        panels = list(figure.subplots(rows, columns).flat)
        for letter, axes, (name, run) in zip("abcde", panels, done.items(), strict=False):
            plots.show(axes, _samples(run, 100, 10), f"({letter}) {_title(name)}")
        if what == "fig5":
            data = first.load_data()
            sheet = tile(data.train[spread(len(data.train), 100)], _shape(first), 10)
            plots.show(panels[-1], sheet, "training images")
        if what == "fig4":
            figure.suptitle("\n".join([head, *(_wrap(_about(run), 150) for run in done.values())]), fontsize=8)
            return figure
    else:
        figure = Figure(figsize=(11.5, 6.2), layout="constrained")
        images = generate(first, 512)
        for axes, part in zip(figure.subplots(1, 2), torch.split(images, 256), strict=True):
            plots.show(axes, tile(part, _shape(first), 16), "")
    made = _about(first, title=len(done) == 1)  # else what all of them have in common
    figure.suptitle(_wrap(f"{head}; {made}", 130), fontsize=10)
    return figure


def _about(run: runs.Run, *, title: bool = True) -> str:
    return (
        f"{describe(run.config, title=title)}; {'conditional means' if run.config.sampling.mean else 'states v'} shown"
    )


def _samples(run: runs.Run, n: int, columns: int) -> np.ndarray:
    return tile(generate(run, n), _shape(run), columns)


def _shape(run: runs.Run) -> ImageShape:
    if run.image_shape is None:
        raise UserError(f"{run.folder} is not a run on images.")
    return run.image_shape


def _wrap(text: str, width: int) -> str:
    return textwrap.fill(text, width)
