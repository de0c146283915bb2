"""Files that hold no array: what they are, and the command that makes an array of each."""

import csv
import json
import re
import shlex
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")  # of pictures
TEXT = {".csv": "a CSV file", ".tsv": "a TSV file", ".txt": "a text file", ".dat": "a text file"}
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
FRAMES = {  # by suffix: what a file is, and the function of pandas that reads it
    ".parquet": ("a Parquet file", "read_parquet"),
    ".feather": ("a Feather file", "read_feather"),
    **dict.fromkeys((".xlsx", ".xls"), ("a spreadsheet", "read_excel")),
}


def as_array(path: Path) -> str:
    """What a file is that holds no array, and what to do: the end of a sentence whose subject is the file."""
    if (made := conversion(path)) is not None:
        kind, command, _ = made
        return f"is {kind}; make an array of it: {command}"
    if path.suffix.lower() in SUFFIXES:
        return "is a picture; the preset images learns a folder or zip file of them."
    if holds_pictures(path):
        return "is a zip file of pictures, which the preset images learns."
    if zipfile.is_zipfile(path):
        return "is a zip file without a .npy file in it; write it with numpy.savez."
    return "is no .npy or .npz file; read it with numpy or pandas and numpy.save it."


def conversion(path: Path) -> tuple[str, str, Path] | None:
    """What a file is, the command that makes an array of it, and the file that the command writes; None for others."""
    suffix, file = path.suffix.lower(), _text(path)
    if any(re.fullmatch(r"([^/]+/)?data\.pkl", name) for name in _members(path)):  # by torch.save, whatever its name
        suffix = ".pt"
    into = path.with_suffix(".npy")
    if suffix in READ:
        kind, package, array = READ[suffix]
        code = f"import numpy, {package}; numpy.save({_text(into)}, {array.replace('FILE', file)})"
    elif suffix in FRAMES:
        (kind, reader), into = FRAMES[suffix], path.with_suffix(".npz")
        code = f"import numpy, pandas; x = pandas.{reader}({file}); "
        code += f"numpy.savez({_text(into)}, x=x.to_numpy(float), columns=x.columns.to_numpy(str))"
    elif suffix in TEXT:
        kind = TEXT[suffix]
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            first = lines.readline(1 << 20)
        mark = next((mark for mark in "\t;," if mark in first), None)
        array = f"numpy.loadtxt({file}" + (f", delimiter={_text(mark)}" if mark else "")
        if _are_numbers(next(csv.reader([first], delimiter=mark)) if mark else first.split()):
            code = f"import numpy; numpy.save({_text(into)}, {array}))"
        else:
            into, head = path.with_suffix(".npz"), f'open({file}, encoding="utf-8-sig")'
            names = f"next(csv.reader({head}, delimiter={_text(mark)}))" if mark else f"{head}.readline().split()"
            code = f"import csv, numpy; numpy.savez({_text(into)}, x={array}, skiprows=1), columns={names})"
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


def _are_numbers(words: Iterable[str]) -> bool:
    with suppress(ValueError):
        for word in words:
            float(word)
        return True
    return False
