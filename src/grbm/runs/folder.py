"""The run folder: what training writes and every other command reads."""

import json
import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from grbm.core.errors import Divergence, UserError, unreadable
from grbm.core.files import digest_of, read_tensors, write_tensors, write_text
from grbm.core.typed import is_kind, read_bytes, read_json, restore
from grbm.data.frame import Frame
from grbm.data.images import IDX_FOLDERS, find_idx
from grbm.data.loading import Dataset, statistics
from grbm.data.pictures import ImageShape
from grbm.data.transforms import Transform
from grbm.fitting.density import Fitted
from grbm.model import GRBM
from grbm.model.grbm import CONFIG as CONFIG
from grbm.model.grbm import WEIGHTS as WEIGHTS
from grbm.runs import checkpoint
from grbm.runs.config import RunConfig, Which

METRICS, RAW_WEIGHTS, DATA = "metrics.jsonl", "model_raw.safetensors", "data.safetensors"
FIGURES, SAMPLES, CHECKPOINTS, TENSORBOARD, WANDB = "figures", "samples", "checkpoints", "tensorboard", "wandb"
TRAJECTORY, CODES, IMPUTED, SCORES = "trajectory", "codes", "imputed", "scores"
EVALUATION, STATUS, JOB = "evaluation.json", "status.json", "job.txt"
MIXING, TRACE, FID = "mixing.json", "mixing.nc", "fid.json"
WRITTEN = "written.txt"  # files in the folder whose names the user chose
REPORT = "report.html"
RESULTS = (STATUS, EVALUATION, MIXING, TRACE, FID, REPORT)  # of the run's weights
LARGEST = torch.finfo(torch.float32).max  # of numbers in metrics.jsonl: greater ones no training has logged
TOP = (CONFIG, METRICS, WEIGHTS, RAW_WEIGHTS, DATA, JOB, WRITTEN, *RESULTS)
FOLDERS = (FIGURES, SAMPLES, CHECKPOINTS, TRAJECTORY, TENSORBOARD, CODES, IMPUTED, SCORES)
OWN = re.compile(  # every file that the program writes into a run folder, but for those that WRITTEN names
    "|".join(
        [
            *(re.escape(name) for name in TOP),
            rf"{FIGURES}/(samples|chains|filters|nearest|density|learning|mixing|marginals|correlations)\.(png|gif)",
            rf"{SAMPLES}/samples\.(npy|png)",
            rf"{CHECKPOINTS}/({checkpoint.PREFIX}\d{{8,}}|{re.escape(checkpoint.PARTIAL)}[^/]+)/state\.(safetensors|json)",
            rf"{TRAJECTORY}/\d{{8,}}\.safetensors",
            rf"{TENSORBOARD}/events\.out\.tfevents\.\d+\.[^/]+\.\d+(\.\d+)?",
            rf"{WANDB}/(id\.txt|latest-run|debug(-\w+)?\.log|(offline-)?run-\d{{8}}_\d{{6}}-\w+(/.+)?)",
        ]
    )
)


@dataclass(frozen=True)
class Status:
    """How training ended, at which update, and on what machine."""

    ended: Literal["running", "finished", "interrupted", "diverged"]  # running: it has not ended, or was killed
    update: int = 0
    machine: str = ""
    divergence: Divergence | None = None

    def __str__(self) -> str:
        said = {
            "running": "training has not ended, or was killed",
            "interrupted": f"interrupted at update {self.update}",
            "diverged": str(self.divergence or f"diverged at update {self.update}"),
        }
        return said.get(self.ended, "")


FINGERPRINT, NAMES, KEPT = "fingerprint", "names", "kept."


