"""Logs of a run that trains: metrics.jsonl always, TensorBoard and Weights & Biases beside it."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from grbm.core.errors import needed_by
from grbm.core.files import write_text
from grbm.runs.config import RunConfig
from grbm.runs.folder import METRICS, TENSORBOARD, WANDB, read_metrics

Record = dict[str, Any]


class Log:
    """Log of a run in training, written where ``config.log`` says, from ``update`` on.

    What an earlier attempt wrote after this update is taken back; ``warn`` is told of damaged lines, which go.
    """

    def __init__(self, folder: Path, config: RunConfig, update: int, warn: Callable[[str], None]) -> None:
        path = folder / METRICS
        kept = [record for record in read_metrics(folder, warn) if record["update"] <= update]
        write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
        self.file = path.open("a", encoding="utf-8")
        self.board = Board(folder / TENSORBOARD, update) if config.log.tensorboard else None
        self.wandb = _wandb(folder, config, config.log.wandb) if config.log.wandb else None

    @property
    def lost(self) -> bool:
        """Whether metrics.jsonl is no longer the file that is written to."""
        with suppress(OSError):
            return not os.path.samestat(os.fstat(self.file.fileno()), os.stat(self.file.name))
        return True

    def write(self, record: Record) -> None:
        """Write a line of metrics.jsonl, and its numbers as scalars elsewhere."""
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        scalars = {name: value for name, value in record.items() if name != "update" and value is not None}
        if self.board is not None:
            self.board.write("scalar", scalars, record["update"])
        if self.wandb is not None:
            self.wandb.log(scalars, step=record["update"])

    def image(self, name: str, picture: np.ndarray, update: int) -> None:
        """A picture (H, W, 3) in [0, 1]."""
        if self.board is not None:
            self.board.write("image", {name: picture}, update, dataformats="HWC")
        if self.wandb is not None:
            import wandb

            self.wandb.log({name: wandb.Image(picture)}, step=update)

    def flush(self) -> None:
        """Everything to the disk: before a checkpoint that relies on it."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if self.board is not None:
            os.fsync(self.board.file.fileno())

    def close(self) -> None:
        """Close all files; an error counts for nothing, since all that counts was flushed before."""
        with suppress(OSError):
            self.file.close()
            if self.board is not None:
                self.board.file.close()
            if self.wandb is not None:
                self.wandb.finish()


class Board:
    """A file of events for TensorBoard, which a resumed run adds another to.

    Written here and now: TensorBoard's own writer does so in a thread, whose errors, of a full disk, go astray.
    """

    def __init__(self, folder: Path, update: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self.event = Event
        self.file = (folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}").open("wb")
        self.records: Any = RecordWriter(self.file)
        self._write(file_version="brain.Event:2")
        self._write(step=update + 1, session_log=SessionLog(status=SessionLog.START))  # what came after is taken back

    def write(self, kind: str, values: Mapping[str, Any], update: int, **how: str) -> None:
        """Values by name, as summaries of a ``kind``: "scalar", or "image"."""
        from torch.utils.tensorboard import summary

        for name, value in values.items():
            self._write(step=update, summary=getattr(summary, kind)(name, value, **how))

    def _write(self, **content: Any) -> None:
        self.records.write(self.event(wall_time=time.time(), **content).SerializeToString())
        self.file.flush()


def check(config: RunConfig) -> None:
    """Raise UserError where a log is asked for that cannot be written here."""
    if config.log.wandb:
        with needed_by("--log.wandb", "wandb", "wandb"):
            import wandb  # noqa: F401


def _wandb(folder: Path, config: RunConfig, project: str) -> Any:
    """A run of Weights & Biases, the same one again after a resume."""
    import wandb

    settings = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(config).items()}
    where = folder / WANDB / "id.txt"
    known = where.read_text(encoding="utf-8").strip() if where.is_file() else None
    run = wandb.init(project=project, name=folder.name, id=known, dir=str(folder), config=settings, resume="allow")
    write_text(where, f"{run.id}\n")
    return run
