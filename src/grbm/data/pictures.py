"""Folders and zip files of pictures, and Hugging Face data sets on disk. Pictures are decoded once, into a cache."""

import hashlib
import io
import json
import math
import os
import shutil
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from grbm.data.arrays import UNREADABLE, open_array
from grbm.data.tables import StoredTable
from grbm.errors import UserError, unreadable
from grbm.files import cache_folder, keeping, kept

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
ImageShape = tuple[int, int, int]
TOGETHER = 2000  # pictures that are decoded before the next are begun
IN_MEMORY = 256 << 20  # and at most so many bytes of them
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # others, such as EPS, would start other programs
MOST_PIXELS = 80_000_000  # of a picture: a page at 800 dots an inch
LARGEST_FILE = 256 << 20  # bytes of a picture in a zip file


class Look(NamedTuple):
    """How pictures become rows: an optional square from the centre, an optional square size, colour or grey."""

    crop: int | float | None = None  # a float is a share of the width
    size: int | None = None
    grey: bool = False


def is_arrow(folder: Path) -> bool:
    """Whether a folder was written by ``datasets.Dataset.save_to_disk``."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def open_pictures(folder: Path, look: Look, key: str | None = None) -> tuple[StoredTable, ImageShape]:
    """One picture, those of a folder and the folders in it, a zip file, or a Hugging Face data set, in [0, 1].

    Returns rows (n, channels · height · width) in channel-major order, and their image shape.
    """
    if folder.is_file() and (zipfile.is_zipfile(folder) or folder.suffix.lower() == ".zip"):
        return _open_zip(folder, look)
    if folder.is_file() and folder.suffix.lower() in SUFFIXES:
        paths = [folder]
    elif not folder.is_dir():
        raise UserError(f"{folder} is neither a folder nor a zip file; give --data one of pictures.")
    elif is_arrow(folder):
        table, column = _load_arrow(folder, key)
        if type(table.features[column]).__name__ != "Image":
            raise UserError(
                f"{folder}: {column} holds no pictures; choose with --dataset.key, or train the array preset."
            )
        name = f"{folder.resolve()} {table._fingerprint} {column}"
        return _cached(name, look, len(table), lambda k: _stored(table, k, column, folder), folder)
    else:
        # files alone: a pipe would never end
        paths = sorted(path for path in _files(folder) if path.suffix.lower() in SUFFIXES and path.is_file())
    _enough(len(paths), folder)
    stamps = [(str(path.relative_to(folder)), *_stamp(path)) for path in paths]
    name = f"{folder.resolve()} {json.dumps(stamps)}"
    return _cached(name, look, len(paths), lambda k: (str(paths[k]), _open(paths[k], str(paths[k]))), folder)


def _files(folder: Path) -> Iterator[Path]:
    """Every file in a folder and the folders in it; raises UserError for one that may not be looked into."""

    def refuse(error: OSError) -> None:
        raise unreadable(error.filename, error) from error

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place) / name for name in names)


def _open_zip(path: Path, look: Look) -> tuple[StoredTable, ImageShape]:
    """The pictures in a zip file, by name; nothing is unpacked to the disk."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = sorted(
                (info for info in archive.infolist() if Path(info.filename).suffix.lower() in SUFFIXES),
                key=lambda info: info.filename,
            )
    except PermissionError as error:
        raise unreadable(path, error) from error
    except UNREADABLE as error:
        raise UserError(f"{path} is not a whole zip file ({error}); fetch it again.") from error
    _enough(len(infos), path)
    held = threading.local()  # an archive for each thread: they would move each other's place in the file

    def picture(k: int) -> tuple[str, Any]:
        title = f"{infos[k].filename} in {path}"
        if infos[k].file_size > LARGEST_FILE:
            raise UserError(f"{title} unpacks to {infos[k].file_size / 1e6:,.0f} MB, too large for a picture.")
        try:
            if not hasattr(held, "archive"):
                held.archive = zipfile.ZipFile(path)
            content = held.archive.read(infos[k])
        except UNREADABLE as error:
            raise UserError(f"{title} is damaged or cannot be unpacked ({error}); fetch the file again.") from error
        return title, _open(io.BytesIO(content), title)

    stamps = [_stamp(path), *((info.filename, info.file_size, info.CRC) for info in infos)]
    return _cached(json.dumps(stamps), look, len(infos), picture, path)


