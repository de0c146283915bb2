"""Files that are written whole or not at all, and tensors without pickle."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from grbm.errors import UserError

CHECKSUM = "checksum"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place, flushed to the disk, if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


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
        temporary.write_text(text, encoding="utf-8")


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
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); train again or restore the file.") from error


def cache_folder() -> Path:
    """The folder of decoded pictures and compiled code: $GRBM_CACHE_DIR, or grbm in the user's cache folder."""
    if "GRBM_CACHE_DIR" in os.environ:
        return Path(os.environ["GRBM_CACHE_DIR"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grbm"
