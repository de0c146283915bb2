"""Any real-valued array from a .npy file."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grbm.errors import UserError


def load_array(path: Path) -> Tensor:
    """An array (n, N), or (n, ...) flattened to it, as float64; never unpickles."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; give --data the path of a .npy array.")
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a .npy array of numbers ({error}); write it with numpy.save.") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        what = "an archive of arrays" if not isinstance(array, np.ndarray) else f"of type {array.dtype}"
        raise UserError(f"{path} is {what}; --data needs one array of real numbers.")
    if array.ndim < 2 or 0 in array.shape:
        raise UserError(f"{path} has shape {array.shape}; --data needs rows of samples, (n, N) with n, N >= 1.")
    array = array.reshape(len(array), -1).astype(np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise UserError(
            f"{path} holds {int(bad.sum())} NaN or infinite numbers, the first at row {row}, column {column}; "
            f"remove or fill them."
        )
    if len(array) < 2:
        raise UserError(f"{path} holds a single row; --data needs at least 2.")
    return torch.from_numpy(array)
