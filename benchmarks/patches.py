"""Patches of photographs by two protocols, whitened, with what takes them back to pixels."""

import io
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

Protocol = Literal["14x14", "63"]
SIDES: dict[Protocol, int] = {"14x14": 14, "63": 8}


class Patches(NamedTuple):
    """Whitened patches (n, N), float64, the photograph that each of the test is from, and the way back.

    Rows are (pixels without their mean) @ ``to_white``, and but for units without contrast @ ``to_pixels`` leads back.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    test_photograph: np.ndarray
    to_white: np.ndarray  # (pixels, N)
    to_pixels: np.ndarray  # (N, pixels)
    first: int = 1  # unit that has contrast, as all after it have
    log_det: float = 0.0  # log-density of pixels less that of whitened rows

    @property
    def n_units(self) -> int:
        """N."""
        return self.train.shape[1]

    @property
    def contrast(self) -> np.ndarray:
        """The units that have contrast, of the training rows (n, D)."""
        return self.train[:, self.first :]


def load(path: Path, n_train: int, n_test: int, seed: int = 0, protocol: Protocol = "14x14") -> Patches:
    """Patches at random places: 70 % of the photographs for training, 10 % for validation, 20 % for the test."""
    side = SIDES[protocol]
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".png")))
        photographs = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("L")) for name in names]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(photographs))
    first, second = round(0.7 * len(order)), round(0.8 * len(order))

    def cut(which: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = which[rng.integers(len(which), size=n)]
        rows = np.empty((n, side * side))
        for row, number in zip(rows, chosen, strict=True):
            image = photographs[number]
            top, left = (rng.integers(size - side + 1) for size in image.shape)
            row[:] = image[top : top + side, left : left + side].reshape(-1)
        rows += rng.random(rows.shape)
        return rows - rows.mean(1, keepdims=True), chosen

    parts = [cut(order[:first], n_train), cut(order[first:second], n_test // 2), cut(order[second:], n_test)]
    pixels = [x for x, _ in parts]
    make = _reflected if protocol == "14x14" else _without_last
    return make(pixels, parts[2][1], rng)


def _reflected(pixels: list[np.ndarray], photograph: np.ndarray, rng: np.random.Generator) -> Patches:
    """ZCA, the removed direction made the first unit by itself, and filled with unit normal noise."""
    N = pixels[0].shape[1]
    values, vectors = np.linalg.eigh(np.cov(pixels[0].T, bias=True))
    rest, roots = vectors[:, 1:], np.sqrt(values[1:])  # the first is the removed direction
    mirror = np.full(N, N**-0.5) - np.eye(N)[0]  # of the Householder reflection that takes the removed direction to e_0
    reflect = np.eye(N) - 2 * np.outer(mirror, mirror) / (mirror @ mirror)
    to_white, to_pixels = (rest / roots) @ rest.T @ reflect, reflect @ (rest * roots) @ rest.T
    white = [x @ to_white for x in pixels]
    for x in white:
        x[:, 0] = rng.standard_normal(len(x))
    return Patches(*white, photograph, to_white, to_pixels)  # type: ignore[arg-type]


def _without_last(pixels: list[np.ndarray], photograph: np.ndarray, rng: np.random.Generator) -> Patches:
    """The literature's 63 dimensions: grey levels from 0 to 1, without the last pixel, which follows from the others.

    Zoran & Weiss 2011; Uria, Murray & Larochelle 2013. Log-densities are of these 63 numbers.
    """
    del rng
    scaled = [x[:, :-1] / 256 for x in pixels]
    values, vectors = np.linalg.eigh(np.cov(scaled[0].T, bias=True))
    zca, back = (vectors * values**power @ vectors.T for power in (-0.5, 0.5))
    rows = [x @ zca for x in scaled]
    n, last = scaled[0].shape[1], -np.ones((scaled[0].shape[1], 1))  # the last pixel is minus the sum of the others
    to_white = np.vstack([zca, np.zeros((1, n))]) / 256
    to_pixels = back @ np.hstack([np.eye(n), last]) * 256
    log_det = -0.5 * float(np.log(values).sum())
    return Patches(*rows, photograph, to_white, to_pixels, 0, log_det)  # type: ignore[arg-type]
