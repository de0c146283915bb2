"""Files that are written whole or not at all, and tensors without pickle."""

import errno
import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from grbm.core.errors import UserError, unreadable

CHECKSUM = "checksum"
MAKING = ".making-"  # how a folder begins in which `keeping` makes a file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place, flushed to the disk, if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _settle(temporary, path)
    except OSError as error:
        if error.filename is None:  # NumPy does not say which file it could not write, nor why
            reason = error.strerror or f"{error}; the disk may be full"
            raise OSError(error.errno or errno.EIO, reason, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _settle(temporary: Path, path: Path) -> None:
    """Flush a file to the disk and rename it."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.replace(path)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Make a rename in ``folder`` outlast a loss of power, where the system can (Windows cannot)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files can be any bytes


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a .npy file whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def encode(tensors: dict[str, Tensor]) -> bytes:
    """Tensors in the safetensors format, with a checksum among its metadata."""
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    return safetensors.torch.save(plain, {CHECKSUM: _checksum(plain)})


def _checksum(tensors: dict[str, Tensor]) -> str:
    """Over names, types, shapes and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, x in sorted(tensors.items()):
        digest.update(repr((name, x.dtype, tuple(x.shape))).encode())
        digest.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, as `encode` makes it, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(encode(tensors))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises UserError where it is missing, damaged or not as `encode` made it."""
    if not path.is_file():
        raise UserError(f"{path} is missing; is {path.parent} the folder of a finished `grbm train`?")
    try:
        tensors = safetensors.torch.load_file(path)
        with safetensors.safe_open(path, "pt") as file:
            written = (file.metadata() or {}).get(CHECKSUM)
        if written is not None and written != _checksum(tensors):  # files of others have none
            raise ValueError("its numbers do not match its checksum")
        return tensors
    except OSError as error:
        raise unreadable(path, error) from error
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); train again or restore the file.") from error


def digest_of(*tensors: Tensor) -> str:
    """A digest of numbers, by which what was made of them is known again."""
    digest = hashlib.blake2b(digest_size=16)
    for x in tensors:
        digest.update(x.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def cache_folder() -> Path:
    """The folder of decoded pictures and compiled code: $GRBM_CACHE_DIR, or grbm in the user's cache folder."""
    if own := os.environ.get("GRBM_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grbm"


def kept(folder: Path, name: str, suffix: str) -> Path | None:
    """Path of the file that `keeping` made in ``folder`` as ``name``, if its content has the digest in its name.

    A file that has not is damaged, and removed.
    """
    for path in sorted(folder.glob(f"{name}-*{suffix}")):
        if path.is_file() and path.name == f"{name}-{_digest(path)}{suffix}":
            return path
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return None


@contextmanager
def keeping(folder: Path, name: str, suffix: str) -> Iterator[Path]:
    """A temporary file that, if the block ends well, becomes ``name-DIGEST suffix`` in ``folder``, for `kept` to find.

    The digest of the content is in the name, so one rename makes both appear.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=MAKING) as making:  # others may be making the same
        temporary = Path(making) / f"{name}{suffix}"
        yield temporary
        _settle(temporary, folder / f"{name}-{_digest(temporary)}{suffix}")
    for left in folder.glob(f"{MAKING}*"):  # by a kill; nothing takes so long
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 24 * 3600:
                shutil.rmtree(left, ignore_errors=True)


def _digest(path: Path) -> str:
    found = path.stat()
    return _digest_of(path, (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@functools.lru_cache(maxsize=64)
def _digest_of(path: Path, stamp: tuple[int, ...]) -> str:
    """The digest of a file's content, read once in a process for as long as its ``stamp`` stays."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
