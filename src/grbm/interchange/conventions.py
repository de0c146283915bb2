"""Others' checkpoints and conventions: what is a Gaussian-Bernoulli RBM elsewhere, as a `GRBM`, with the same density.

What differs is where σ² stands. Here E(v, h) = ½ Σ (v − μ)²/σ² − Σ (v/σ²)(W h) − b·h: v given h has mean μ + W h.
Machines come in float32, in which chains are fast.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grbm.core.errors import UserError
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
        raise UserError(f"{path} is not a checkpoint that can be read safely ({type(error).__name__}).") from error
    parameters = loaded.get("model", loaded) if isinstance(loaded, dict) else {}
    parameters = parameters if isinstance(parameters, dict) else {}
    return GRBM.from_parameters({k: v for k, v in parameters.items() if isinstance(v, Tensor)}, str(path))


def from_scaled(weights: Any, visible_bias: Any, hidden_bias: Any, std: Any) -> GRBM:
    """From E = ½ Σ (v − a)²/σ² − Σ (v/σ)(W h) − b·h, the convention of Hinton 2010 and Krizhevsky 2009.

    Parameters are arrays or tensors: W (N, M), a (N,), b (M,), σ (N,) or a number.
    """
    W, a, b, std = _checked(weights, visible_bias, hidden_bias, std, "std")
    return _model(std[:, None] * W, b, a, 2 * std.log())


def from_natural(weights: Any, visible_bias: Any, hidden_bias: Any, inverse_var: Any) -> GRBM:
    """From E = ½ Σ λ v² − a·v − b·h − v·W h: Gaussian units by their natural parameters, as in
    RestrictedBoltzmannMachines.jl (``Gaussian(θ, γ)``) and `rbms`.

    Parameters are arrays or tensors: W (N, M), a (N,), b (M,), λ > 0 (N,) or a number.
    """
    W, a, b, inverse_var = _checked(weights, visible_bias, hidden_bias, inverse_var, "inverse_var")
    return _model(W / inverse_var[:, None], b, a / inverse_var, -inverse_var.log())


def from_pydeep(rbm: Any) -> GRBM:
    """From a PyDeep ``GaussianBinaryRBM`` or ``GaussianBinaryVarianceRBM``, or a mapping of its arrays.

    Its energy is centred: E = ½ Σ (v − o_v − b_v)²/σ² − Σ ((v − o_v)/σ²) (W (h − o_h)) − b_h·(h − o_h). PyDeep keeps
    models as pickles, which are not read here: load yours with PyDeep and pass it on.

    Raises
    ------
    UserError
        If something of w, bv, bh, sigma, ov, oh is missing.
    """
    names = ("w", "bv", "bh", "sigma", "ov", "oh")
    values = [rbm.get(name) if isinstance(rbm, Mapping) else getattr(rbm, name, None) for name in names]
    if missing := [name for name, value in zip(names, values, strict=True) if value is None]:
        raise UserError(f"This is no Gaussian RBM of PyDeep: it lacks {missing[0]}; it needs {', '.join(names)}.")
    w, bv, bh, sigma, ov, oh = (_tensor(x) for x in values)
    bv, bh, sigma, ov, oh = (x.reshape(-1) for x in (bv, bh, sigma, ov, oh))
    w, bv, bh, sigma = _checked(w, bv, bh, sigma, "sigma")
    return _model(w, bh - w.T @ (ov / sigma.square()), ov + bv - w @ oh, 2 * sigma.log())


def load_rbms(path: str | Path, update: int | None = None, *, inverse_var: float = 1.0) -> GRBM:
    """From an HDF5 archive of the package `rbms` (Decelle, Seoane and others) that holds a ``BGRBM``.

    Its Gaussian units are the hidden ones, so the machine is turned round: they are visible here, and its binary
    visible units hidden.

    Parameters
    ----------
    path : str or Path
    update : int, optional
        Which of the saved updates; by default the last.
    inverse_var : float
        1/σ² of the Gaussian units, which the archive does not say. The sampler that trains a BGRBM gives them variance
        1; the energy function of the same package has one over the number of binary units.

    Raises
    ------
    UserError
        If the file is no such archive, holds another kind of machine, or lacks the update.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            kind = file["model_type"][()].decode() if "model_type" in file else "no model"
            if kind != "BGRBM":
                raise UserError(
                    f"{path} holds {kind}; only BGRBM of the package rbms has Gaussian units and binary ones."
                )
            saved = sorted(int(name[7:]) for name in file if re.fullmatch(r"update_\d+", name))
            wanted = saved[-1] if saved and update is None else update
            if wanted not in saved:
                raise UserError(
                    f"{path} has no update {wanted}; it has {saved}." if saved else f"{path} has no updates."
                )
            group = file[f"update_{wanted}/params"]
            weights, binary, gaussian = (torch.tensor(group[name][()]) for name in ("weight_matrix", "vbias", "hbias"))
    except (OSError, KeyError) as error:
        raise UserError(f"{path} is not an archive of the package rbms ({error}).") from error
    return from_natural(weights.T, gaussian, binary, inverse_var)


def _tensor(x: Any) -> Tensor:
    return x.detach().cpu().double() if isinstance(x, Tensor) else torch.as_tensor(x, dtype=torch.float64)


def _checked(weights: Any, visible: Any, hidden: Any, widths: Any, name: str) -> tuple[Tensor, ...]:
    """Tensors of shapes (N, M), (N,), (M,), (N,); raises UserError where they do not fit or widths are not positive."""
    W, a, b, widths = (_tensor(x) for x in (weights, visible, hidden, widths))
    if W.ndim != 2 or a.shape != W.shape[:1] or b.shape != W.shape[1:] or widths.shape not in ((), W.shape[:1]):
        shapes = ", ".join(str(tuple(x.shape)) for x in (W, a, b, widths))
        raise UserError(
            f"Weights (N, M), visible biases (N,), hidden biases (M,) and {name} (N,) do not fit: {shapes}."
        )
    if not (widths > 0).all():
        raise UserError(f"Every {name} must be above 0.")
    return W, a, b, widths.expand(len(W))


def _model(W: Tensor, b: Tensor, mu: Tensor, log_var: Tensor) -> GRBM:
    parameters = {"W": W, "b": b, "mu": mu, "log_var": log_var}
    return GRBM.from_parameters({name: x.float() for name, x in parameters.items()}, "This model")
