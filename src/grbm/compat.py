"""Others' checkpoints and conventions."""

from pathlib import Path

import torch

from grbm.errors import UserError
from grbm.model import GRBM


def load_published(path: str | Path) -> GRBM:
    """A model from a checkpoint of the paper's own program: a dict with key ``model`` holding W, b, mu, log_var.

    Read with ``weights_only``, so nothing in the file is executed. A bare state dict loads as well.

    Raises
    ------
    UserError
        If the file is missing, is not such a checkpoint, or its shapes do not fit together.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is not a file; give the path of a checkpoint.")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a checkpoint that can be read safely ({reason}).") from error
    parameters = loaded.get("model", loaded) if isinstance(loaded, dict) else {}
    parameters = parameters if isinstance(parameters, dict) else {}
    return from_parameters({k: v for k, v in parameters.items() if isinstance(v, torch.Tensor)}, str(path))


def from_parameters(parameters: dict[str, torch.Tensor], source: str) -> GRBM:
    """A GRBM of the given W, b, mu, log_var; ``source`` names them in errors."""
    names = ("W", "b", "mu", "log_var")
    if missing := [name for name in names if name not in parameters]:
        raise UserError(f"{source} lacks the parameter {missing[0]}; a GRBM has W, b, mu and log_var.")
    W = parameters["W"]
    if W.ndim != 2 or 0 in W.shape or W.dtype not in (torch.float32, torch.float64):
        raise UserError(f"{source} holds W of shape {tuple(W.shape)} and type {W.dtype}; it must be a real (N, M).")
    model = GRBM(*W.shape, dtype=W.dtype)
    for name in names:
        expected, given = model.get_parameter(name).shape, parameters[name]
        if given.numel() != expected.numel():
            raise UserError(
                f"{source} holds {name} of shape {tuple(given.shape)}, but W {tuple(W.shape)} needs {expected}."
            )
        if not torch.isfinite(given).all():
            raise UserError(f"{source} holds NaN or infinite numbers in {name}; that run had diverged.")
        with torch.no_grad():
            model.get_parameter(name).copy_(given.reshape(expected))
    return model