class Run(NamedTuple):
    """A trained run, read back."""

    folder: Path
    config: RunConfig
    fitted: Fitted
    image_shape: ImageShape | None  # channels, height, width, where rows are images
    status: Status
    metrics: list[dict[str, Any]]
    fingerprint: str  # of the data
    columns: tuple[str, ...] = ()  # names, where the data have them

    @property
    def model(self) -> GRBM:
        """The machine."""
        return self.fitted.model

    @property
    def frame(self) -> Frame:
        """Frame of the fitted model."""
        return self.fitted.frame

    @property
    def transform(self) -> Transform:
        """From the data's columns to the machine's units."""
        return self.frame.transform

    def load_data(self) -> Dataset:
        """The data that it was trained on, split as they were.

        Nothing is downloaded: whoever wrote the run's configuration does not decide what is fetched, and to where.
        Raises UserError where they are not there, or differ from the training data: a new split would mix learned rows
        into the held-out.
        """
        name, data_dir, where = self.config.dataset.name, self.config.data_dir, self.config.where
        if name in IDX_FOLDERS and None in (*find_idx(name, data_dir, "train"), *find_idx(name, data_dir, "t10k")):
            raise UserError(
                f"{IDX_FOLDERS[name]} is not in {data_dir}; give --data-dir a folder that holds "
                f"{IDX_FOLDERS[name]}/raw/*-ubyte[.gz]."
            )
        dataset, n_columns = self.config.load_data(), self.transform.n_columns
        if (found := dataset.train.shape[1]) != n_columns:
            raise UserError(
                f"{where} has {found} columns now, but {self.folder} was trained on {n_columns}; give its data."
            )
        is_stored = self.config.data is not None or name in (*IDX_FOLDERS, "celeba")
        if is_stored and self.fingerprint != statistics(dataset, where).fingerprint:
            if self.config.data is None:
                raise UserError(
                    f"{where} in {data_dir} differs from the training data of {self.folder}; give the "
                    f"original folder with --data-dir."
                )
            raise UserError(
                f"{where} does not hold the data that {self.folder} learned from; give those with --data. Other rows "
                f"are scored by: grbm evaluate RUN --data FILE."
            )
        return dataset


def refuse_links(folder: Path) -> None:
    """Raise UserError for a link in a run's folder where the program reads or writes; the folder itself may be one."""
    inside = (chain([folder / name], (folder / name).rglob("*")) for name in FOLDERS)
    for path in chain((folder / name for name in (*TOP, WANDB, f"{WANDB}/id.txt")), *inside):
        if path.is_symlink():
            raise UserError(
                f"{path} is a link, by which files outside of the run would be read or written; put what it points to "
                f"in its place, or remove it."
            )


def read_config(folder: Path) -> RunConfig:
    """The configuration of the run in ``folder``; raises UserError where it holds none, or links."""
    refuse_links(folder)
    return RunConfig.read(folder / CONFIG)


def has_weights(folder: Path) -> bool:
    """Whether the weights that training ended with are there, and whole."""
    with suppress(UserError):
        for name in (WEIGHTS, *([RAW_WEIGHTS] if (folder / RAW_WEIGHTS).is_file() else [])):
            GRBM.from_parameters(read_tensors(folder / name), name)
        return True
    return False


class Data(NamedTuple):
    """Content of ``data.safetensors``: coordinates, and by what the data are known again."""

    frame: Frame  # that is learned in
    image_shape: ImageShape | None
    fingerprint: str
    kept: Frame | None = None  # of what is kept, where it is another: that of a full-covariance Gaussian of all rows
    columns: tuple[str, ...] = ()  # names, where the data have them

    def save(self, folder: Path) -> None:
        """Write the file."""
        kept = self.kept.tensors() if self.kept else {}
        tensors = self.frame.tensors() | {f"{KEPT}{name}": x.clone() for name, x in kept.items()}
        if self.image_shape is not None:
            tensors["image_shape"] = torch.tensor(self.image_shape)
        tensors[FINGERPRINT] = _as_bytes(self.fingerprint)
        if self.columns:
            tensors[NAMES] = _as_bytes(json.dumps(self.columns))
        write_tensors(folder / DATA, tensors)


def _as_bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _as_text(numbers: Tensor) -> str:
    """Text that `_as_bytes` was made of. Raises ValueError for a tensor that was not."""
    if numbers.dtype != torch.uint8 or numbers.ndim != 1:
        raise ValueError("it holds no text")
    return bytes(numbers.tolist()).decode("utf-8", "replace")


