"""Checkpoints of a TrainState: folders of two files, complete or absent, whose every byte is under a checksum.

    checkpoints/update-00001000/state.safetensors    parameters, average, optimiser, persistent chains
                                state.json           update, seed, numbers, notes, callbacks; checksums of both

What is read back is what was written, or it is refused; nothing in a file is executed.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.optim import Optimizer

from grbm.core.distributed import ALONE, ProcessGroup
from grbm.core.errors import UserError
from grbm.core.files import encode, flush_folder
from grbm.core.typed import is_kind, read_bytes, read_json
from grbm.learning.state import KINDS as STATE
from grbm.learning.state import TrainState

TENSORS, RECORD, PREFIX, PARTIAL = "state.safetensors", "state.json", "update-", ".partial-"
FORMAT = 3
RATES = ("lr", "initial_lr")  # numbers in an optimizer's group that training multiplies
CALLBACK = "callback"


class DamagedError(Exception):
    """A checkpoint that is not what was written; the message says how."""


class OtherVersionError(DamagedError):
    """A checkpoint of a version of grbm that noted other things."""


class Settings(NamedTuple):
    """The part of an optimiser's state that is no tensor: settings of its groups, numbers by parameter."""

    groups: list[dict[str, Any]]
    numbers: dict[str, dict[str, Any]]
    name: str | None = None  # of its class; None in checkpoints of versions that did not note it


KINDS: dict[str, Any] = {"run": str, "update": int, "seed": int, "tensors": str, "notes": dict[str, Any]}
KINDS |= {"callbacks": dict[str, dict[str, Any]], "optimizer": Settings}  # of the entries of a record


