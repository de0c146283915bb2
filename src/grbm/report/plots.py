"""Figures, as matplotlib Figures that the caller saves or shows; nothing here touches global plotting state."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor

from grbm.core import files
from grbm.data.mixtures import Mixture
from grbm.evaluate.mixing import WORST_RHAT, Mixing, Trace

INK, RUST = "#1f4e79", "#c0504d"
Metrics = list[dict[str, Any]]  # of a run, as logged
COLOURS = (INK, RUST, "#5b8c5a", "#c9a227", "#7a5c99", "#4aa3a2", "#8a8a8a")

DASHED = ("held out", "on for 99 %")  # labels of curves that are drawn dashed
CURVES = (  # of the records of training: name, title, and whether on a logarithmic axis
    ("log_var_mean", "log σ², mean over visible units", False),
    ("reconstruction", "reconstruction error, mean square", False),
    ("grad_norm", "gradient norm before clipping", True),
    ("energy_distance", "energy distance of chains and data", True),
)
PAIRS = (  # curves that share a panel: their labels and names, the title of the panel, and limits of its axis
    ({"training": "free_energy_data", "held out": "free_energy_test"}, "free energy, nats per sample", None),
    ({"off for 99 % of the data": "hidden_off", "on for 99 %": "hidden_on"}, "hidden units, share", (-0.02, 1.02)),
)


def save(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write a figure whole or not at all; returns its path."""
    with files.replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi)
    return path


def panels(rows: int, columns: int, width: float, height: float, **how: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches, and its panels row by row; ``how`` goes to `Figure.subplots`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **how).flat)


def name_axes(
    axes: Axes, title: str, x: str = "", y: str = "", sizes: Sequence[float] = (9, 8, 7), *, legend: bool = False
) -> None:
    """Words of a panel: title, labels and ticks in three font ``sizes``, a legend; no frame above or at the right."""
    if legend:
        axes.legend(frameon=False, fontsize=sizes[2])
    axes.set_title(title, fontsize=sizes[0])
    axes.set_xlabel(x, fontsize=sizes[1])
    axes.set_ylabel(y, fontsize=sizes[1])
    axes.tick_params(labelsize=sizes[2])
    axes.spines[["top", "right"]].set_visible(False)


def learning_curves(metrics: Metrics, first_round: int | None = None) -> Figure:
    """Curves that a run logged: variances and reconstructions (Fig. 3a), gradients, distance to the data, and others.

    Rounds of quasi-Newton steps, from update ``first_round`` on, have half of each axis.
    """
    figure, (variances, *others) = panels(2, 3, 10, 5)
    log_variance(variances, metrics)
    name_axes(variances, "log σ²: mean, and range over units", "update")
    lines: list[tuple[str, bool, dict[str, str]]] = [
        *((title, log, {name: ""}) for name, title, log in CURVES[1:]),
        (
            "free energy, nats per sample",
            False,
            {"free_energy_data": "training", "free_energy_test": "held out", "free_energy_chains": "chains"},
        ),
        ("hidden units, share", False, {"hidden_off": "off for 99 % of the data", "hidden_on": "on for 99 %"}),
    ]
    scored = logged(metrics, "nats_validation")
    if scored:
        lines[3] = ("log-likelihood of validation rows, nats per row", False, {"nats_validation": ""})
    for axes, (title, log, named) in zip(others, lines, strict=True):
        for k, (name, label) in enumerate(named.items()):
            points = [(u, x) for x, u in logged(metrics, name) if not math.isnan(x)]
            if points:
                style = "--" if label in DASHED else "-"
                axes.plot(*zip(*points, strict=True), style, color=COLOURS[k], label=label, lw=1.2)
        if log:
            _log_scale(axes, [x for name in named for x in column(metrics, name)])
        name_axes(axes, title, "update", legend=len(named) > 1)
    if scored:
        _mark_best(others[3], scored)
    others[-1].set_ylim(-0.02, 1.02)
    for axes in figure.axes:
        _with_rounds(axes, metrics[-1]["update"], first_round)
        axes.tick_params(which="both", labelsize=7)
    return figure


