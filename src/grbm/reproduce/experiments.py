"""`grbm reproduce table1` to `fig9`, the paper's image experiments, and `grbm reproduce all`."""

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from textwrap import fill

import torch
from matplotlib.figure import Figure

from grbm import runs
from grbm.core.errors import UserError
from grbm.data.images import tile
from grbm.data.pictures import ImageShape
from grbm.data.tables import spread
from grbm.evaluate.features import Features
from grbm.report import plots, sheets
from grbm.report.page import report
from grbm.reproduce import campaign, figure1
from grbm.reproduce.tables import about, notes, table, title
from grbm.reproduce.targets import ABOUT, TABLES, EverythingOptions, Figure1Options, PaperOptions, is_ours, runs_of
from grbm.runs.config import LogConfig, RunConfig, showing
from grbm.runs.paper import EXPERIMENTS, configure
from grbm.runs.presets import PRESETS
from grbm.runs.sampling import generate, trajectory

FIRST = ("fig1", "table1", "fig5", "fig2", "fig3", "fig6", "table2", "table3", "fig4", "fig7", "fig8", "fig9")
FIGURE1 = "fig1-short"  # its folder among those of all


def reproduce_all(options: EverythingOptions, judge: Callable[[], Features | None]) -> str:
    """Make one target after another, and say of those that are not done what is left.

    Whatever is drawn is whole: of a target whose runs are not all trained nothing is drawn. The same call goes on where
    this one ended. A target whose runs are all there when the time is over is still scored and drawn.

    Parameters
    ----------
    options, judge
        As for `target`, and the time; by our recipe there are figures of images alone.
    """
    deadline, targets, left, done = time.monotonic() + options.budget, [], [], 0
    network = judge() if options.recipe == "paper" else None
    for what in FIRST:
        if options.recipe == "ours" and not is_ours(what):
            continue
        try:
            targets.append(target(what, options if what in TABLES else replace(options, seeds=1), lambda: network))
        except UserError as error:  # before hours of training, not after them
            left.append(f"{what}: {error}")
            print(f"Left out: {left[-1]}", flush=True)
    for each in targets:
        if todo := each.train(deadline):
            begun = "; ".join(filter(None, (campaign.how_far(run, each.folder) for run in todo)))
            left.append(
                f"{each.what}: {len(todo)} of {len(each.runs)} runs to train" + (f" ({begun})" if begun else "")
            )
        else:
            print(f"{each.draw()}\n", flush=True)
            done += 1
    lines = [f"{done} of {done + len(left)} figures and tables are in {options.folder}."]
    if left:
        lines += ["Left out (the same command goes on with what was begun):", *(f"  {line}" for line in left)]
    return "\n".join(lines)


def target(what: str, options: PaperOptions, judge: Callable[[], Features | None]) -> campaign.Target:
    """A table or figure in ``options.folder``: its runs, and what scores and draws them.

    ``judge`` gives the Inception network; only tables call it.

    Raises
    ------
    UserError
        For data that are not there, before anything is trained, and for runs of other settings in the folder.
    """
    if what == "fig1":
        return figure1.target(Figure1Options(out=options.folder / FIGURE1, jobs=options.at_once, seed=options.seed))
    wanted = planned(what, options)
    campaign.missing(wanted, options.folder)  # refuses runs of other settings
    network = judge() if what in TABLES else None

    def draw() -> str:
        done = {}
        for name, where in wanted:  # the data may have moved since
            run = runs.read(options.folder / name)
            config = replace(run.config, data_dir=where.data_dir, data=where.data)
            done[name] = run._replace(config=config if options.mean is None else showing(config, options.mean))
        if what in TABLES:
            lines = list(table(what, list(done.values()), options.folder, network, options.fid_samples))
        else:
            picture = plots.save(_draw(what, done), options.folder / f"{what}.png")
            lines = [*notes(done.values()), f"Figure: {picture}"]
        for run in done.values():
            print(f"  {report(run)}", flush=True)  # with the scores of the table
        return "\n".join(lines)

    return campaign.Target(what, wanted, options.folder, options.at_once, None, draw)


def planned(what: str, options: PaperOptions) -> list[campaign.Planned]:
    """The runs of a target: those of the first seed in folders of their names, the others under their seed's.

    Raises UserError for data that are not there, and for more than one seed of a figure.
    """
    if what not in TABLES and options.seeds > 1:
        raise UserError(f"{what} shows one run of each kind; --seeds is for tables.")
    found = []
    for seed in range(options.seed, options.seed + options.seeds):
        for name in runs_of(what, options.recipe, options.share):
            place = name if seed == options.seed else f"seed-{seed}/{name}"
            found.append(campaign.Planned(place, _config(name, seed, place, options)))
    for config in {run.config.dataset: run.config for run in found}.values():
        config.load_data()
    return found


def _config(name: str, seed: int, place: str, options: PaperOptions) -> RunConfig:
    config, words = PRESETS[name].config, ["grbm", "train", name]
    if name in EXPERIMENTS:
        scale = EXPERIMENTS[name].cpu_scale if options.share is None else options.share
        config = configure(name, options.dynamics, scale)
        words += ["--dynamics", options.dynamics, "--scale", f"{scale:g}"]
    where = options.data if config.dataset.name == "celeba" else None
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
        figure, (curve, middle, right) = plots.panels(1, 3, 11.5, 4.0)
        plots.log_variance(curve, first.metrics)
        curve.set_title("(a) log σ²: mean, and range over units", fontsize=9)
        curve.set_xlabel("update", fontsize=8)
        sheets.show(middle, sheets.filter_sheet(first.model.W, _shape(first), 100), "(b) filters, by norm")
        sheets.show(right, tile(generate(first, 100), _shape(first), 10), "(c) samples")
    elif what in ("fig4", "fig5"):
        drawn = [(tile(generate(run, 100), _shape(run), 10), title(name)) for name, run in done.items()]
        shown = [(sheet, f"({letter}) {text}") for letter, (sheet, text) in zip("abcde", drawn, strict=False)]
        if what == "fig5":
            rows = first.load_data().train
            shown.append((tile(rows[spread(len(rows), 100)], _shape(first), 10), "training images"))
        figure = sheets.gallery(shown, 11.5, 4.3 * len(shown) / 3, rows=len(shown) // 3)
        if what == "fig4":
            figure.suptitle("\n".join([head, *(fill(about(run), 150) for run in done.values())]), fontsize=8)
            return figure
    else:
        parts = torch.split(generate(first, 512), 256)
        figure = sheets.gallery([(tile(part, _shape(first), 16), "") for part in parts], 11.5, 6.2)
    made = about(first, title=len(done) == 1)  # else what all of them have in common
    figure.suptitle(fill(f"{head}; {made}", 130), fontsize=10)
    return figure


def _shape(run: runs.Run) -> ImageShape:
    if run.image_shape is None:
        raise UserError(f"{run.folder} is not a run on images.")
    return run.image_shape
