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
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from grbm.core.errors import UserError, needed_by, unreadable
from grbm.core.files import cache_folder, keeping, kept
from grbm.data.arrays import UNREADABLE, open_array
from grbm.data.kinds import SUFFIXES, is_arrow
from grbm.data.tables import StoredTable

NOT_DATA = ("__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN")  # folders that systems make beside pictures
ImageShape = tuple[int, int, int]
Encoded = Path | io.BytesIO  # a file of a picture, or its content
T = TypeVar("T")
TOGETHER = 2000  # pictures that are decoded before the next are begun
IN_MEMORY = 256 << 20  # and at most so many bytes of them
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # others, such as EPS, would start other programs
MOST_PIXELS = 80_000_000  # of a picture: a page at 800 dots an inch
LARGEST_FILE = 256 << 20  # bytes of a picture in a zip file
DARKEST = 64  # 16-bit colours whose upper bytes all stay below this are of fewer bits, which Pillow would cut off
DECODER = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()  # the cache holds what this very code decoded


class Look(NamedTuple):
    """How pictures become rows: an optional square from the centre, an optional square size, colour or grey."""

    crop: int | float | None = None  # a float is a share of the width
    size: int | None = None
    grey: bool = False
    white: float | None = None  # in pictures of more than 8 bits; None: as `Found.white` says


class Found(NamedTuple):
    """Number of pictures of a collection, and of those that are more than one frame of opaque 8-bit colours."""

    n: int = 0
    deep: int = 0  # of more than 8 bits: 16-bit grey, 32-bit integers, floating-point numbers
    fractions: int = 0  # of floating-point numbers
    transparent: int = 0  # with transparency
    several: int = 0  # of several frames or pages
    later: int = 0  # frames after the first, in all of them
    cut: int = 0  # colours of 16 bits, of which Pillow reads the upper 8
    largest: float = 0.0  # number in the deep ones
    brightest: int = 0  # upper byte in those that are cut

    @property
    def white(self) -> float | None:
        """The number that is white in every picture of more than 8 bits; None where there is none.

        Integers: 1, or the largest number of the fewest of 8, 10, 12 ... bits that hold all of them, so that two halves
        of a collection are scaled alike. Floating-point numbers: 1, or the largest where that is above 1.
        """
        if not self.deep:
            return None
        if self.largest <= 1 or self.fractions:
            return max(1.0, self.largest)
        return float(next(2**bits - 1 for bits in range(8, 66, 2) if 2**bits > self.largest))


class Pictures(NamedTuple):
    """A collection of pictures as rows."""

    rows: StoredTable  # (n, channels · height · width) in [0, 1], in channel-major order
    shape: ImageShape
    found: Found
    white: float | None  # in pictures of more than 8 bits; None where there is none

    def describe(self, where: object, note: Callable[[str], None], advice: str = "") -> None:
        """Say by ``note`` what was made of pictures that hold more than 8-bit colours; ``advice`` ends the first."""
        found, of_all = self.found, f"of {self.found.n:,} pictures in {where}"
        if self.white is not None:
            above = f", and all above is white too, up to {found.largest:,.10g}" if found.largest > self.white else ""
            note(
                f"{found.deep:,} {of_all} are stored in more than 8 bits: {self.white:,.10g} is white in all of "
                f"them{above}, and 256 levels are kept{advice}."
            )
        if found.cut:
            note(f"{found.cut:,} {of_all} have colours of 16 bits, of which the upper 8 are kept.")
        if found.transparent:
            note(f"{found.transparent:,} {of_all} have transparency; they are laid on white.")
        if found.several:
            note(
                f"{found.several:,} {of_all} have several frames or pages; the first of each is taken, and "
                f"{found.later:,} are left out."
            )


