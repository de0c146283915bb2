"""Figures of tables of several columns: what each column's data and samples look like, and how columns go together."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from grbm.report.plots import INK, RUST, panels

MOST = 24  # columns that have a panel
LABELLED = 30  # columns whose names fit beside a matrix


def farthest(data: Tensor, drawn: Tensor, count: int = MOST) -> list[int]:
    """The columns, in order, of which data (n, N) and samples (n', N) differ most: by mean |quantile difference|."""
    if data.shape[1] <= count:
        return list(range(data.shape[1]))
    levels = np.linspace(0.01, 0.99, 99)
    real, made = (np.quantile(x.double().numpy(), levels, axis=0) for x in (data, drawn))
    spread = data.double().numpy().std(0)
    distance = np.abs(real - made).mean(0) / np.where(spread > 0, spread, np.inf)
    return sorted(np.argsort(-distance, kind="stable")[:count].tolist())


def marginals(data: Tensor, drawn: Tensor, names: Sequence[str]) -> Figure:
    """The distribution of each column in the data (n, N) and in samples (n', N)."""
    shown = farthest(data, drawn)
    across = min(len(shown), 6)
    down = -(-len(shown) // across)
    figure, every = panels(down, across, max(1.75 * across + 0.3, 6.2), 1.45 * down + 0.75)
    for axes in every[len(shown) :]:
        axes.set_axis_off()
    for axes, column in zip(every, shown, strict=False):
        real, made = data[:, column].double().numpy(), drawn[:, column].double().numpy()
        edges = np.linspace(*_range(real, made), 31).tolist()
        axes.hist(np.clip(real, edges[0], edges[-1]), edges, density=True, color="#b9bec4", label="data")
        axes.hist(
            np.clip(made, edges[0], edges[-1]), edges, density=True, histtype="step", color=INK, lw=1.2, label="samples"
        )
        axes.set_title(_short(names[column]), fontsize=8)
        axes.set_yticks([])
        axes.tick_params(labelsize=6.5)
        axes.spines[["top", "right", "left"]].set_visible(False)
    handles, labels = every[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    text = "Each column" if len(shown) == data.shape[1] else f"The {len(shown)} columns that differ most"
    figure.suptitle(
        f"{text}: data and samples (the outermost bars hold what lies beyond)", fontsize=9.5, x=0.01, ha="left"
    )
    return figure


def correlations(data: Tensor, drawn: Tensor, names: Sequence[str]) -> Figure:
    """Correlations between columns in the data (n, N) and in samples (n', N), and one against the other."""
    shown = farthest(data, drawn, 60)
    figure, (left, middle, right) = panels(1, 3, 10, 3.7)
    matrices = [_correlation(x[:, shown].double().numpy()) for x in (data, drawn)]
    for axes, matrix, title in ((left, matrices[0], "data"), (middle, matrices[1], "samples")):
        picture = axes.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        axes.set_title(f"correlations: {title}", fontsize=9.5)
        labels = [_short(names[k], 16) for k in shown] if len(shown) <= LABELLED else []
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=6.5)
        axes.set_yticks(range(len(labels)), labels, fontsize=6.5)
    bar = figure.colorbar(picture, ax=[left, middle], shrink=0.8)
    bar.ax.tick_params(labelsize=7)
    pairs = np.triu_indices(len(shown), 1)
    right.plot([-1, 1], [-1, 1], color="#999999", lw=0.8)
    right.scatter(matrices[0][pairs], matrices[1][pairs], s=14, color=RUST, alpha=0.6, lw=0)
    right.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
    right.set_xlabel("in the data", fontsize=8)
    right.set_ylabel("in the samples", fontsize=8)
    right.set_title("correlation of each pair", fontsize=9.5)
    right.tick_params(labelsize=7)
    return figure


def _correlation(x: np.ndarray) -> np.ndarray:
    """Pearson's, 0 beside a column that does not vary."""
    z = x - x.mean(0)
    length = np.sqrt((z**2).sum(0))
    z = z / np.where(length > 1e-12 * np.abs(x).max(0), length, np.inf)
    found: np.ndarray = z.T @ z
    return found


def _range(real: np.ndarray, made: np.ndarray) -> tuple[float, float]:
    """Range of a panel: the data, and the samples as far as most of them lie near."""
    low, high = float(real.min()), float(real.max())
    width = max(high - low, 1e-9 * max(abs(low), abs(high), 1e-300))
    first, last = np.quantile(made, [0.01, 0.99]).tolist()
    right = max(high, min(last, high + 0.5 * width)) + 1e-3 * width
    return min(low, max(first, low - 0.5 * width)), right


def _short(name: str, length: int = 22) -> str:
    plain = name if len(name) <= length else f"{name[: length - 1]}…"
    return plain.replace("$", r"\$")  # not mathematics
