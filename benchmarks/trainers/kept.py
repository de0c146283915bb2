"""What is measured so far, and the rates that it speaks for."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks.trainers.tasks import NAMES
from grbm.core import files

RATES, FIRST = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), 0.01
BUDGETS = ("seconds", "updates")
TUNING = (100, 101)  # seeds by which rates are chosen: the first, and in the plane both
Row = dict[str, Any]


def column_of(task: str) -> str:
    return "random mixtures" if task.startswith("random-") else task


GOALS = {  # the score that counts, and whether more of it is better
    **{name: ("KL", False) for name in NAMES if name.startswith(("iso", "aniso", "random"))},
    "digits": ("nats", True),
    "patches": ("nats", True),
    "mnist": ("Fréchet", False),
}


class Kept:
    """Results as lines of a file, each found by what it was made with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = [json.loads(x) for x in path.read_text().splitlines()] if path.is_file() else []

    def find(self, **key: object) -> list[Row]:
        return [row for row in self.rows if all(row.get(name) == value for name, value in key.items())]

    def add(self, row: Row) -> None:
        self.rows.append(row)
        files.write_text(self.path, "".join(json.dumps(x) + "\n" for x in self.rows))


def value_of(row: Row, goal: str, more: bool) -> float:
    """The score that counts, so that more is better."""
    x = row[goal]
    return -math.inf if x is None else (x if more else -x)


def next_rate(tried: dict[float, float], elsewhere: dict[float, float]) -> float | None:
    """The rate to try after those with the given values, more of which is better; None where the best is found.

    The best ``elsewhere`` is tried too, where rates were tried there: between two good ones may lie a bad one.
    """
    if elsewhere and best_rate(elsewhere) not in tried:
        return best_rate(elsewhere)
    if not tried:
        return FIRST
    best = RATES.index(best_rate(tried))
    neighbours = (RATES[k] for k in (best + 1, best - 1) if 0 <= k < len(RATES))
    return next((rate for rate in neighbours if rate not in tried), None)


def best_rate(tried: dict[float, float]) -> float:
    """Of equal ones the smallest."""
    return max(tried, key=lambda rate: (tried[rate], -rate))


def values(kept: Kept, task: str, name: str, budget: str) -> dict[float, float]:
    """By rate the mean over the tuning seeds of the score that counts, so that more is better; where all seeds are."""
    task = "isotropic" if task.startswith("random-") else task
    tried = kept.find(task=task, method=name, budget=f"tuning {budget}")
    found = {rate: [value_of(row, *GOALS[task]) for row in tried if row["rate"] == rate] for rate in RATES}
    return {rate: statistics.mean(x) for rate, x in found.items() if len(x) == len(tuning_seeds(task))}


def tuning_seeds(task: str) -> tuple[int, ...]:
    return TUNING if GOALS[task][0] == "KL" else TUNING[:1]