def open_pictures(folder: Path, look: Look, key: str | None = None) -> Pictures:
    """One picture, those of a folder and the folders in it, a zip file, or a Hugging Face data set, in [0, 1].

    Names that begin with a dot, and folders that systems make beside pictures (`NOT_DATA`), are passed over. Pictures
    are turned as their EXIF orientation says, and laid on white where they are transparent; numbers of more than 8 bits
    are divided by one number for the whole collection, ``look.white`` or `Found.white`.
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
            raise UserError(f"{folder}: {column} holds no pictures; choose with --key, or train the array preset.")
        name = f"{folder.resolve()} {table._fingerprint} {column}"
        table = table.cast_column(column, type(table.features[column])(decode=False))  # as files are
        return _cached(name, look, len(table), lambda k: _stored(table, k, column, folder), folder)
    else:
        # files alone: a pipe would never end
        paths = sorted(path for path in _files(folder) if _is_picture(path.relative_to(folder)) and path.is_file())
    stamps = [(str(path.relative_to(folder)), *_stamp(path)) for path in paths]
    name = f"{folder.resolve()} {json.dumps(stamps)}"
    return _cached(name, look, len(paths), lambda k: (str(paths[k]), paths[k]), folder)


def _files(folder: Path) -> Iterator[Path]:
    """Every file in a folder and the folders in it; raises UserError for one that may not be looked into."""

    def refuse(error: OSError) -> None:
        raise unreadable(error.filename, error) from error

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place) / name for name in names)


def _is_picture(path: PurePath) -> bool:
    """Whether a file of this path, relative to the collection, is one of its pictures by its names."""
    hidden = any(part in NOT_DATA or (part.startswith(".") and part not in (".", "..")) for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def _open_zip(path: Path, look: Look) -> Pictures:
    """The pictures in a zip file, by name; nothing is unpacked to the disk."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = sorted(
                (info for info in archive.infolist() if not info.is_dir() and _is_picture(PurePath(info.filename))),
                key=lambda info: info.filename,
            )
    except PermissionError as error:
        raise unreadable(path, error) from error
    except UNREADABLE as error:
        raise UserError(f"{path} is not a whole zip file ({error}); fetch it again.") from error
    held = threading.local()  # an archive for each thread: they would move each other's place in the file

    def picture(k: int) -> tuple[str, Encoded]:
        title = f"{infos[k].filename} in {path}"
        if infos[k].file_size > LARGEST_FILE:
            raise UserError(f"{title} unpacks to {infos[k].file_size / 1e6:,.0f} MB, too large for a picture.")
        try:
            if not hasattr(held, "archive"):
                held.archive = zipfile.ZipFile(path)
            content = held.archive.read(infos[k])
        except UNREADABLE as error:
            raise UserError(f"{title} is damaged or cannot be unpacked ({error}); fetch the file again.") from error
        return title, io.BytesIO(content)

    stamps = [_stamp(path), *((info.filename, info.file_size, info.CRC) for info in infos)]
    return _cached(json.dumps(stamps), look, len(infos), picture, path)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Signs of a change of a file: its size and its times, of which the last cannot be set back."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _stored(table: Any, k: int, column: str, folder: Path) -> tuple[str, Encoded]:
    """Picture ``k`` of a Hugging Face data set, with its title."""
    try:
        held = table[k][column]  # its bytes, or where they are
        return f"picture {k} of {folder}", Path(held["path"]) if held["bytes"] is None else io.BytesIO(held["bytes"])
    except Exception as error:  # whatever the libraries raise, it is about this picture
        raise UserError(f"Picture {k} of {folder} cannot be read ({error}); save the data set again.") from error


def open_arrow(folder: Path, key: str | None = None) -> StoredTable:
    """A column of numbers, or of lists of numbers of one length, of a Hugging Face data set on disk."""
    table, column = _load_arrow(folder, key)
    rows = table.with_format("numpy", columns=[column])
    first = np.asarray(rows[0][column])
    if first.dtype.kind not in "fiub":
        raise UserError(f"{folder}: the column {column} holds no numbers; choose with --key.")

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
    with needed_by(f"{folder} is a Hugging Face data set, which", "datasets", "datasets"):
        import datasets
    try:
        table = datasets.load_from_disk(str(folder))
    except Exception as error:  # whatever the library raises, it is about this folder
        raise UserError(f"{folder} is not a readable Hugging Face data set ({error}); save it again.") from error
    if isinstance(table, datasets.DatasetDict):
        raise UserError(f"{folder} holds several data sets; give --data one of its folders: {', '.join(table)}.")
    if key is None and len(table.column_names) != 1:
        raise UserError(f"{folder} has several columns; name one with --key: {', '.join(table.column_names)}.")
    column = key or table.column_names[0]
    if column not in table.column_names:
        raise UserError(f"{folder} has no column {column!r}; choose one of {', '.join(table.column_names)}.")
    return table, column


