"""Real-valued arrays from .npy and .npz files, and numbers from text that come by parts: on the disk, by memory map."""

import lzma
import math
import mmap
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Literal, cast

import numpy as np
import torch

from grbm.core.devices import require_memory
from grbm.core.errors import UserError, unreadable
from grbm.core.files import cache_folder
from grbm.data.kinds import as_array
from grbm.data.tables import StoredTable

RESIDENT = 64 << 20  # bytes of a map that may be in memory before they are given back
LARGE_PAGE = 2 << 20
ZIP = b"PK\x03\x04"  # first bytes of an archive
COLUMNS = "columns"  # in an archive: the names of the other array's columns
CHUNK = 1 << 20  # bytes read at a time
IN_MEMORY = 512 << 20  # bytes of numbers from text that are held in memory
BOMB_SIZE, BOMB_RATIO = 256 << 20, 100  # what is larger than the first and unpacks by more than the second is refused
# What reading a damaged archive or header raises.
UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, OverflowError, MemoryError, RuntimeError, RecursionError),
    *(SyntaxError, tokenize.TokenError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)


Order = Literal["C", "F"]


def open_array(path: Path, key: str | None = None) -> StoredTable:
    """An array (n, N), or (n, ...) flattened to it, from a .npy file or from a .npz archive under ``key``.

    Never unpickles. Compressed archives cannot be mapped and are read into memory.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file; give the path of a .npy or .npz file.")
    try:
        with path.open("rb") as file:
            begins = file.read(4)
            if begins not in (b"\x93NUM", ZIP) and path.suffix not in (".npy", ".npz"):
                raise UserError(f"{path} {as_array(path)}")
            array = _from_archive(path, file, key) if begins == ZIP else Mapped(path, file, 0, path.stat().st_size)
    except UserError:
        raise
    except PermissionError as error:
        raise unreadable(path, error) from error
    except UNREADABLE as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{path} is not a whole .npy or .npz file of numbers ({reason}); write it with numpy.save."
        ) from error
    return rows_of(array, str(path))


def column_names(path: Path, n_columns: int) -> tuple[str, ...]:
    """The names that a .npz archive gives its columns, an array of N strings called "columns"; empty where it has none.

    ``numpy.savez("table.npz", x=x, columns=names)`` writes such a one.
    """
    names = _member(path, COLUMNS) if zipfile.is_zipfile(path) else None
    if names is None or names.dtype.kind not in "US":
        return ()
    if names.shape != (n_columns,):
        raise UserError(f"{path} has {names.size} names in its {COLUMNS} and {n_columns} columns; give each a name.")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names)


def read_member(path: Path, key: str) -> np.ndarray:
    """An array of numbers of any shape from a .npz archive, whole and in memory; never unpickles.

    Raises UserError for what is not there, damaged, or no numbers.
    """
    array = _member(path, key)
    if array is None or array.dtype.kind not in "fiub":
        raise UserError(f"{path} holds no array {key!r} of numbers.")
    return array


def _member(path: Path, key: str) -> np.ndarray | None:
    """An array of a .npz archive in memory, held against its checksum; None where there is none of that name."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            if f"{key}.npy" not in archive.namelist():
                return None
            return _unpacked(archive, archive.getinfo(f"{key}.npy"), path)
    except UserError:
        raise
    except UNREADABLE as error:
        raise UserError(f"{path} is not a whole .npz file ({key}: {error}); write it with numpy.savez.") from error


def rows_of(array: "Mapped | np.ndarray", where: str) -> StoredTable:
    """A checked array as rows; raises UserError for what is no table of real numbers."""
    shape, dtype = array.shape, array.dtype
    if dtype.kind not in "fiub":
        raise UserError(f"{where} is of type {dtype}; what is needed is one array of real numbers.")
    if len(shape) < 2 or 0 in shape:
        raise UserError(f"{where} has shape {shape}; what is needed is rows of samples, (n, N) with n, N >= 1.")
    n_columns = math.prod(shape[1:])
    return StoredTable(lambda index: array[index].reshape(len(index), n_columns), torch.arange(shape[0]), n_columns)