def save_status(folder: Path, status: Status) -> None:
    """How training ended."""
    content = asdict(status)
    if status.divergence is not None:  # JSON has no infinite numbers, and where learning diverged there are some
        numbers = content["divergence"]
        numbers |= {k: str(x) for k, x in numbers.items() if isinstance(x, float) and not math.isfinite(x)}
    write_text(folder / STATUS, json.dumps(content, allow_nan=False) + "\n")


def save_model(folder: Path, model: GRBM, average: GRBM | None = None) -> None:
    """The weights; with an average, that is the model and the last parameters are kept beside it."""
    write_tensors(folder / WEIGHTS, (average or model).state_dict())
    if average is not None:
        write_tensors(folder / RAW_WEIGHTS, model.state_dict())
    else:
        (folder / RAW_WEIGHTS).unlink(missing_ok=True)


def save_trajectory(folder: Path, number: int, model: GRBM, chains: Tensor) -> None:
    """Keep one of the models along training, for `TrajectoryTempering`, and chains of it (C, N)."""
    write_tensors(folder / TRAJECTORY / f"{number:08d}.safetensors", model.state_dict() | {"chains": chains})


def read_trajectory(folder: Path, up_to: int | None = None) -> list[tuple[GRBM, Tensor]]:
    """The models saved along training, at most until update ``up_to``, and chains of each, oldest first."""
    found = []
    numbered = [p for p in (folder / TRAJECTORY).glob("*.safetensors") if re.fullmatch(r"\d{8,}", p.stem)]
    for path in sorted(numbered, key=lambda path: int(path.stem)):
        if up_to is None or int(path.stem) <= up_to:
            tensors = read_tensors(path)
            chains = tensors.pop("chains", None)
            if chains is None or chains.ndim != 2:
                raise UserError(f"{path} is not a model that training kept; remove it, or train again.")
            found.append((GRBM.from_parameters(tensors, str(path)), chains))
    return found


def read(folder: Path, which: Which = "model", warn: Callable[[str], None] = lambda text: None) -> Run:
    """A run from its folder; raises UserError where something is missing or damaged.

    ``which`` weights: "model" is what training ended with (the average, where there is one), "raw" the last parameters
    themselves, "best" those of the best checkpoint. A run that still trains, or was killed, gives its newest whole one;
    ``warn`` is told of damaged ones.
    """
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is not a run (it has no {CONFIG}); give a folder that `grbm train` made.")
    config = read_config(folder)
    try:
        config.check()
    except UserError as error:
        raise UserError(f"{folder / CONFIG} is not what `grbm train` wrote: {error}") from error
    model, where = _read_model(folder, which, warn)
    data = read_data(folder)
    frame = (where == folder / WEIGHTS and data.kept) or data.frame
    if frame.transform.n_units != model.n_visible:
        raise UserError(f"{folder / DATA} does not fit {where}; are both from the same run?")
    status = read_status(folder)
    metrics = read_metrics(folder, warn)
    fitted = Fitted(frame, model)
    return Run(folder, config, fitted, data.image_shape, status, metrics, data.fingerprint, data.columns)


def _read_model(folder: Path, which: Which, warn: Callable[[str], None]) -> tuple[GRBM, Path]:
    """The weights asked for, and where they were found."""
    path = folder / WEIGHTS
    if which == "raw" and (folder / RAW_WEIGHTS).is_file():
        path = folder / RAW_WEIGHTS
    if which == "best":
        best = checkpoint.best(folder / CHECKPOINTS)
        found = [best] if best is not None else []
    else:  # while training has not ended, checkpoints are newer than any weights that an interruption left
        found = checkpoint.updates(folder / CHECKPOINTS) if read_status(folder).ended == "running" else []
    for where in found:
        try:
            saved = checkpoint.read(where)
        except checkpoint.DamagedError as error:
            warn(f"{where} is damaged ({error}) and was left out.")
            continue
        average = {} if which == "raw" else saved.part("average")
        return GRBM.from_parameters(average or saved.part("model"), str(where)), where
    if which == "best":
        raise UserError(f"{folder / CHECKPOINTS} holds no scored checkpoint; leave out --weights best.")
    if found and not path.is_file():
        raise UserError(
            f"All checkpoints in {folder / CHECKPOINTS} are damaged, and training never ended: train again."
        )
    if not path.is_file() and read_status(folder).ended == "running":
        raise UserError(
            f"{folder} has no weights yet: its training has not come to a checkpoint, or was killed before. To go on, "
            f"from the beginning where there is none: grbm resume {folder}"
        )
    return GRBM.from_parameters(read_tensors(path), str(path)), path


