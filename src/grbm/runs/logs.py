"""What a run tells while it trains: metrics.jsonl always, TensorBoard and Weights & Biases beside it."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from grbm.errors import UserError
from grbm.files import write_text
from grbm.runs.config import RunConfig
from grbm.runs.folder import METRICS, TENSORBOARD, WANDB, read_metrics

Record = dict[str, Any]


class Log:
    """Open for as long as a run trains.

    Parameters
    ----------
    folder : Path
        The run folder.
    config : RunConfig
        Its ``log`` says where to write.
    update : int
        Where training goes on; what an earlier attempt wrote after it is taken back.
    """

    def __init__(self, folder: Path, config: RunConfig, update: int = 0) -> None:
        path = folder / METRICS
        kept = [record for record in read_metrics(folder) if record["update"] <= update]
        write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
        self.file = path.open("a", encoding="utf-8")
        self.board = _tensorboard(folder / TENSORBOARD, update) if config.log.tensorboard else None
        self.wandb = _wandb(folder, config, config.log.wandb) if config.log.wandb else None

    def write(self, record: Record) -> None:
        """Write a line of metrics.jsonl, and its numbers as scalars elsewhere."""
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        scalars = {name: value for name, value in record.items() if name != "update" and value is not None}
        if self.board is not None:
            for name, value in scalars.items():
                self.board.add_scalar(name, value, record["update"])
        if self.wandb is not None:
            self.wandb.log(scalars, step=record["update"])

    def image(self, name: str, picture: np.ndarray, update: int) -> None:
        """A picture (H, W, 3) in [0, 1]."""
        if self.board is not None:
            self.board.add_image(name, picture, update, dataformats="HWC")
        if self.wandb is not None:
            import wandb

            self.wandb.log({name: wandb.Image(picture)}, step=update)

    def flush(self) -> None:
        """Everything to the disk: before a checkpoint that relies on it."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if self.board is not None:
            self.board.flush()

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()
        if self.wandb is not None:
            self.wandb.finish()


def _tensorboard(folder: Path, update: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(folder), purge_step=update + 1)  # type: ignore[no-untyped-call]
    return writer


def check(config: RunConfig) -> None:
    """Raise UserError where a log is asked for that cannot be written here."""
    if config.log.wandb:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise UserError(
                "--log.wandb needs Weights & Biases: pip install wandb (in a clone: uv run --extra wandb)."
            ) from error


def _wandb(folder: Path, config: RunConfig, project: str) -> Any:
    """A run of Weights & Biases, the same one again after a resume."""
    import wandb

    settings = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(config).items()}
    where = folder / WANDB / "id.txt"
    known = where.read_text(encoding="utf-8").strip() if where.is_file() else None
    run = wandb.init(project=project, name=folder.name, id=known, dir=str(folder), config=settings, resume="allow")
    write_text(where, f"{run.id}\n")
    return run
