"""Folders of pictures, and Hugging Face data sets on disk. Pictures are decoded once, into a cached array of bytes."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from grbm.data.arrays import open_array
from grbm.data.rows import Rows
from grbm.errors import UserError
from grbm.files import cache_folder, replacing

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
ImageShape = tuple[int, int, int]


class Look(NamedTuple):
    """How pictures become rows: an optional square from the centre, an optional square size, colour or grey."""

    crop: int | None = None
    size: int | None = None
    grey: bool = False


def is_arrow(folder: Path) -> bool:
    """Whether a folder was written by ``datasets.Dataset.save_to_disk``."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def open_pictures(folder: Path, look: Look, key: str | None = None) -> tuple[Rows, ImageShape]:
    """Pictures of a folder and the folders in it, or of a Hugging Face data set, with values in [0, 1].

    Returns rows (n, channels · height · width) in channel-major order, and their image shape.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give --data a folder of pictures.")
    if is_arrow(folder):
        table, column = _load_arrow(folder, key)
        if type(table.features[column]).__name__ != "Image":
            raise UserError(
                f"{folder}: {column} holds no pictures; choose with --dataset.key, or train the array preset."
            )
        name = f"{folder.resolve()} {table._fingerprint} {column}"
        return _cached(name, look, lambda: ((str(k), table[k][column]) for k in range(len(table))), len(table), folder)
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if len(paths) < 2:
        raise UserError(f"{folder} holds {len(paths)} pictures ({', '.join(SUFFIXES)}); training needs at least 2.")
    stamps = [(str(p.relative_to(folder)), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
    name = f"{folder.resolve()} {json.dumps(stamps)}"
    return _cached(name, look, lambda: ((str(path), _open(path)) for path in paths), len(paths), folder)


def open_arrow(folder: Path, key: str | None = None) -> Rows:
    """A column of numbers, or of lists of numbers of one length, of a Hugging Face data set on disk."""
    table, column = _load_arrow(folder, key)
    rows = table.with_format("numpy", columns=[column])
    first = np.asarray(rows[0][column])
    if first.dtype.kind not in "fiub":
        raise UserError(f"{folder}: the column {column} holds no numbers; choose with --dataset.key.")

    def read(index: np.ndarray) -> np.ndarray:
        read_rows = np.asarray(rows[index][column])
        if read_rows.dtype.kind not in "fiub":
            raise UserError(
                f"{folder}: the rows of {column} differ in length; they must all have {first.size} numbers."
            )
        return read_rows.reshape(len(index), first.size)

    if len(rows) < 2:
        raise UserError(f"{folder} holds {len(rows)} rows; training needs at least 2.")
    return Rows(read, torch.arange(len(rows)), first.size)


def _load_arrow(folder: Path, key: str | None) -> tuple[Any, str]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{folder} is a Hugging Face data set, which needs pip install datasets (in a clone: uv run --extra "
            f"huggingface)."
        ) from error
    try:
        table = datasets.load_from_disk(str(folder))
    except Exception as error:  # whatever the library raises, it is about this folder
        raise UserError(f"{folder} is not a readable Hugging Face data set ({error}); save it again.") from error
    if isinstance(table, datasets.DatasetDict):
        raise UserError(f"{folder} holds several data sets; give --data one of its folders: {', '.join(table)}.")
    if key is None and len(table.column_names) != 1:
        raise UserError(f"{folder} has several columns; name one with --dataset.key: {', '.join(table.column_names)}.")
    column = key or table.column_names[0]
    if column not in table.column_names:
        raise UserError(f"{folder} has no column {column!r}; choose one of {', '.join(table.column_names)}.")
    return table, column


def _open(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(path)
        picture.load()
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not a readable picture ({error}); remove or replace it.") from error
    return picture


def _cached(
    name: str, look: Look, pictures: Callable[[], Iterator[tuple[str, Any]]], count: int, where: Path
) -> tuple[Rows, ImageShape]:
    """Decode all pictures into one array of bytes in the cache, unless it is there; then map it."""
    digest = hashlib.sha256(f"{name} {look}".encode()).hexdigest()[:24]
    path = cache_folder() / f"{digest}.npy"
    if not path.is_file():
        with replacing(path) as temporary:
            array: Any = None
            for k, (title, picture) in enumerate(pictures()):
                pixels = _pixels(title, picture, look)
                if array is None:
                    array = np.lib.format.open_memmap(temporary, "w+", np.uint8, (count, *pixels.shape))
                if pixels.shape != array.shape[1:]:
                    raise UserError(
                        f"{title} is {pixels.shape[2]} x {pixels.shape[1]} pixels, the first picture in {where} "
                        f"{array.shape[3]} x {array.shape[2]}; bring them to one size with --dataset.size."
                    )
                array[k] = pixels
            if array is not None:
                array.flush()
    rows = open_array(path)
    shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    scaled = Rows(lambda index: rows.read(index) / np.float32(255), rows.index, rows.n_columns)
    return scaled, (int(shape[1]), int(shape[2]), int(shape[3]))


def _pixels(title: str, picture: Any, look: Look) -> np.ndarray:
    """One picture as bytes (channels, height, width)."""
    from PIL import Image

    if picture.mode.startswith("I"):  # 16 bits, which PIL would cut off at 255
        picture = Image.fromarray((np.asarray(picture).astype(np.int64) // 257).clip(0, 255).astype(np.uint8))
    picture = picture.convert("L" if look.grey else "RGB")
    if look.crop is not None:
        if look.crop > min(picture.size):
            raise UserError(
                f"{title} is {picture.width} x {picture.height} pixels, smaller than --dataset.crop {look.crop}."
            )
        left, top = (picture.width - look.crop) // 2, (picture.height - look.crop) // 2
        picture = picture.crop((left, top, left + look.crop, top + look.crop))
    if look.size is not None:
        shorter = min(picture.size)
        left, top = (picture.width - shorter) // 2, (picture.height - shorter) // 2
        square = (left, top, left + shorter, top + shorter)
        picture = picture.resize((look.size, look.size), resample=2, box=square)  # bilinear
    pixels = np.asarray(picture, np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