@contextmanager
def _opened(title: str, source: Encoded) -> Iterator[Any]:
    """A picture whose header is read. Whatever goes wrong with it, here or in the block, becomes a sentence about it.

    Refuses one that is too large to be held by many threads at once.
    """
    from PIL import Image

    try:
        # not by its name: Pillow would map the file, and has the pixels of a turned TIFF picture wrong then
        with source.open("rb") if isinstance(source, Path) else source as file:
            picture = Image.open(file, formats=FORMATS)
            if math.prod(picture.size) > MOST_PIXELS:
                size = f"{picture.width:,} x {picture.height:,}"
                raise UserError(f"{title} has {size} pixels; pictures of up to {MOST_PIXELS:,} are taken.")
            yield picture
    except UserError:
        raise
    except PermissionError as error:
        raise unreadable(title, error) from error
    except Exception as error:  # each format raises its own
        raise UserError(f"{title} is not a readable picture ({error}); remove or replace it.") from error


def _is_deep(picture: Any) -> bool:
    return picture.mode == "F" or picture.mode.startswith("I")


def _found(title: str, source: Encoded) -> Found:
    """Contents of a picture, by its header; the numbers of one of more than 8 bits are read."""
    with _opened(title, source) as picture:
        later = getattr(picture, "n_frames", 1) - 1
        deep, largest, brightest = _is_deep(picture), 0.0, 0
        bits = max(picture.tag_v2.get(258, (8,))) if picture.format == "TIFF" else 8
        cut = not deep and (bits > 8 or (picture.format == "PNG" and ";16" in str(picture.tile)))
        if cut:
            brightest = max(high for _, high in picture.convert("RGB").getextrema())
        if deep:
            numbers = np.asarray(picture)
            if not (numbers >= 0).all() or not np.isfinite(numbers).all():
                raise UserError(
                    f"{title} holds negative, infinite or NaN numbers; save them with numpy.save and train the "
                    f"array preset."
                )
            largest = float(numbers.max())
        transparent = picture.has_transparency_data
        return Found(1, deep, picture.mode == "F", transparent, later > 0, later, cut, largest, brightest)


def _found_in(count: int, picture: Callable[[int], tuple[str, Encoded]], where: Path) -> Found:
    """Summary of a collection: numbers of pictures by their kind, and the largest size and brightness."""
    *counts, largest, brightest = zip(*_in_order(lambda k: _found(*picture(k)), count, TOGETHER), strict=True)
    found = Found._make([*map(sum, counts), max(largest), max(brightest)])
    if found.cut and found.brightest < DARKEST:
        raise UserError(
            f"The colours in {where} have 16 bits and stay below {(found.brightest + 1) * 256:,} of 65,535, of which "
            f"Pillow reads the upper 8 bits alone; save them with 8 bits a channel."
        )
    return found


def _in_order(work: Callable[[int], T], count: int, together: int) -> Generator[T, None, None]:
    """``work`` of 0 to ``count`` - 1, on all cores, so many at a time; none is begun after one that fails."""
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        warnings.simplefilter("ignore")  # PIL's, of pictures that `_opened` refuses
        for begin in range(0, count, together):
            yield from pool.map(work, range(begin, min(begin + together, count)))


def _kept(name: str, suffix: str, where: Path, make: Callable[[Path], object]) -> Path:
    """Path of a file in the cache, made by ``make`` unless this version of the code has made it for this ``name``."""
    folder, digest = cache_folder(), hashlib.sha256(f"{DECODER} {name}".encode()).hexdigest()[:24]
    if (path := kept(folder, digest, suffix)) is None:
        with keeping(folder, digest, suffix) as temporary:
            make(temporary)
        path = kept(folder, digest, suffix)
        if path is None:
            raise UserError(f"The decoded pictures of {where} did not stay in {cache_folder()}; set GRBM_CACHE_DIR.")
    return path