def read_data(folder: Path) -> Data:
    """Read ``data.safetensors``; raise UserError if it is missing or damaged."""
    data = read_tensors(folder / DATA)
    sides, fingerprint, names = data.pop("image_shape", None), data.pop(FINGERPRINT, None), data.pop(NAMES, None)
    try:
        kept = {name.removeprefix(KEPT): x for name, x in data.items() if name.startswith(KEPT)}
        frame = Frame.from_tensors(data)
        shape: Any = None if sides is None else tuple(sides.flatten().tolist())
        good = shape is None or (is_kind(ImageShape, shape) and min(shape) > 0 and shape[0] in (1, 3))
        if not good or (shape and math.prod(shape) != frame.transform.n_columns):
            raise ValueError("its shape of images is of other data")
        if fingerprint is None or not fingerprint.numel():
            raise ValueError("it has no fingerprint")
        columns = [] if names is None else json.loads(_as_text(names))
        if not is_kind(list[str], columns) or len(columns) not in (0, frame.transform.n_columns):
            raise ValueError("its names are of other columns")
        kept_frame = Frame.from_tensors(kept) if kept else None
        return Data(frame, shape, _as_text(fingerprint), kept_frame, tuple(columns))
    except (ValueError, KeyError, IndexError, RuntimeError) as error:
        raise UserError(f"{folder / DATA} is not what `grbm train` wrote; train again or restore the file.") from error


def read_metrics(folder: Path, warn: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl; ``warn`` is told how many were damaged, but for half a line at its end."""
    path = folder / METRICS
    lines = read_bytes(path).decode("utf-8", "replace").split("\n") if path.is_file() else [""]
    records = [_record(line) for line in lines]
    if damaged := sum(record is None for record in records[:-1]):
        warn(f"{path}: {damaged} of {len(lines) - 1:,} lines are damaged and were left out.")
    return [record for record in records if record]


def last_metrics(folder: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl, however long the file is; empty where there is none."""
    path = folder / METRICS
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        for tail in (1 << 16, None):
            size = file.seek(0, os.SEEK_END)
            file.seek(0 if tail is None else max(0, size - tail))
            lines = file.read().decode("utf-8", "replace").split("\n")
            if found := next(filter(None, map(_record, reversed(lines))), None):
                return found
    return {}


def _record(line: str) -> dict[str, Any] | None:
    """A line of metrics.jsonl: numbers by name, None for those that are not finite; None where it is no such line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not all(x is None or type(x) in (int, float) for x in record.values()):
        return None
    found = {name: x if x is not None and abs(x) <= LARGEST else None for name, x in record.items()}
    update = found.get("update")
    return found if type(update) is int and 0 < update < 2**63 and found.get("seconds") is not None else None


def read_status(folder: Path) -> Status:
    """How training ended; "running" where nothing says so. Raises UserError for a damaged file."""
    path = folder / STATUS
    if not path.is_file():
        return Status("running")
    try:
        content = read_json(path)
        if isinstance(content, dict) and isinstance(content.get("divergence"), dict):
            numbers = content["divergence"]
            for name in ("var", "chains_v2", "overshoot"):
                if isinstance(numbers.get(name), str):
                    numbers[name] = float(numbers[name])
        return restore(Status, content)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); train again or restore the file.") from error


def model_digest(model: GRBM) -> str:
    """A digest of the weights, by which scores know to which weights they belong."""
    return digest_of(*model.state_dict().values())
