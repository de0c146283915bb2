"""Sheets of images, as arrays or matplotlib Figures that the caller saves or shows."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from grbm.data.images import tile
from grbm.data.pictures import ImageShape
from grbm.report import plots

FILTERS = "RdBu_r"  # colours of weights: blue below 0, red above
WEAK = 0.1  # of the largest norm: filters below it are left out


def whole_sheet(array: np.ndarray, title: str, width: float = 6.0, room: float = 0.25) -> Figure:
    """An array (H, W, 3) as a picture, with ``room`` inches above and below for words."""
    height = width * array.shape[0] / array.shape[1]
    return gallery([(array, title)], width, height + room)


def gallery(pictures: Sequence[tuple[np.ndarray, str]], width: float, height: float, rows: int = 1) -> Figure:
    """Arrays (H, W, 3) under their titles, in ``rows`` of a figure of so many inches."""
    figure, panels = plots.panels(rows, len(pictures) // rows, width, height)
    for axes, (array, title) in zip(panels, pictures, strict=True):
        show(axes, array, title)
    return figure


def show(axes: Axes, array: np.ndarray, title: str) -> None:
    """An array (H, W, 3) as a picture in ``axes``."""
    axes.imshow(array, interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(title, fontsize=10)


def beside_nearest(drawn: Tensor, data: Tensor, shape: ImageShape, columns: int = 2) -> np.ndarray:
    """Images (n, N), each followed by the k of ``data`` (n, k, N), as one array of so many such groups side by side."""
    groups, wide = [], data.shape[1] + 1
    together = torch.cat([drawn[:, None].to(data), data], 1)
    for part in together.chunk(columns):
        sheet = tile(part.flatten(0, 1), shape, wide)
        room = np.full((sheet.shape[0], shape[2] // 4, 3), 1.0, sheet.dtype)
        first = shape[2] + 1  # the image itself, apart from those beside it
        groups += [sheet[:, :first], room[:, : shape[2] // 8], sheet[:, first:], room]
    height = max(group.shape[0] for group in groups)
    return np.concatenate(
        [np.pad(g, ((0, height - len(g)), (0, 0), (0, 0)), constant_values=1.0) for g in groups[:-1]], 1
    )


def chain_grid(states: Tensor, shape: ImageShape, steps: Sequence[int], title: str) -> Figure:
    """The sampling process (Fig. 2): states (S, C, N), a row per chain and a column per kept step."""
    n_states, n_chains, _ = states.shape
    array = tile(states.transpose(0, 1).reshape(n_states * n_chains, -1), shape, n_states)
    figure = whole_sheet(array, title, width=0.6 * n_states + 0.5, room=0.8)
    axes = figure.axes[0]
    axes.set_axis_on()
    cell = shape[2] + 1
    axes.set_xticks([cell * k + cell / 2 for k in range(n_states)], [str(s) for s in steps], fontsize=7)
    axes.set_yticks([])
    axes.set_xlabel("step of the chain", fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def save_animation(path: Path, states: Tensor, shape: ImageShape, *, columns: int = 8, width: int = 640) -> None:
    """The sampling process as a GIF about ``width`` pixels wide: a frame per state of (S, C, N), the last one held."""
    from PIL import Image

    frames = []
    for state in states:
        array = (tile(state, shape, columns) * 255).round().astype(np.uint8)
        scale = max(1, round(width / array.shape[1]))
        frames.append(Image.fromarray(array).resize((array.shape[1] * scale, array.shape[0] * scale), 0))
    durations = [90] * (len(frames) - 1) + [2000]
    frames[0].save(path, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)


def filters(W: Tensor, shape: ImageShape, count: int = 100) -> Figure:
    """Weights of hidden units (Fig. 3b), with their scale and sign."""
    title = fill(f"Filters: {which_filters(W, count)}", 66)
    figure = whole_sheet(filter_sheet(W, shape, count), title, room=0.5 if "\n" in title else 0.25)
    if shape[0] == 1:
        scale = ScalarMappable(Normalize(-1, 1), FILTERS)
        bar = figure.colorbar(scale, ax=figure.axes[0], orientation="horizontal", shrink=0.5, aspect=40, pad=0.01)
        bar.set_label(f"weight, as a share of the filter's largest ({_strengths(W, count)})", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    else:
        figure.axes[0].set_title(f"{title};\neach scaled by its largest weight ({_strengths(W, count)})", fontsize=9)
    return figure


def filter_sheet(W: Tensor, shape: ImageShape, count: int) -> np.ndarray:
    """Columns of W (N, M) as images, each divided by its largest weight: ``count`` of them as in `which_filters`.

    Of one channel, positive weights are red and negative ones blue; colours keep theirs, with 0 in mid-grey.
    """
    columns = _some(W, count).T
    scaled = columns / columns.abs().amax(1, keepdim=True).clamp_min(1e-12)
    across = round(len(columns) ** 0.5)
    if shape[0] > 1:
        return tile(0.5 + 0.5 * scaled, shape, across)
    coloured = torch.from_numpy(colormaps[FILTERS](0.5 + 0.5 * scaled.numpy())[..., :3])  # (n, H · W, 3)
    return tile(coloured.transpose(1, 2).flatten(1), (3, *shape[1:]), across)


def which_filters(W: Tensor, count: int = 100) -> str:
    """The units of a sheet, in words.

    They are evenly spaced by norm: those of largest norm alone would show the narrowest filters, and no others.
    """
    M, strong = W.shape[1], len(_by_norm(W))
    shown = min(count, strong)
    if strong < M:
        some = "" if shown == strong else f"; {shown:,} of these are shown"
        return f"{strong:,} of {M:,} hidden units, those with a tenth of the largest norm or more{some}, by norm"
    which = f"all {M:,}" if shown == M else f"{shown:,} of {M:,}"
    return f"{which} hidden units, by the norm of their weights"


def _some(W: Tensor, count: int) -> Tensor:
    order = _by_norm(W)
    shown = min(count, len(order))
    return W.detach().float().cpu()[:, order[torch.arange(shown) * len(order) // shown]]


def _by_norm(W: Tensor) -> Tensor:
    """Units from the largest norm of weights to a tenth of it: weaker ones hardly matter."""
    norms = W.detach().float().cpu().norm(dim=0)
    order = norms.argsort(descending=True)
    return order[~(norms < WEAK * norms.max())[order]]  # all, where some are no numbers


def _strengths(W: Tensor, count: int) -> str:
    largest = _some(W, count).abs().amax(0)
    return f"{float(largest.min()):.2g} to {float(largest.max()):.2g}"
