"""Files by their kinds: those that are read, and for others the command that makes an array of each."""

import json
import re
import shlex
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")  # of pictures
TEXT = (".csv", ".tsv", ".txt", ".dat", ".tab")  # of tables in text, which may be packed: .csv.gz
TABLES = {"text": "a table in text", "parquet": "a Parquet file", "feather": "a Feather file"}
BEGIN = {b"PAR1": "parquet", b"ARRO": "feather", b"FEA1": "feather"}  # first bytes of a file
TORCH = ("a PyTorch file, which is never unpickled here", "torch", "torch.load(FILE, weights_only=True).numpy()")
PICKLE = (
    "a pickle, which can run any code when it is read and is never read here",
    "pickle",
    'numpy.asarray(pickle.load(open(FILE, "rb")), float)',
)
READ = {  # by suffix: what a file is, what is imported to read it, and the array in it
    **dict.fromkeys((".pt", ".pth", ".ckpt"), TORCH),
    **dict.fromkeys((".pkl", ".pickle"), PICKLE),
    **dict.fromkeys((".h5", ".hdf5"), ("an HDF5 file", "h5py", 'h5py.File(FILE)["NAME"][:]')),
    ".mat": ("a MATLAB file", "scipy.io", 'scipy.io.loadmat(FILE)["NAME"]'),
    ".safetensors": ("a safetensors file", "safetensors.numpy", 'safetensors.numpy.load_file(FILE)["NAME"]'),
}
SHEETS = (".xlsx", ".xls", ".ods")  # of spreadsheets


def table_kind(path: Path) -> str | None:
    """Kind of a table's file, one of `TABLES`, by its name or its first bytes; None for others."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes[-1:] and (suffixes[-1] in TEXT or (suffixes[-1] == ".gz" and suffixes[0] in TEXT)):
        return "text"
    with suppress(OSError), path.open("rb") as file:
        return BEGIN.get(file.read(4))
    return None


def as_array(path: Path) -> str:
    """End of a sentence about a file that holds no array: its kind, and the remedy."""
    if (made := conversion(path)) is not None:
        kind, command, _ = made
        return f"is {kind}; make an array of it: {command}"
    if path.suffix.lower() in SUFFIXES:
        return "is a picture; the preset images learns a folder or zip file of them."
    if holds_pictures(path):
        return "is a zip file of pictures, which the preset images learns."
    if zipfile.is_zipfile(path):
        return "is a zip file without a .npy file in it; write it with numpy.savez."
    return "is no file that is read: those are .csv, .tsv, .parquet, .feather, .npy and .npz."


def conversion(path: Path) -> tuple[str, str, Path] | None:
    """Kind of a file, the command that makes an array of it, and the file that it writes; None for others."""
    suffix, file = path.suffix.lower(), _text(path)
    if any(re.fullmatch(r"([^/]+/)?data\.pkl", name) for name in _members(path)):  # by torch.save, whatever its name
        suffix = ".pt"
    into = path.with_suffix(".npy")
    if suffix in READ:
        kind, package, array = READ[suffix]
        code = f"import numpy, {package}; numpy.save({_text(into)}, {array.replace('FILE', file)})"
    elif suffix in SHEETS:
        kind, into = "a spreadsheet", path.with_suffix(".csv")
        code = f"import pandas; pandas.read_excel({file}).to_csv({_text(into)}, index=False)"
    else:
        return None
    return kind, f"python -c {shlex.quote(code)}", into


def is_arrow(folder: Path) -> bool:
    """Whether a folder was written by ``datasets.Dataset.save_to_disk``."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def holds_pictures(path: Path) -> bool:
    """Whether a folder, one in it, or a zip file holds pictures, by their names."""
    names = (str(name) for name in path.rglob("*")) if path.is_dir() else _members(path)
    return any(PurePath(name).suffix.lower() in SUFFIXES for name in names)


def _members(path: Path) -> Iterable[str]:
    """The names in a zip file; none where it is no whole one."""
    with suppress(OSError, ValueError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return archive.namelist()
    return ()


def _text(value: object) -> str:
    """A string as Python reads it."""
    return json.dumps(str(value), ensure_ascii=False)