class Checkpoint(NamedTuple):
    """A checkpoint read back and verified."""

    folder: Path
    update: int
    tensors: dict[str, Tensor]
    record: dict[str, Any]

    def part(self, kind: str, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Return the tensors of a ``kind``, such as "model", by name; empty if there are none."""
        return {k.removeprefix(f"{kind}."): x.to(device) for k, x in self.tensors.items() if k.startswith(f"{kind}.")}

    def of_callback(self, name: str, device: torch.device) -> dict[str, Any]:
        """Return the saved state of the callback ``name``; raise KeyError if there is none."""
        return self.record["callbacks"][name] | self.part(f"{CALLBACK}.{name}", device)


def save(
    folder: Path,
    state: TrainState,
    *,
    run: str = "",
    notes: dict[str, Any] | None = None,
    callbacks: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    group: ProcessGroup = ALONE,
) -> Path:
    """Write ``state`` to ``folder/update-…`` and return that path; all processes must call it, the leader writes.

    ``run`` identifies the run: a checkpoint of another is refused when it is read. ``notes`` are anything that JSON
    holds, for ``Checkpoint.record["notes"]``. ``callbacks`` are numbers, texts and tensors by name, for
    `Checkpoint.of_callback`. Raises OSError if the disk is full or not writable; what was there before stays.
    """
    target = folder / _name(state.update)
    persistent = None if state.persistent is None else group.all_gather(state.persistent)
    if not group.is_leader:
        return target
    optimizer = state.optimizer.state_dict()
    parts: dict[str, Mapping[str, Any]] = {f"optimizer.{index}": x for index, x in optimizer["state"].items()}
    for name, entries in callbacks.items():  # may share memory with the state, which the format does not allow
        parts[f"{CALLBACK}.{name}"] = {k: x.clone() for k, x in entries.items() if isinstance(x, Tensor)}
    tensors = {f"{kind}.{k}": x for kind, part in parts.items() for k, x in part.items() if isinstance(x, Tensor)}
    tensors |= replace(state, persistent=persistent).tensors()
    content = encode(tensors)
    numbers = {index: entries for index, entries in _numbers(optimizer["state"]).items() if entries}
    record = {
        "format": FORMAT,
        "run": run,
        "update": state.update,
        "seed": state.seed,
        "optimizer": {
            "name": _name_of(state.optimizer),
            "groups": optimizer["param_groups"],
            "numbers": numbers,
        },
        "notes": notes or {},
        "callbacks": _numbers(callbacks),
        "tensors": hashlib.sha256(content).hexdigest(),
    }
    record["checksum"] = _checksum(record)
    if target.exists() and not _removable(target, run):
        raise UserError(f"{target} is there and not a checkpoint of this run; move it away, then resume the run.")
    _write_folder(target, {TENSORS: content, RECORD: (json.dumps(record, indent=1) + "\n").encode()})
    return target


def _name_of(optimizer: Optimizer) -> str:
    """The class of an optimizer; ours is PyTorch's SGD, made fast."""
    return type(optimizer).__name__.removeprefix("Plain")


def _numbers(parts: Mapping[Any, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries of parts that are no tensors, such as numbers, which go into the record."""
    return {str(k): {name: x for name, x in part.items() if not isinstance(x, Tensor)} for k, part in parts.items()}


def _write_folder(target: Path, files: dict[str, bytes]) -> None:
    """All files, flushed to the disk, under a temporary name; then one rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=PARTIAL))
    try:
        temporary.chmod(0o755)
        for name, content in files.items():
            with (temporary / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        flush_folder(temporary)
        if target.exists():  # one of the same update: damaged, or equal to this
            remove(target)
        temporary.replace(target)
        flush_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _checksum(record: dict[str, Any]) -> str:
    rest = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def updates(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, newest first, good or not."""
    return sorted((path for path in folder.glob(f"{PREFIX}*") if _number(path) >= 0), key=_number, reverse=True)


def _name(update: int) -> str:
    return f"{PREFIX}{update:08d}"


def _number(path: Path) -> int:
    """The update that a checkpoint's name tells; -1 for what is not called like one."""
    match = re.fullmatch(rf"{PREFIX}(\d{{8,}})", path.name)
    return int(match[1]) if match else -1


def _is_plain(path: Path) -> bool:
    """Whether ``path`` is a folder, and holds nothing but files called as those of a checkpoint."""
    return not path.is_symlink() and path.is_dir() and all(p.name in (TENSORS, RECORD) for p in path.iterdir())


def _removable(path: Path, run: str) -> bool:
    """Whether ``path`` is a checkpoint of this run, or a damaged one in the run's own folder, and nothing besides."""
    if not _is_plain(path):
        return False
    try:
        return bool(read_record(path)["run"] == run)
    except DamagedError:
        return not path.parent.is_symlink()


def read_record(path: Path) -> dict[str, Any]:
    """The JSON half of a checkpoint, verified; raises DamagedError."""
    try:
        record: dict[str, Any] = read_json(path / RECORD)
        if record["checksum"] != _checksum(record):
            raise DamagedError(f"{RECORD} does not match its checksum")
        if (version := record["format"]) != FORMAT:
            raise OtherVersionError(f"it has format {version}, of another version of grbm; this one reads {FORMAT}")
        if not all(is_kind(kind, record.get(name)) for name, kind in KINDS.items()):
            raise DamagedError(f"{RECORD} is not what was written")
        if path.name != _name(record["update"]):
            raise DamagedError(f"it holds update {record['update']}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{RECORD} cannot be read ({type(error).__name__})") from error
    return record


def read(path: Path, *, run: str | None = None) -> Checkpoint:
    """One checkpoint, verified; raises DamagedError where it is not what was written, or of another run."""
    record = read_record(path)
    if run is not None and record["run"] != run:
        raise DamagedError("it belongs to a run with other settings")
    try:
        content = read_bytes(path / TENSORS)
        if hashlib.sha256(content).hexdigest() != record["tensors"]:
            raise DamagedError(f"{TENSORS} does not match its checksum")
        tensors = safetensors.torch.load(content)
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise DamagedError(f"{TENSORS} cannot be read ({type(error).__name__})") from error
    return Checkpoint(path, record["update"], tensors, record)


def newest(
    folder: Path, state: TrainState, *, run: str = "", warn: Callable[[str], None] = lambda message: None
) -> Checkpoint | None:
    """The newest good checkpoint that fits ``state``; None where there are none at all.

    A damaged one is named to ``warn`` and the one before it is tried. Raises UserError if all are damaged.
    """
    found, why = updates(Path(folder)), ""
    for path in found:
        try:
            checkpoint = read(path, run=run)
            _check_fit(checkpoint, state)
            return checkpoint
        except OtherVersionError as error:
            raise UserError(f"{path} cannot be resumed from: {error}. Use that version, or train again.") from error
        except DamagedError as error:
            why = why or str(error)
            warn(f"The checkpoint {path} is not usable: {error}; trying the one before it.")
    if found:
        raise UserError(
            f"No checkpoint in {folder} is usable; of the newest, {why}. Restore one from a copy, or train again."
        )
    return None


def _check_fit(checkpoint: Checkpoint, state: TrainState) -> None:
    """Every tensor where one belongs, in its shape and dtype."""
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    try:
        state.refuse_unfit(checkpoint.tensors)
    except ValueError as error:
        raise DamagedError(str(error)) from error
    for name, tensor in checkpoint.tensors.items():
        kind, _, rest = name.partition(".")
        good = kind in (*STATE, CALLBACK)  # the callback tells what is its own
        if kind == "optimizer":
            index = rest.partition(".")[0]
            good = index.isdigit() and int(index) < len(parameters)
            good = good and tensor.shape in ((), parameters[int(index)].shape)
        if not good:
            raise DamagedError(f"{name} of shape {tuple(tensor.shape)} does not fit the model")
    own, groups = state.optimizer.param_groups, checkpoint.record["optimizer"]["groups"]
    name, saved = _name_of(state.optimizer), checkpoint.record["optimizer"].get("name")
    if saved not in (None, name):
        raise DamagedError(f"it is of another optimizer, {saved} and not {name}")
    for ours, theirs in zip(own, groups, strict=False):
        differ = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
        missing, more = (sorted(names - {"initial_lr"}) for names in differ)
        if missing and more:  # versions of one optimizer differ by what the newer one has
            raise DamagedError(f"it is of another optimizer, with {', '.join(more)}")
    rates = [x for group in checkpoint.record["optimizer"]["groups"] for k, x in group.items() if k in RATES]
    if not all(is_kind(float, rate) for rate in rates):
        raise DamagedError("its learning rates are not numbers")


def restore(state: TrainState, checkpoint: Checkpoint, group: ProcessGroup = ALONE) -> None:
    """Put ``state`` where the checkpoint was taken, on the model's device, with this process's part of the chains."""
    record = checkpoint.record
    state.load(checkpoint.tensors)
    state.seed, state.update = record["seed"], record["update"]
    if state.persistent is not None:
        state.persistent = state.persistent[..., group.part(state.persistent.shape[-2]), :].contiguous()
    entries: dict[int, dict[str, Any]] = {int(k): dict(v) for k, v in record["optimizer"]["numbers"].items()}
    for name, value in checkpoint.part("optimizer").items():
        index, key = name.split(".", 1)
        entries.setdefault(int(index), {})[key] = value  # the optimiser knows where: Adam counts its steps on the CPU
    state.optimizer.load_state_dict({"state": entries, "param_groups": record["optimizer"]["groups"]})


def prune(folder: Path, keep: int, update: int, run: str = "") -> None:
    """Remove what kills left, and checkpoints up to ``update`` but the newest ``keep`` and the best.

    Those beyond it are damaged, or training would have gone on from them: they must not take the place of good ones.
    What is not of this run stays.
    """
    clean(folder)
    kept = best(folder)
    for path in [path for path in updates(folder) if _number(path) <= update][keep:]:
        if path != kept and _removable(path, run):
            remove(path)


def clean(folder: Path) -> None:
    """Remove what kills left of checkpoints that were being written or removed."""
    for path in folder.glob(f"{PARTIAL}*"):
        if _is_plain(path):
            shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a checkpoint by a rename first: a kill in the middle leaves rubbish by name and not half a checkpoint."""
    rubbish = path.with_name(f"{PARTIAL}{path.name}-{time.time_ns()}")
    path.replace(rubbish)
    shutil.rmtree(rubbish, ignore_errors=True)


def best(folder: Path) -> Path | None:
    """The checkpoint whose note "score" is lowest."""
    scores = []
    for path in updates(folder):
        with suppress(DamagedError):
            if is_kind(float, score := read_record(path)["notes"].get("score")):
                scores.append((score, path))
    return min(scores)[1] if scores else None
