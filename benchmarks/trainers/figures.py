"""A figure a data set: each trainer's score on each seed, and the mean, at equal seconds and at equal updates."""

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from grbm.report.plots import INK, RUST

Scored = dict[str, list[float | None]]  # scores over seeds by trainer; None for a machine that was lost


def ranking(name: str, goal: str, more: bool, at: dict[str, Scored]) -> Figure:
    """Trainers from the best down, by the first of the budgets of ``at``; logarithmic where less is better.

    Those without scores there are last. Lost machines, and scores far behind, stand at the edge.
    """
    first, *_ = at.values()
    every = dict.fromkeys(trainer for scored in at.values() for trainer in scored)
    names = sorted(every, key=lambda trainer: _rank(first.get(trainer, []), more))
    figure = Figure(figsize=(9, 1.1 + 0.23 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(at), sharey=True, squeeze=False)[0]
    for axes, (budget, scored) in zip(panels, at.items(), strict=True):
        _panel(axes, [scored.get(trainer, []) for trainer in names], more)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(f"{name}, at equal {budget}", fontsize=9)
        axes.set_xlabel(goal + (" (more is better)" if more else " (less is better)"), fontsize=8)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def _panel(axes: Axes, rows: list[list[float | None]], more: bool) -> None:
    """One dot a seed, one line at the mean; a cross at the edge for what is lost or far behind."""
    if not more:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    edge = _edge([x for row in rows for x in row if x is not None], more)
    for y, row in enumerate(rows):
        near = [x for x in row if x is not None and (x >= edge if more else x <= edge)]
        axes.plot(near, [y] * len(near), "o", color=INK, ms=4, alpha=0.6, lw=0)
        if len(near) < len(row):
            axes.plot(edge, y, "x", color=RUST, ms=5)
        elif near:
            axes.plot(statistics.mean(near), y, "|", color=INK, ms=11, mew=1.6)
    axes.tick_params(labelsize=7)
    axes.grid(axis="y", color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _edge(good: list[float], more: bool) -> float:
    """The worst score, but no further behind the median than three times what the best is before it."""
    middle = statistics.median(good or [1.0])
    if more:
        best, worst = max(good, default=1.0), min(good, default=1.0)
        return max(worst, middle - 3 * (best - middle))
    best, worst = min(good, default=1.0), max(good, default=1.0)
    return min(worst, middle * (middle / best) ** 3)


def _rank(row: list[float | None], more: bool) -> float:
    """So that the best comes first and the lost last."""
    good = [x for x in row if x is not None]
    if not good or len(good) < len(row):
        return float("inf")
    return -statistics.mean(good) if more else statistics.mean(good)
