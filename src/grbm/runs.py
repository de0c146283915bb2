"""The run folder: what training writes and every other command reads. Files are written whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from grbm.compat import from_parameters
from grbm.config import RunConfig
from grbm.data.standardise import Standardizer
from grbm.errors import UserError
from grbm.model import GRBM, Base

CONFIG, METRICS, WEIGHTS, RAW_WEIGHTS, DATA = (
    "config.json",
    "metrics.jsonl",
    "model.safetensors",
    "model_raw.safetensors",
    "data.safetensors",
)
FIGURES, SAMPLES, EVALUATION, STATUS = "figures", "samples", "evaluation.json", "status.json"


class Run(NamedTuple):
    """A trained run, read back."""

    folder: Path
    config: RunConfig
    model: GRBM
    standardizer: Standardizer
    base: Base
    status: str  # why training ended early; empty where it finished
    metrics: list[dict[str, Any]]


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
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    with replacing(path) as temporary:
        safetensors.torch.save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary)


def read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"{path} is missing; is {path.parent} the folder of a finished `grbm train`?")
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); train again or restore the file.") from error


def create(folder: Path, config: RunConfig, *, overwrite: bool) -> None:
    """Claim a folder for a run. An existing run is removed only with ``overwrite``; other files are never touched."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another folder with --out.")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder} is not empty and not a run; choose another folder with --out.")
        if not overwrite:
            raise UserError(f"{folder} already holds a run; choose another folder with --out, or add --overwrite.")
        for name in (METRICS, WEIGHTS, RAW_WEIGHTS, DATA, EVALUATION, STATUS):
            (folder / name).unlink(missing_ok=True)
        for name in (FIGURES, SAMPLES):
            shutil.rmtree(folder / name, ignore_errors=True)
    try:
        write_text(folder / CONFIG, config.to_json())
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error}); choose another folder with --out.") from error


def save_data(folder: Path, standardizer: Standardizer, base: Base) -> None:
    """What turns numbers into the model's units and back, and where tempered paths start."""
    names = ("mean", "scale", "base_mean", "base_var")
    write_tensors(folder / DATA, dict(zip(names, (*standardizer, *base), strict=True)))


def save_status(folder: Path, update: int, message: str = "") -> None:
    """How training ended; an empty message means that it finished."""
    write_text(folder / STATUS, json.dumps({"update": update, "message": message}) + "\n")


def save_model(folder: Path, model: GRBM, average: GRBM | None = None) -> None:
    """The weights; with an average, that is the model and the last parameters are kept beside it."""
    write_tensors(folder / WEIGHTS, (average or model).state_dict())
    if average is not None:
        write_tensors(folder / RAW_WEIGHTS, model.state_dict())


def read(folder: Path) -> Run:
    """A run from its folder; raises UserError where something is missing or damaged."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is not a run (it has no {CONFIG}); give a folder that `grbm train` made.")
    config = RunConfig.read(folder / CONFIG)
    model = from_parameters(read_tensors(folder / WEIGHTS), str(folder / WEIGHTS))
    data = read_tensors(folder / DATA)
    if set(data) != {"mean", "scale", "base_mean", "base_var"} or any(
        x.shape != (model.n_visible,) for x in data.values()
    ):
        raise UserError(f"{folder / DATA} does not fit {folder / WEIGHTS}; are both from the same run?")
    metrics = []
    if (folder / METRICS).is_file():
        for line in (folder / METRICS).read_text(encoding="utf-8").splitlines():
            try:
                metrics.append(json.loads(line))
            except ValueError:  # an interrupted run ends in half a line
                break
    status = "training was killed before it ended"
    if (folder / STATUS).is_file():
        try:
            status = str(json.loads((folder / STATUS).read_text(encoding="utf-8"))["message"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / STATUS} is damaged ({error}); train again or restore the file.") from error
    standardizer = Standardizer(data["mean"].double(), data["scale"].double())
    return Run(folder, config, model, standardizer, Base(data["base_mean"], data["base_var"]), status, metrics)


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU if there is one; raises UserError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # also where a device holds no numbers
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"--device {name} is not usable here ({reason}); use cpu or auto.") from error
    return device