def _stamp(path: Path) -> tuple[int, int, int]:
    """What changes when a file does: its size and its times, of which the last cannot be set back."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _stored(table: Any, k: int, column: str, folder: Path) -> tuple[str, Any]:
    """Picture ``k`` of a Hugging Face data set, with its title."""
    try:
        return f"picture {k} of {folder}", table[k][column]
    except Exception as error:  # whatever the libraries raise, it is about this picture
        raise UserError(f"Picture {k} of {folder} cannot be read ({error}); save the data set again.") from error


def _enough(count: int, where: Path) -> None:
    if count == 0:
        raise UserError(f"{where} holds no pictures ({', '.join(SUFFIXES)}).")


def open_arrow(folder: Path, key: str | None = None) -> StoredTable:
    """A column of numbers, or of lists of numbers of one length, of a Hugging Face data set on disk."""
    table, column = _load_arrow(folder, key)
    rows = table.with_format("numpy", columns=[column])
    first = np.asarray(rows[0][column])
    if first.dtype.kind not in "fiub":
        raise UserError(f"{folder}: the column {column} holds no numbers; choose with --dataset.key.")

    def read(index: np.ndarray) -> np.ndarray:
        try:
            read_rows = np.asarray(rows[index][column])
        except Exception as error:  # whatever the library raises, it is about this folder
            raise UserError(f"{folder} could not be read ({error}); save it again.") from error
        if read_rows.dtype.kind not in "fiub":
            raise UserError(
                f"{folder}: the rows of {column} differ in length; they must all have {first.size} numbers."
            )
        return read_rows.reshape(len(index), first.size)

    return StoredTable(read, torch.arange(len(rows)), first.size)


def _load_arrow(folder: Path, key: str | None) -> tuple[Any, str]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{folder} is a Hugging Face data set, which needs pip install datasets (in a clone: uv run --extra "
            f"datasets)."
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


def _open(source: Path | io.BytesIO, title: str) -> Any:
    """A picture, decoded; refuses one that is not whole, or too large to be held by many threads at once."""
    from PIL import Image

    try:
        picture = Image.open(source, formats=FORMATS)
        if math.prod(picture.size) <= MOST_PIXELS:
            picture.load()
    except PermissionError as error:
        raise unreadable(title, error) from error
    except Exception as error:  # each format raises its own
        raise UserError(f"{title} is not a readable picture ({error}); remove or replace it.") from error
    if math.prod(picture.size) > MOST_PIXELS:
        width, height = picture.size
        raise UserError(f"{title} has {width:,} x {height:,} pixels; pictures of up to {MOST_PIXELS:,} are taken.")
    return picture


def _cached(
    name: str, look: Look, count: int, picture: Callable[[int], tuple[str, Any]], where: Path
) -> tuple[StoredTable, ImageShape]:
    """Decode all pictures, on all cores, into one array of bytes in the cache, unless it is there; then map it."""
    digest = hashlib.sha256(f"{name} {look}".encode()).hexdigest()[:24]
    if (path := kept(cache_folder(), digest, ".npy")) is None:
        with keeping(cache_folder(), digest, ".npy") as temporary:
            _decode(temporary, look, count, picture, where)
        path = kept(cache_folder(), digest, ".npy")
        if path is None:
            raise UserError(f"The decoded pictures of {where} did not stay in {cache_folder()}; set GRBM_CACHE_DIR.")
    rows = open_array(path)
    shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    scaled = StoredTable(lambda index: rows.read(index) / np.float32(255), rows.index, rows.n_columns)
    return scaled, (int(shape[1]), int(shape[2]), int(shape[3]))


def _decode(target: Path, look: Look, count: int, picture: Callable[[int], tuple[str, Any]], where: Path) -> None:
    """Write all pictures to ``target`` as one array of bytes (count, channels, height, width)."""
    first = _pixels(*picture(0), look)[1]
    free = shutil.disk_usage(target.parent).free
    if count * first.nbytes > free:
        raise UserError(
            f"The {count:,} pictures of {where} need {count * first.nbytes / 1e6:,.0f} MB in {cache_folder()}, "
            f"where {free / 1e6:,.0f} are free; choose a smaller --dataset.size, or set GRBM_CACHE_DIR."
        )
    together = max(1, min(TOGETHER, IN_MEMORY // first.nbytes))  # so that not all wait in memory to be written
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, *first.shape)}

    def decoded(k: int) -> tuple[str, tuple[int, ...], np.ndarray | None]:
        title, pixels = _pixels(*picture(k), look)
        return title, pixels.shape, pixels if pixels.shape == first.shape else None  # larger ones are not kept

    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1) as pool, target.open("wb") as file:
        warnings.simplefilter("ignore")  # PIL's, of pictures that `_open` refuses
        np.lib.format.write_array_header_1_0(file, header)
        for begin in range(0, count, together):
            numbers = range(begin, min(begin + together, count))
            waiting = [pool.submit(decoded, k) for k in numbers]
            try:
                for future in waiting:
                    title, shape, pixels = future.result()
                    if pixels is None:
                        raise UserError(
                            f"{title} is {shape[2]} x {shape[1]} pixels, the first picture in {where} "
                            f"{first.shape[2]} x {first.shape[1]}; bring them to one size with --dataset.size."
                        )
                    file.write(pixels.tobytes())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            if count > TOGETHER and numbers.stop // TOGETHER > begin // TOGETHER:
                print(f"  decoded {numbers.stop:,} of {count:,} pictures", file=sys.stderr, flush=True)


def _pixels(title: str, picture: Any, look: Look) -> tuple[str, np.ndarray]:
    """One picture as bytes (channels, height, width), with its title."""
    from PIL import Image

    if picture.mode == "F":
        raise UserError(f"{title} holds floating-point numbers; save them with numpy.save and train the array preset.")
    if picture.mode.startswith("I"):  # 16 bits, which PIL would cut off at 255
        picture = Image.fromarray((np.asarray(picture).astype(np.int64) // 257).clip(0, 255).astype(np.uint8))
    picture = picture.convert("L" if look.grey else "RGB")
    crop = round(look.crop * picture.width) if isinstance(look.crop, float) else look.crop
    if crop is not None:
        if crop > min(picture.size):
            raise UserError(
                f"{title} is {picture.width} x {picture.height} pixels, smaller than --dataset.crop {crop}."
            )
        left, top = (picture.width - crop) // 2, (picture.height - crop) // 2
        picture = picture.crop((left, top, left + crop, top + crop))
    if look.size is not None:
        shorter = min(picture.size)
        left, top = (picture.width - shorter) // 2, (picture.height - shorter) // 2
        square = (left, top, left + shorter, top + shorter)
        picture = picture.resize((look.size, look.size), resample=2, box=square)  # bilinear
    pixels = np.asarray(picture, np.uint8)
    return title, pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