def _cached(name: str, look: Look, count: int, picture: Callable[[int], tuple[str, Encoded]], where: Path) -> Pictures:
    """Decode all pictures, on all cores, into one array of bytes in the cache, unless it is there; then map it."""
    if count == 0:
        raise UserError(f"{where} holds no pictures ({', '.join(SUFFIXES)}).")
    found_at = _kept(name, ".json", where, lambda to: to.write_text(json.dumps(_found_in(count, picture, where))))
    found = Found(*json.loads(found_at.read_text()))
    look = look._replace(white=(look.white or found.white) if found.deep else None)
    path = _kept(f"{name} {look}", ".npy", where, lambda to: _decode(to, look, count, picture, where))
    rows = open_array(path)
    shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    scaled = StoredTable(lambda index: rows.read(index) / np.float32(255), rows.index, rows.n_columns)
    return Pictures(scaled, (int(shape[1]), int(shape[2]), int(shape[3])), found, look.white)


def _decode(target: Path, look: Look, count: int, picture: Callable[[int], tuple[str, Encoded]], where: Path) -> None:
    """Write all pictures to ``target`` as one array of bytes (count, channels, height, width)."""
    first = _pixels(*picture(0), look)
    free = shutil.disk_usage(target.parent).free
    if count * first.nbytes > free:
        raise UserError(
            f"The {count:,} pictures of {where} need {count * first.nbytes / 1e6:,.0f} MB in {cache_folder()}, "
            f"where {free / 1e6:,.0f} are free; set GRBM_CACHE_DIR, or have smaller ones: grbm train images "
            f"--dataset.size"
        )
    together = max(1, min(TOGETHER, IN_MEMORY // first.nbytes))  # so that not all wait in memory to be written
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, *first.shape)}

    def decoded(k: int) -> tuple[str, tuple[int, ...], bytes]:
        title, source = picture(k)
        pixels = _pixels(title, source, look)
        return title, pixels.shape, pixels.tobytes() if pixels.shape == first.shape else b""  # no larger ones are kept

    with target.open("wb") as file, closing(_in_order(decoded, count, together)) as parts:
        np.lib.format.write_array_header_1_0(file, header)
        for k, (title, shape, content) in enumerate(parts, 1):
            if shape != first.shape:
                raise UserError(
                    f"{title} is {shape[2]} x {shape[1]} pixels, the first picture in {where} "
                    f"{first.shape[2]} x {first.shape[1]}; grbm train images --dataset.size brings them to one size."
                )
            file.write(content)
            if k % TOGETHER == 0 and count > TOGETHER:
                print(f"  decoded {k:,} of {count:,} pictures", file=sys.stderr, flush=True)


def _pixels(title: str, source: Encoded, look: Look) -> np.ndarray:
    """One picture as bytes (channels, height, width)."""
    with _opened(title, source) as opened:
        picture = _flat(opened, look).convert("RGB")
    picture = picture.convert("L") if look.grey else picture
    crop = round(look.crop * picture.width) if isinstance(look.crop, float) else look.crop
    if crop is not None:
        if crop > min(picture.size):
            raise UserError(
                f"{title} is {picture.width} x {picture.height} pixels, smaller than the {crop} of grbm train "
                f"--dataset.crop."
            )
        picture = picture.crop(_square(picture, crop))
    if look.size is not None:
        square = _square(picture, min(picture.size))
        picture = picture.resize((look.size, look.size), resample=2, box=square)  # bilinear
    pixels = np.asarray(picture, np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _square(picture: Any, side: int) -> tuple[int, int, int, int]:
    """The box of a square in the centre."""
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return left, top, left + side, top + side


def _flat(picture: Any, look: Look) -> Any:
    """A picture of opaque 8-bit colours, upright."""
    from PIL import Image, ImageOps

    ImageOps.exif_transpose(picture, in_place=True)
    if _is_deep(picture):  # Pillow would cut its numbers off at 255
        assert look.white is not None
        numbers = np.asarray(picture).astype(np.float64)
        shades = np.rint((numbers / look.white).clip(0, 1) * 255).astype(np.uint8)
        if picture.format == "TIFF" and picture.tag_v2.get(262) == 0:  # 0 is white there, which Pillow heeds in 8 bits
            shades = 255 - shades
        shades[numbers == picture.info.get("transparency", -1)] = 255
        return Image.fromarray(shades)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture
