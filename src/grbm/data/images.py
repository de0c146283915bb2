"""Image data sets: scikit-learn's digits, MNIST and Fashion-MNIST; and rows of any of them as a picture."""

import gzip
import math
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grbm.core.errors import UserError, unreadable

LARGEST = 256 << 20  # bytes of an unpacked IDX file; MNIST's have 47 million
IDX_FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def load_digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 digits of 8 x 8 pixels in [0, 1]: images (n, 64) and labels (n,)."""
    spec = find_spec("sklearn")  # which is not imported for a file beside it: that takes longer than to learn digits
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / "datasets" / "data" / "digits.csv.gz" if folders else None
    if path is not None and path.is_file():
        table = np.loadtxt(path, delimiter=",")
        images, labels = table[:, :-1], table[:, -1].astype(np.int64)
    else:
        from sklearn.datasets import load_digits as load

        images, labels = load(return_X_y=True)
    return torch.from_numpy(images / 16.0).float(), torch.from_numpy(labels)


def load_idx(name: str, folder: Path, *, train: bool = True) -> tuple[Tensor, Tensor]:
    """MNIST or Fashion-MNIST in [0, 1]: images (n, 784) and labels (n,).

    IDX files, gzipped or not, are looked for in ``folder``, ``folder/raw`` and ``folder/<NAME>/raw`` and read as they
    are; where they are absent torchvision downloads them to ``folder``.
    """
    pictures, numbers = find_idx(name, folder, "train" if train else "t10k")
    if pictures is None or numbers is None:
        return _download(name, folder, train)
    images, labels = _read_idx(pictures, 3), _read_idx(numbers, 1)
    if images.shape[1:] != (28, 28) or len(images) == 0:
        raise UserError(f"{pictures} holds an array of shape {images.shape}, not images of 28 x 28; fetch it again.")
    if len(images) != len(labels):
        raise UserError(f"{pictures} holds {len(images)} images but {numbers} {len(labels)} labels; fetch them again.")
    pixels = images.reshape(len(images), -1) / np.float32(255)
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))


def find_idx(name: str, folder: Path, kind: str) -> list[Path | None]:
    """Files of images and labels of the ``kind`` "train" or "t10k" of MNIST or Fashion-MNIST; None where absent."""
    folders = (folder / IDX_FOLDERS[name] / "raw", folder / "raw", folder)
    named = ((f"{kind}-{part}-ubyte", f"{kind}-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1"))
    found = ([place / file for place in folders for file in files] for files in named)
    return [next((path for path in paths if path.is_file()), None) for paths in found]


def _read_idx(path: Path, n_dims: int) -> np.ndarray:
    """The IDX format: two zero bytes, 8 for uint8, the number of axes, their sizes (big-endian), the numbers."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(LARGEST + 1)  # and no more, whatever a small file may unpack to
    except PermissionError as error:
        raise unreadable(path, error) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); fetch it again.") from error
    sizes = np.frombuffer(raw[4 : 4 + 4 * n_dims], ">u4").tolist() if len(raw) >= 4 + 4 * n_dims else None
    body = raw[4 + 4 * n_dims :]
    if sizes is None or raw[:4] != bytes((0, 0, 8, n_dims)) or len(body) != math.prod(sizes):
        raise UserError(f"{path} is not a complete IDX file of {n_dims} axes; fetch it again.")
    return np.frombuffer(body, np.uint8).reshape(sizes)


def _download(name: str, folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    import torchvision

    dataset = getattr(torchvision.datasets, IDX_FOLDERS[name])
    try:
        data = dataset(str(folder), train=train, download=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{IDX_FOLDERS[name]} is not in {folder} and could not be downloaded ({reason}); "
            f"give --data-dir a folder that holds {IDX_FOLDERS[name]}/raw/*-ubyte[.gz]."
        ) from error
    return data.data.reshape(len(data.data), -1).float() / 255, data.targets


def tile(images: Tensor, shape: tuple[int, int, int], columns: int) -> np.ndarray:
    """Images (n, N) in [0, 1], of ``shape`` (channels, height, width), as one array (H, W, 3), with light gaps."""
    channels, height, width = shape
    x = images.detach().float().cpu().clamp(0, 1).view(-1, channels, height, width).expand(-1, 3, -1, -1)
    rows = -(-len(x) // columns)
    sheet = torch.full((rows * (height + 1) + 1, columns * (width + 1) + 1, 3), 0.85)
    for k, image in enumerate(x.permute(0, 2, 3, 1)):
        top, left = (k // columns) * (height + 1) + 1, (k % columns) * (width + 1) + 1
        sheet[top : top + height, left : left + width] = image
    return np.asarray(sheet.numpy())
