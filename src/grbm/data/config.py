"""Name of a data set, the making of its rows, and their place."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from grbm.core.errors import UserError

Mode = Literal["none", "pixel", "channel", "scalar", "whiten"]
PLANE = ("isotropic", "anisotropic")  # mixtures whose density is known
DatasetName = Literal["isotropic", "anisotropic", "digits", "mnist", "fashion-mnist", "celeba", "array", "images"]


@dataclass(frozen=True)
class DatasetConfig:
    """Data set to learn from."""

    name: DatasetName = "digits"
    """Two 2-D mixtures, four image sets, or your own table or pictures (with --data)."""
    standardise: Mode = "pixel"
    """Subtract the mean and divide by the standard deviation. pixel: of each column or pixel. channel: of each colour
    channel. scalar: of all numbers. none: neither. whiten: learn in coordinates in which the data and their clusters
    are uncorrelated; for tables of up to some hundred columns, of any units, collinear and constant ones too."""
    censor: str = "none"
    """Limits at which values stop, as pixels at black: such a value says that the latent one lies at it or beyond. auto
    finds them; LOW,HIGH sets them for all columns, as 0, or 0,1; marks are those of a table in text, such as <0.5, and
    the default where there are some. Not with whiten."""
    coarse: Literal["none", "auto"] = "none"
    """Tables: auto learns columns of few different numbers, such as counts and grades, as cells between them; draws are
    then such numbers. Not with limits."""
    bounds: tuple[str, ...] = ()
    """Tables: bounds that all numbers of a column lie strictly between, as NAME=LOW,HIGH, or LOW,HIGH for all columns;
    either end may be empty: 'weight=0,' is of positive numbers. auto finds those of skewed positive columns, shares
    and percentages. Draws keep them."""
    n_points: int = 1000
    """Mixtures only: training points."""
    held_out: float = 0.1
    """Digits, arrays, pictures and CelebA: share of rows kept from training for evaluation. The others have test
    data."""
    subset: int | None = None
    """Arrays and pictures, CelebA: a random choice of so many rows, by seed, before any are held out."""
    key: str | None = None
    """Name of the array in a .npz archive, or of the column in a Hugging Face data set."""
    columns: tuple[str, ...] = ()
    """Tables: columns to learn, by name, or by number from 0; by default all that hold numbers."""
    drop: tuple[str, ...] = ()
    """Tables: columns to leave out."""
    na: tuple[str, ...] = ()
    """Tables in text: other texts that mean that a value is missing, such as ?."""
    decimal: Literal[".", ","] | None = None
    """Tables in text: the decimal mark; by default as the file shows."""
    header: bool | None = None
    """Tables in text: whether the first line names the columns; by default as the file shows."""
    weights: str | None = None
    """Tables: column of weights of the rows, by name or number; 2 is a row twice, and 0 none. It is not learned."""
    index: str | None = None
    """Tables: column that names the rows, of text or numbers. It is not learned, and stands beside their scores."""
    crop: int | None = None
    """Pictures: side of the square to cut from their centre."""
    size: int | None = None
    """Pictures: bring them to squares of this side."""
    grey: bool = False
    """Pictures: one channel in place of three."""
    white: float | None = None
    """Pictures of more than 8 bits: the number that is white; by default the largest of 8, 10, 12 ... bits that hold
    all numbers of the collection, or 1 where none is above it."""


class Source(NamedTuple):
    """Where data lie, and how much of them may be held in memory: none of it changes what is learned from them."""

    folder: Path = Path("data")  # of MNIST, Fashion-MNIST and CelebA
    path: Path | None = None  # of the user's own array or pictures
    memory: int = 256  # megabytes, in float32


def read_limits(censor: str) -> tuple[float, float]:
    """Read "LOW,HIGH"; an empty one is infinite. Raises UserError."""
    found = read_pair(censor)
    if found is None:
        raise UserError(f"Limits are none, auto, marks or LOW,HIGH, such as 0, or 0,1; got {censor!r}.")
    return found


def read_pair(text: str) -> tuple[float, float] | None:
    """Read "LOW,HIGH"; an empty one is infinite. None where it is no such text; UserError where LOW is not below."""
    try:
        low, high = (float(end) if end.strip() else None for end in text.split(","))
    except ValueError:
        return None
    found = -math.inf if low is None else low, math.inf if high is None else high
    if not found[0] < found[1]:
        raise UserError(f"The lower end must be below the higher one, got {text!r}.")
    return found
