"""`grbm reproduce all`: as many of the paper's figures and tables as a time allows, and what is left of the others."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from grbm.core.errors import UserError
from grbm.evaluate.features import Features
from grbm.reproduce import campaign, experiments, figure1
from grbm.reproduce.experiments import Options
from grbm.reproduce.targets import TABLES, is_ours

FIRST = ("fig1", "table1", "fig5", "fig2", "fig3", "fig6", "table2", "table3", "fig4", "fig7", "fig8", "fig9")
FIGURE1 = "fig1-short"  # its folder


class _Target(NamedTuple):
    """A figure or table: its runs, where they lie, how many may be trained at a time, and what draws it."""

    what: str
    runs: list[campaign.Planned]
    folder: Path
    threads: int | None
    draw: Callable[[], str]


def reproduce_all(seconds: float, options: Options, judge: Callable[[str], Features | None], n_images: int) -> str:
    """Make one target after another, and say of those that are not done what is left.

    Whatever is drawn is whole: of a target whose runs are not all trained nothing is drawn. The same call goes on where
    this one ended.

    Parameters
    ----------
    seconds
        After them runs under way write their checkpoints and stop, and nothing else begins. A target whose runs are
        all there by then is still scored and drawn.
    options, judge, n_images
        As for `grbm.reproduce.experiments.reproduce`; by our recipe there are figures of images alone.
    """
    deadline, targets, left, done = time.monotonic() + seconds, [], [], 0
    network = judge("mnist") if options.recipe == "paper" else None
    for what in FIRST:
        if options.recipe == "ours" and not is_ours(what):
            continue
        try:
            targets.append(_target(what, options, network, n_images))
        except UserError as error:  # before hours of training, not after them
            left.append(f"{what}: {error}")
            print(f"Left out: {left[-1]}", flush=True)
    for what, runs, folder, threads, draw in targets:
        todo = campaign.missing(runs, folder)
        if todo and time.monotonic() < deadline:
            print(f"{what}: {len(todo)} of {len(runs)} runs to train", flush=True)
            campaign.train_missing(todo, folder, at_once=options.jobs, threads=threads, deadline=deadline)
            todo = campaign.missing(runs, folder)
        if todo:
            begun = [text for run in todo if (text := campaign.how_far(run, folder))]
            left.append(
                f"{what}: {len(todo)} of {len(runs)} runs to train" + (f" ({'; '.join(begun)})" if begun else "")
            )
        else:
            print(f"{draw()}\n", flush=True)
            done += 1
    lines = [f"{done} of {done + len(left)} figures and tables are in {options.folder}."]
    if left:
        lines += ["Left out (the same command goes on with what was begun):", *(f"  {line}" for line in left)]
    return "\n".join(lines)


def _target(what: str, options: Options, network: Features | None, n_images: int) -> _Target:
    if what != "fig1":
        one_each = options if what in TABLES else options._replace(n_seeds=1)
        runs = experiments.planned(what, one_each)
        campaign.missing(runs, options.folder)  # refuses runs of other settings
        draw = lambda: experiments.reproduce(what, one_each, lambda dataset: network, n_images)  # noqa: E731
        return _Target(what, runs, options.folder, None, draw)
    folder = options.folder / FIGURE1
    panels = figure1.panels("short", options.seed)
    figure1.refuse_foreign(folder, panels)
    campaign.missing([panel.planned for panel in panels], folder)
    draw = lambda: figure1.reproduce(folder, jobs_at_once=options.jobs, seeds=[options.seed])  # noqa: E731
    return _Target(what, [panel.planned for panel in panels], folder, 1, draw)
