"""Real-valued arrays from .npy and .npz files, by memory map: nothing is loaded before it is asked for."""

import mmap
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from grbm.data.tables import StoredTable
from grbm.errors import UserError

RESIDENT = 64 << 20  # bytes of a map that may be in memory before they are given back
LARGE_PAGE = 2 << 20


def open_array(path: Path, key: str | None = None) -> StoredTable:
    """An array (n, N), or (n, ...) flattened to it, from a .npy file or from a .npz archive under ``key``.

    Never unpickles. Compressed archives cannot be mapped and are read into memory.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file; give the path of a .npy or .npz file.")
    try:
        with path.open("rb") as file:
            if file.read(4) not in (b"\x93NUM", b"PK\x03\x04") and path.suffix not in (".npy", ".npz"):
                raise UserError(f"{path} is no .npy or .npz file; read it with numpy or pandas and numpy.save it.")
            file.seek(0)
            archive = file.read(4) == b"PK\x03\x04"
            file.seek(0)
            array = _from_archive(path, file, key) if archive else _map(file, 0)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, struct.error) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is not a whole .npy or .npz file of numbers ({error}); write it with numpy.save."
        ) from error
    return rows_of(array, str(path))


def rows_of(array: "Mapped | np.ndarray", where: str) -> StoredTable:
    """A checked array as rows; raises UserError for what is no table of real numbers."""
    shape, dtype = array.shape, array.dtype
    if dtype.kind not in "fiub":
        raise UserError(f"{where} is of type {dtype}; what is needed is one array of real numbers.")
    if len(shape) < 2 or 0 in shape:
        raise UserError(f"{where} has shape {shape}; what is needed is rows of samples, (n, N) with n, N >= 1.")
    n_columns = int(np.prod(shape[1:]))
    return StoredTable(lambda index: array[index].reshape(len(index), n_columns), torch.arange(shape[0]), n_columns)


class Mapped:
    """An array in a file. What has been read is given back to the system at once: resident memory stays small."""

    def __init__(self, file: BinaryIO, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> None:
        self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        count = int(np.prod(shape))
        self.array = np.frombuffer(self.map, dtype, count, offset).reshape(shape, order=order)
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        """A copy of these rows; in parts, since each may bring a whole large page into memory."""
        rows = np.empty((len(index), *self.shape[1:]), self.dtype)
        together = len(index) > 0 and np.ptp(index) * (rows.nbytes // len(index)) < RESIDENT
        part = len(index) if together else RESIDENT // LARGE_PAGE
        for first in range(0, len(index), part or 1):
            rows[first : first + part] = self.array[index[first : first + part]]
            if hasattr(self.map, "madvise"):
                self.map.madvise(mmap.MADV_DONTNEED)
        return rows


def _map(file: BinaryIO, start: int) -> Mapped:
    """The .npy array that begins at ``start`` of a file."""
    file.seek(start)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return Mapped(file, file.tell(), dtype, shape, "F" if fortran else "C")


def _from_archive(path: Path, file: BinaryIO, key: str | None) -> "Mapped | np.ndarray":
    """One array of a .npz archive: mapped where it is stored as it is, decompressed into memory where it is not."""
    with zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if key is None and len(names) != 1:
            raise UserError(f"{path} holds several arrays; name one with --key or --dataset.key: {', '.join(names)}.")
        if key is not None and key not in names:
            raise UserError(f"{path} holds no array {key!r}; name one with --key or --dataset.key: {', '.join(names)}.")
        entry = archive.infolist()[names.index(key or names[0])]
        if entry.compress_type != zipfile.ZIP_STORED:
            with archive.open(entry) as packed:
                unpacked: np.ndarray = np.lib.format.read_array(packed, allow_pickle=False)
                return unpacked
        file.seek(entry.header_offset + 26)  # of the local header, whose name and extra field may differ in length
        name_length, extra_length = struct.unpack("<HH", file.read(4))
        return _map(file, entry.header_offset + 30 + name_length + extra_length)
