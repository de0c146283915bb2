"""Standard input in place of a file, as in ``zcat rows.csv.gz | grbm score RUN -``."""

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

from grbm.core.errors import UserError

SIGN = "-"
NAME = "standard-input"
BEGINNINGS = {b"PAR1": ".parquet", b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"\x1f\x8b": ".csv.gz"}


def file_of(path: Path) -> Path:
    """``path``, or where it is `SIGN` a file with what standard input holds, which goes when the program ends.

    What kind of table it is shows in its first bytes. Raises UserError where nothing comes.
    """
    if str(path) != SIGN:
        return path
    if sys.stdin.isatty():
        raise UserError("- is standard input, and nothing is piped into it: grbm score RUN - < rows.csv")
    source = sys.stdin.buffer
    first = source.read(1024)
    if not first:
        raise UserError("- is standard input, and it is empty.")
    folder = Path(tempfile.mkdtemp(prefix="grbm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kind = next((kind for beginning, kind in BEGINNINGS.items() if first.startswith(beginning)), ".csv")
    target = folder / (NAME + kind)
    with target.open("wb") as file:
        file.write(first)
        shutil.copyfileobj(source, file)
    return target
