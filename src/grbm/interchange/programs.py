"""The encoder of a machine for programs that know nothing of this one: ONNX, and torch.export."""

import contextlib
import copy
import io
import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from grbm.core.errors import needed_by
from grbm.core.files import replacing
from grbm.model import GRBM


class Encoder(nn.Module):
    """x (n, N) in the data's own units -> hidden probabilities (n, M): standardisation and Eq. 4 in one, float32.

    Of a machine at several contrasts it is the mean over p(k | x).
    """

    def __init__(
        self, model: GRBM, mean: Tensor | None = None, scale: Tensor | None = None, to_z: Tensor | None = None
    ) -> None:
        super().__init__()
        energy = model.freeze()
        projection = energy.projection if to_z is None else energy.projection.double() @ to_z.T
        zero = torch.zeros(projection.shape[1])
        self.mean, self.scale = _buffer(zero if mean is None else mean), _buffer(zero + 1 if scale is None else scale)
        self.projection, self.b = _buffer(projection), _buffer(energy.b)
        several = model.contrasts.n > 1
        self.machine = copy.deepcopy(model).float().cpu().requires_grad_(False) if several else None
        self.to_z = _buffer(to_z) if several and to_z is not None else None

    def forward(self, x: Tensor) -> Tensor:
        z = (x - self.mean) / self.scale
        if self.machine is None:
            return functional.linear(z, self.projection, self.b).sigmoid()
        return self.machine(z if self.to_z is None else z @ self.to_z)


def _buffer(x: Tensor) -> nn.Buffer:
    return nn.Buffer(x.detach().float().cpu().contiguous())


def write_program(encoder: Encoder, path: Path) -> None:
    """A ``torch.export`` program for any number of rows: ``torch.export.load(path).module()(x)``."""
    x = torch.zeros(2, len(encoder.mean))
    program = torch.export.export(encoder, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    with replacing(path) as temporary:
        torch.export.save(program, str(temporary))


def write_onnx(encoder: Encoder, path: Path, about: dict[str, str] | None = None) -> None:
    """An ONNX model with input ``x`` (rows, N) and output ``probabilities`` (rows, M).

    Its metadata say in which units ``x`` is, with mean and scale of each column as JSON, and what ``about`` adds.

    Raises UserError where the packages that write it are not installed.
    """
    with needed_by("Writing ONNX", "onnx", "onnx onnxscript"):
        import onnx
        import onnxscript  # noqa: F401
    x = torch.zeros(2, len(encoder.mean))
    with replacing(path) as temporary, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # PyTorch's, of its own interior
        torch.onnx.export(
            encoder,
            (x,),
            str(temporary),
            input_names=["x"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("rows")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        written = onnx.load(str(temporary))
        metadata = {
            "grbm.units": "x is in the data's own units; the model itself makes (x - mean) / scale of it",
            "grbm.mean": json.dumps(encoder.mean.tolist()),
            "grbm.scale": json.dumps(encoder.scale.tolist()),
        }
        onnx.helper.set_model_props(written, metadata | (about or {}))
        onnx.save(written, str(temporary))