def validation(metrics: Metrics, title: str, first_round: int | None = None) -> Figure:
    """Log-likelihood of validation rows over updates, its best one marked."""
    scored = logged(metrics, "nats_validation")
    figure = curve({"": [m for m in metrics if m.get("nats_validation") is not None]}, "nats_validation", title)
    _mark_best(figure.axes[0], scored)
    _with_rounds(figure.axes[0], metrics[-1]["update"], first_round)
    return figure


def _mark_best(axes: Axes, scored: list[tuple[float, int]]) -> None:
    """Mark the best score, and leave out the start of learning, which is far below."""
    nats, update = max(scored)
    axes.plot(update, nats, "o", color=RUST, ms=4, label=f"best: {nats:.4g}, at update {update:,}")
    axes.legend(frameon=False, fontsize=7, loc="lower right")
    usual = sorted(nats for nats, _ in scored)[len(scored) // 2]
    axes.set_ylim(bottom=max(min(scored)[0], nats - 5 * max(nats - usual, 0.02)))


def curve(
    several: dict[str, Metrics], name: str, title: str, log: bool = False, first_round: int | None = None
) -> Figure:
    """One number of the records of one or several runs, by label, over updates; ``first_round`` as above."""
    figure, (axes,) = panels(1, 1, 4.4, 2.9)
    columns = [column(metrics, name) for metrics in several.values()]
    marker = "." if log else None
    for k, ((label, metrics), numbers) in enumerate(zip(several.items(), columns, strict=True)):
        plain, style = label.replace("$", r"\$"), "--" if label in DASHED else "-"  # not mathematics
        updates, colour = [m["update"] for m in metrics], COLOURS[k % len(COLOURS)]
        axes.plot(updates, numbers, style, color=colour, label=plain, lw=1.3, marker=marker, ms=3)
    log = log and any(y > 0 for numbers in columns for y in numbers)
    if log:
        _log_scale(axes, [y for numbers in columns for y in numbers])
    limits = together(columns, log) if len(several) > 1 else None
    if limits is not None:
        axes.set_ylim(*limits)
    x = "update" if limits is None else "update (what lies beyond the axes is cut off)"
    name_axes(axes, title, x, sizes=(10, 9, 8), legend=len(several) > 1)
    _with_rounds(axes, max((m["update"] for metrics in several.values() for m in metrics), default=0), first_round)
    return figure


def _with_rounds(axes: Axes, last: int, first_round: int | None) -> None:
    """Give the updates after ``first_round``, where there are some, as much of the axis as those before."""
    if first_round is None or not 0 < first_round < last:
        return
    factor = first_round / (last - first_round)

    def forth(u: np.ndarray) -> np.ndarray:
        return np.where(u < first_round, u, first_round + factor * (u - first_round))

    def back(x: np.ndarray) -> np.ndarray:
        return np.where(x < first_round, x, first_round + (x - first_round) / factor)

    axes.set_xscale("function", functions=(forth, back))
    ticks = [0, first_round // 2, first_round, last]
    axes.set_xticks(ticks, labels=[f"{u:,}" for u in ticks])
    axes.set_xlim(0, last)
    axes.axvline(first_round, color="#999999", lw=0.6)
    axes.set_xlabel(f"update; from {first_round:,} on rounds", fontsize=8)


def _log_scale(axes: Axes, numbers: Sequence[float]) -> None:
    """A logarithmic axis; where unbiased distances fall below 0, it ends at the largest of these, which is noise."""
    positive, negative = [x for x in numbers if x > 0], [-x for x in numbers if x <= 0]
    if not positive:
        return
    axes.set_yscale("log")
    noise = max(negative, default=0.0)
    if 0 < noise < max(positive):
        for line in axes.lines:
            line.set_ydata(np.maximum(np.asarray(line.get_ydata(), dtype=float), noise))
        axes.set_ylim(bottom=0.8 * noise)
        axes.axhline(noise, color="#999999", lw=0.6)
        axes.text(
            0.98,
            0.97,
            "grey line: noise; lower values are drawn on it",
            transform=axes.transAxes,
            ha="right",
            va="top",
            fontsize=7,
        )


def together(columns: Sequence[list[float]], log: bool, most: float = 8.0) -> tuple[float, float] | None:
    """Limits within which most of several curves can be seen; None where all of them fit.

    Curves join from the narrowest on, for as long as none makes the range ``most`` times as wide: one run that diverged
    must not flatten the others.
    """
    finite = [[math.log(y) if log else y for y in ys if math.isfinite(y) and (y > 0 or not log)] for ys in columns]
    spans = sorted(((min(ys), max(ys)) for ys in finite if ys), key=lambda span: span[1] - span[0])
    if not spans:
        return None
    low, high = spans[0]
    for other in spans[1:]:
        wider = min(low, other[0]), max(high, other[1])
        room = max(high - low, 1e-9 * max(abs(low), abs(high)))
        if wider[1] - wider[0] <= most * room or (log and wider[1] - wider[0] < math.log(1000)):
            low, high = wider
    if all(low <= a and b <= high for a, b in spans):
        return None
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (math.exp(low - margin), math.exp(high + margin)) if log else (low - margin, high + margin)


def clouds(states: Tensor, data: Tensor | None, limits: "Limits", dpi: int = 100) -> Iterator[np.ndarray]:
    """A picture (H, W, 4) of uint8 on clear ground for each state (n, N) of some chains, as `cloud` draws it.

    What does not move is drawn once.
    """
    figure = cloud(states[0], data, limits)
    figure.set_dpi(dpi)
    canvas: Any = FigureCanvasAgg(figure)  # none of its methods is typed
    axes = figure.axes[-1]
    (moving,) = axes.collections
    for patch in (figure.patch, *(each.patch for each in figure.axes)):
        patch.set_facecolor("none")
    moving.set_animated(True)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    for state in states:
        canvas.restore_region(still)
        moving.set_offsets(_first_two(state))
        axes.draw_artist(moving)
        yield np.array(canvas.buffer_rgba())


def cloud(v: Tensor, data: Tensor | None, limits: "Limits") -> Figure:
    """First two columns of samples (n, N), beside data where they are at hand."""
    shown = [("samples", v, INK)] if data is None else [("data", data, RUST), ("samples", v, INK)]
    figure, both = panels(1, len(shown), 4.6 if data is None else 8, 4.2)
    for axes, (title, x, colour) in zip(both, shown, strict=True):
        first, second = _first_two(x).T
        axes.scatter(first, second, s=5, alpha=0.5, lw=0, color=colour)
        _frame(axes, "", limits)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("column 0", fontsize=10)
        axes.set_ylabel(f"column {min(1, v.shape[1] - 1)}", fontsize=10)
        axes.tick_params(labelsize=9)
    return figure


def _first_two(x: Tensor) -> np.ndarray:
    """The first and the second column, or the only one twice."""
    return x[:, [0, min(1, x.shape[1] - 1)]].cpu().numpy()


def log_variance(axes: Axes, metrics: Metrics) -> None:
    """log σ² over training (Fig. 3a): the mean over visible units as a line, their range as a band."""
    updates = [m["update"] for m in metrics]
    low, high = column(metrics, "log_var_min"), column(metrics, "log_var_max")
    axes.fill_between(updates, low, high, color=INK, alpha=0.15, lw=0)
    axes.plot(updates, column(metrics, "log_var_mean"), color=INK)


def logged(metrics: Metrics, name: str) -> list[tuple[float, int]]:
    """One number of the records that have it, each with its update."""
    return [(m[name], m["update"]) for m in metrics if m.get(name) is not None]


def column(metrics: Metrics, name: str) -> list[float]:
    """One number of each record; NaN where it has none."""
    return [math.nan if m.get(name) is None else m[name] for m in metrics]


Limits = tuple[tuple[float, float], tuple[float, float]]


def limits_of(rows: Tensor, margin: float = 0.2) -> Limits:
    """Limits of a panel that hold all rows (n, 2)."""
    low, high = rows.amin(0), rows.amax(0)
    border = margin * (high - low).clamp_min(1e-12)
    (left, bottom), (right, top) = (low - border).tolist(), (high + border).tolist()
    return (left, right), (bottom, top)


def density_panel(
    axes: Axes,
    points: Tensor,
    shape: tuple[int, ...],
    log_density: Tensor,
    title: str,
    limits: Limits | None = None,
    *,
    ticks: bool = False,
    even: bool = True,
) -> QuadMesh:
    """A log-density on a 2-D grid (P, 2), coloured down to 12 nats below its peak.

    Points of a grid that is ``even`` are cells; of another, colours go over from point to point.
    """
    x, y = (points[:, k].view(shape).cpu().numpy() for k in (0, 1))
    log_p = log_density.view(shape).cpu().numpy()
    low, high = log_p.max() - 12, log_p.max()
    shading: Literal["auto", "gouraud"] = "auto" if even else "gouraud"
    axes.set_facecolor(colormaps["viridis"](0))  # where the grid ends there is no density
    mesh = axes.pcolormesh(x, y, log_p, cmap="viridis", vmin=low, vmax=high, shading=shading, rasterized=True)
    _frame(axes, title, limits, ticks)
    return mesh


def sample_panel(
    axes: Axes,
    v: Tensor,
    mixture: Mixture | None,
    title: str,
    limits: Limits | None = None,
    *,
    ticks: bool = False,
) -> None:
    """Samples (n, 2), over the 3-deviation ellipses of the mixture's modes."""
    axes.scatter(v[:, 0].cpu(), v[:, 1].cpu(), s=2, color=INK, alpha=0.4, lw=0, rasterized=True)
    if mixture is not None:
        for mean, std in zip(mixture.means.tolist(), mixture.stds.tolist(), strict=True):
            axes.add_patch(Ellipse(mean, 6 * std[0], 6 * std[1], fill=False, color=RUST, lw=0.8))
    _frame(axes, title, limits, ticks)


def _frame(axes: Axes, title: str, limits: Limits | None, ticks: bool = False) -> None:
    """The paper's window, or ``limits`` with its own scale of each axis."""
    horizontal, vertical = limits or ((-10, 10), (-10, 10))
    axes.set(xlim=horizontal, ylim=vertical)
    if limits is None:
        marked = [-10, -5, 0, 5, 10] if ticks else []
        axes.set(aspect="equal", xticks=marked, yticks=marked)
    axes.tick_params(labelsize=6)
    axes.set_title(title, fontsize=8)


def mixing(trace: Trace, found: Mixing) -> Figure:
    """Free energies of the chains, autocorrelations, R-hat of the visible units, and swap rates if there are any."""
    n_panels = 3 if found.swap_rate is None else 4
    wide = 8.5 if n_panels == 3 else 11
    figure, (energies, lags, agreement, *swaps) = panels(1, n_panels, wide, 2.9, width_ratios=[2, 1, 1, 1][:n_panels])
    steps = [trace.every * (k + 1) for k in range(trace.v.shape[1])]
    for k, chain in enumerate(trace.free_energy):
        start, colour = ("data", RUST) if k < trace.n_from_data else ("noise", INK)
        label = f"from {start}" if k in (0, trace.n_from_data) else None
        energies.plot(steps, chain, color=colour, lw=0.6, alpha=0.7, label=label)
    name_axes(energies, "free energy of each chain, nats", "step after burn-in")
    energies.legend(frameon=False, fontsize=7, loc="upper right")
    above = (found.autocorrelation > 0.05).any(0).long()
    shown = min(len(above), 2 * int(above.cumprod(0).sum()) + 10)
    lags.axhline(0, color="#999999", lw=0.6)
    labels = "free energy", f"slowest unit ({found.slowest})"
    for rho, label, colour in zip(found.autocorrelation, labels, (INK, RUST), strict=True):
        lags.plot([trace.every * k for k in range(shown)], rho[:shown], color=colour, label=label)
    name_axes(lags, "autocorrelation", "lag, steps", legend=True)
    rhat = found.rhat.nan_to_num(nan=2.0).clamp_max(2.0).numpy()
    agreement.hist(rhat, bins=30, range=(min(1.0, rhat.min()), max(1.06, rhat.max())), color=INK)
    agreement.axvline(WORST_RHAT, color=RUST, lw=0.8, label=f"limit {WORST_RHAT}")
    words = "R-hat of the visible units", "R-hat (1: the chains agree)", "visible units"
    name_axes(agreement, *words, legend=True)
    if found.swap_rate is not None:
        swaps[0].bar(range(1, len(found.swap_rate) + 1), found.swap_rate.numpy(), color=INK)
        swaps[0].set_ylim(0, 1)
        name_axes(swaps[0], "swap rates", "pair of replicas, from the base up")
    return figure