class Mapped:
    """The .npy array between two places of a file, of which resident memory stays small: what has been read is given
    back to the system at once.
    """

    def __init__(self, path: Path, file: BinaryIO, start: int, end: int, name: str = "") -> None:
        file.seek(start)
        self.shape, order, self.dtype = _header(file, end, path, name)
        self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.file = os.fdopen(os.dup(file.fileno()), "rb")
        self.name, self.was = file.name, _version(self.file)
        numbers = np.frombuffer(self.map, self.dtype, math.prod(self.shape), file.tell())
        self.array = numbers.reshape(self.shape, order=order)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        """A copy of these rows; in parts, since each may bring a whole large page into memory.

        Raises UserError where the file is no longer what it was: reading beyond its end would end the process.
        """
        if _version(self.file) != self.was:
            raise UserError(
                f"{self.name} was changed while it was read; put back what it was. A run goes on from its last "
                f"checkpoint: grbm resume RUN."
            )
        rows = np.empty((len(index), *self.shape[1:]), self.dtype)
        together = len(index) > 0 and np.ptp(index) * (rows.nbytes // len(index)) < RESIDENT
        part = len(index) if together else RESIDENT // LARGE_PAGE
        for first in range(0, len(index), part or 1):
            rows[first : first + part] = self.array[index[first : first + part]]
            if hasattr(self.map, "madvise"):
                self.map.madvise(mmap.MADV_DONTNEED)
        return rows


class Gathered:
    """Rows of numbers (n, k) as they come, in float64: in memory, and on the disk once they are more than `IN_MEMORY`.

    The file has no name and is gone with the process. Errors name ``where`` the numbers come from.
    """

    def __init__(self, n_columns: int, where: str) -> None:
        self.n_rows, self.n_columns, self.where = 0, n_columns, where
        self._parts: list[np.ndarray] = []
        self._file: IO[bytes] | None = None

    def add(self, part: np.ndarray) -> None:
        """Put rows (·, k) below those that are there. Raises UserError where the disk is full."""
        self.n_rows += len(part)
        self._parts.append(part)
        if self.n_rows * self.n_columns * 8 <= IN_MEMORY:
            return
        try:
            if self._file is None:
                cache_folder().mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=cache_folder())  # noqa: SIM115 - open as long as rows are read
                self._write_header(0)
            for each in self._parts:
                self._file.write(np.ascontiguousarray(each, "<f8").data)
            self._file.flush()  # here, where a full disk has its sentence
        except OSError as error:
            raise UserError(
                f"The numbers of {self.where} do not fit into {cache_folder()} ({error.strerror}); set GRBM_CACHE_DIR "
                f"to a folder with more room."
            ) from error
        self._parts.clear()

    def rows(self) -> StoredTable:
        """All of them."""
        if self._file is None:
            numbers = np.concatenate([np.empty((0, self.n_columns)), *self._parts])
            return StoredTable(lambda index: numbers[index], torch.arange(len(numbers)), self.n_columns)
        end = self._file.tell()
        self._file.seek(0)
        self._write_header(self.n_rows)  # as long as that of no rows: both are filled up to 128 bytes
        self._file.flush()
        return rows_of(Mapped(Path(self.where), cast(BinaryIO, self._file), 0, end), self.where)

    def _write_header(self, n_rows: int) -> None:
        header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, self.n_columns)}
        np.lib.format.write_array_header_1_0(cast(BinaryIO, self._file), header)


def _version(file: IO[bytes]) -> tuple[int, int]:
    """Signs of a change of a file that is open."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _header(file: IO[bytes], end: int, path: Path, name: str = "") -> tuple[tuple[int, ...], Order, np.dtype[Any]]:
    """Shape, order and type that the .npy header of an array of this ``name`` promises.

    Raises ValueError if its numbers do not end before ``end``, and UserError for Python objects.
    """
    version = np.lib.format.read_magic(file)  # type: ignore[arg-type]
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"it has version {version} of the format")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)  # type: ignore[arg-type]
    if dtype.hasobject:
        numbers = "numbers: x.astype(float), or df.to_numpy(float)"
        advice = "names: columns=df.columns.to_numpy(str)" if name == COLUMNS else numbers
        raise UserError(
            f"{path}: the array{name and f' {name!r}'} holds Python objects, which are read by unpickling alone, never "
            f"done here; write {advice}."
        )
    if any(n < 0 for n in shape):
        raise ValueError(f"its header promises an array of shape {shape}")
    size, there = math.prod(shape) * dtype.itemsize, end - file.tell()
    if size > there:
        raise ValueError(f"its header promises {size:,} bytes of numbers, and {there:,} are there")
    return shape, "F" if fortran else "C", dtype


def _from_archive(path: Path, file: BinaryIO, key: str | None) -> "Mapped | np.ndarray":
    """One array of a .npz archive: mapped where it is stored as it is, decompressed into memory where it is not."""
    with zipfile.ZipFile(file) as archive:
        members = [(PurePosixPath(entry.filename), entry) for entry in archive.infolist()]
        arrays = [x for path, x in members if path.suffix == ".npy" and not path.name.startswith(".")]  # of numpy.savez
        entries = {entry.filename.removesuffix(".npy"): entry for entry in arrays}
        names = list(entries)
        if not names:
            raise UserError(f"{path} {as_array(path)}")
        if key is None and len(names) == 2 and COLUMNS in names:
            key = next(name for name in names if name != COLUMNS)
        if key is None and len(names) != 1:
            raise UserError(f"{path} holds several arrays; name one with --key: {', '.join(names)}.")
        if key is not None and key not in names:
            raise UserError(f"{path} holds no array {key!r}; name one with --key: {', '.join(names)}.")
        entry = entries[key or names[0]]
        if entry.compress_type != zipfile.ZIP_STORED:
            return _unpacked(archive, entry, path)
        with archive.open(entry) as stored:  # to the end, where its checksum is compared
            while stored.read(CHUNK):
                pass
        file.seek(entry.header_offset + 26)  # of the local header, whose name and extra field may differ in length
        name_length, extra_length = struct.unpack("<HH", file.read(4))
        start = entry.header_offset + 30 + name_length + extra_length
        return Mapped(path, file, start, start + entry.file_size, entry.filename.removesuffix(".npy"))


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """A compressed array, in memory; refuses what would not fit, or is out of all proportion to the file."""
    if entry.file_size > max(BOMB_SIZE, BOMB_RATIO * entry.compress_size):
        raise UserError(
            f"{path} would unpack {entry.compress_size / 1e6:.3g} MB to {entry.file_size / 1e6:,.0f} MB, which looks "
            f"like an attack; if it is right, write it with numpy.savez or numpy.save."
        )
    require_memory(entry.file_size, f"{path}, unpacked", "write it with numpy.savez or numpy.save, to be mapped")
    with archive.open(entry) as packed:
        shape, order, dtype = _header(packed, entry.file_size, path, entry.filename.removesuffix(".npy"))
        numbers = packed.read()  # all, and so to the checksum
    return np.frombuffer(numbers, dtype, math.prod(shape)).reshape(shape, order=order)
