"""`grbm list`: the runs in a folder, a line each."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from grbm.core.errors import UserError
from grbm.core.streams import aligned, plain
from grbm.core.typed import is_kind, read_json
from grbm.report.words import duration
from grbm.runs import CONFIG, EVALUATION, last_metrics, read_config, read_status
from grbm.runs.claiming import is_held

DEEPEST = 4  # folders in folders that are looked into


class Listed(NamedTuple):
    """A run at a glance."""

    folder: str
    data: str
    ended: str
    updates: int
    n_updates: int
    n_hidden: int
    seconds: float | None
    energy_distance: float | None  # of chains and data, when it was last logged
    log_likelihood: float | None  # held out, as `grbm evaluate` found it


def runs_in(folder: Path) -> Iterator[Listed]:
    """The runs in ``folder`` and the folders in it, by name; what is not a run, or damaged, is passed over."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders.sort()
        if len(here.relative_to(folder).parts) >= DEEPEST:
            folders.clear()
        if CONFIG not in files:
            continue
        try:
            config, status, last = read_config(here), read_status(here), last_metrics(here)
            ended = status.ended if status.ended != "running" or is_held(here) else "killed"
        except (UserError, OSError):
            continue
        folders.clear()
        name = config.data.name if config.data is not None else config.dataset.name
        sizes = max(status.update, last.get("update", 0)), config.train.n_updates, config.model.n_hidden
        logged = last.get("seconds"), last.get("energy_distance")
        yield Listed(str(here), name, ended, *sizes, *logged, _likelihood(here))


def _likelihood(folder: Path) -> float | None:
    try:
        found = read_json(folder / EVALUATION)
        number: Any = found.get("log_likelihood_test") if found.get("log_z_converged") is not False else None
    except (OSError, ValueError, AttributeError):
        return None
    return float(number) if is_kind(float, number) and math.isfinite(number) else None


def table(listed: list[Listed]) -> Iterator[str]:
    """The list as lines of text."""
    rows = [("run", "data", "state", "updates", "hidden", "time", "energy distance", "held-out nats")]
    for run in listed:
        done = f"{run.updates:,}" + ("" if run.updates >= run.n_updates else f" of {run.n_updates:,}")
        distance, nats = ("–" if x is None else f"{x:.3g}" for x in (run.energy_distance, run.log_likelihood))
        took = "–" if run.seconds is None else duration(run.seconds)
        rows.append((plain(run.folder), plain(run.data), run.ended, done, f"{run.n_hidden:,}", took, distance, nats))
    return aligned(rows)
