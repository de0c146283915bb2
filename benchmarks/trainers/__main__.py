"""Every trainer on one bench: each task at equal seconds and at equal updates, three seeds, one small grid of rates.

    uv run python -m benchmarks.trainers --only isotropic anisotropic digits
    uv run python -m benchmarks.trainers --data-dir DIR --photographs bsds500_train_200.zip   # everything
    uv run python -m benchmarks.trainers --table                                              # what is measured so far

Each trainer's rate is the best of the grid on a seed of its own (100) and, but for the plane and MNIST, on validation
rows; that rate goes on to the seeds that count. The eight random mixtures take the rate of the isotropic one, one seed
each, and have one column. Seconds are those of one thread's processor time without the start: a trainer makes as many
updates as sixty of its first ones tell, and begins again with another number, up to four times, where that was off by
more than a tenth.
What is measured is kept in --out, and not measured again.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.trainers.figures import Scored, ranking
from benchmarks.trainers.methods import METHODS
from benchmarks.trainers.tasks import NAMES, Task, tasks
from grbm import GRBM, files
from grbm.samplers.engines import compiled

RATES, TUNING = (0.003, 0.01, 0.03, 0.1), 100
TRIED = 60  # updates that tell how long one takes
OFF, TRIES = 0.1, 5  # share of the seconds by which a trainer may miss them, and how often it may begin
Row = dict[str, Any]


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


def learned(task: Task, name: str, rate: float, n_updates: int, seed: int) -> tuple[GRBM, float]:
    """A machine, and seconds of the processor's time."""
    began = time.process_time()
    model = METHODS[name].learn(task, rate, n_updates, seed)
    return model, time.process_time() - began


def within_seconds(task: Task, name: str, rate: float, seed: int) -> tuple[GRBM, float, int]:
    """A machine that learned for the task's seconds, how long that was without the start, and its updates."""
    learned(task, name, rate, 2, seed)  # what is loaded or compiled once
    start = learned(task, name, rate, 2, seed)[1]
    before = TRIED, max(1e-9, learned(task, name, rate, 2 + TRIED, seed)[1] - start)
    n_updates = max(2, round(TRIED * task.seconds / before[1]))
    for left in reversed(range(TRIES)):
        model, seconds = learned(task, name, rate, n_updates, seed)
        seconds = max(1e-9, seconds - start)
        if not left or abs(seconds / task.seconds - 1) < OFF:
            break
        before, n_updates = (n_updates, seconds), updates_for(before, (n_updates, seconds), task.seconds)
    return model, seconds, n_updates


def updates_for(first: tuple[int, float], second: tuple[int, float], seconds: float) -> int:
    """How many updates take ``seconds``, by two numbers of them and their times, which may grow faster than these."""
    (n, t), (n_later, t_later) = first, second
    power = 1.0 if n == n_later else math.log(t_later / t) / math.log(n_later / n)
    return max(2, round(n_later * (seconds / t_later) ** (1 / min(max(power, 1.0), 3.0))))


def measure(task: Task, name: str, rate: float, seed: int, budget: str) -> Row:
    """Learn once, and judge; a machine that is not finite has the worst score."""
    if budget.endswith("seconds"):
        model, seconds, n_updates = within_seconds(task, name, rate, seed)
    else:
        n_updates = task.n_updates
        model, seconds = learned(task, name, rate, n_updates, seed)
    worst = -math.inf if task.more else math.inf
    sound = all(bool(p.isfinite().all()) for p in model.parameters())
    judge = task.tune if budget.startswith("tuning") else task.judge
    scores = judge(model, seed) if sound else {task.goal: worst}
    scores = {key: x if math.isfinite(x) else worst for key, x in scores.items()}
    about = {"task": task.name, "method": name, "budget": budget, "rate": rate, "seed": seed}
    return {**about, "updates": n_updates, "seconds": round(seconds, 2), **{k: _plain(x) for k, x in scores.items()}}


def _plain(x: float) -> float | None:
    """As JSON has it; None for what is not finite."""
    return float(f"{x:.6g}") if math.isfinite(x) else None


def value_of(row: Row, goal: str, more: bool) -> float:
    """The score that counts, so that more is better."""
    x = row[goal]
    return -math.inf if x is None else (x if more else -x)


def rows(task: Task, names: list[str], kept: Kept, n_seeds: int, budgets: list[str]) -> Iterator[Row]:
    """All that the task asks for, measured where it is missing."""
    is_random = task.name.startswith("random-")
    goal, more = task.goal, task.more
    for name in names:
        if task.rows.shape[1] == 2 and not METHODS[name].plane:
            continue
        for budget in ["seconds"] if is_random else budgets:
            tuning = {"method": name, "budget": f"tuning {budget}", "task": "isotropic" if is_random else task.name}
            for rate in () if is_random else RATES:
                if not kept.find(rate=rate, **tuning):
                    yield measure(task, name, rate, TUNING, f"tuning {budget}")
            tried = kept.find(**tuning)
            if not tried:
                raise SystemExit("Random mixtures take the rates of the isotropic one; measure it first.")
            rate = max(tried, key=lambda row: value_of(row, goal, more))["rate"]
            for seed in range(1 if is_random else n_seeds):
                if not kept.find(task=task.name, method=name, budget=budget, rate=rate, seed=seed):
                    yield measure(task, name, rate, seed, budget)


def scored(kept: Kept, column: str, budget: str, score: str | None = None) -> Scored:
    """Scores of a column of the tables by trainer, of the goal or another one; None for a machine that was lost."""
    found: Scored = {}
    for row in kept.find(budget=budget):
        goal = GOALS[row["task"]][0]
        if _column(row["task"]) == column and ((score or goal) in row or row[goal] is None):
            found.setdefault(row["method"], []).append(row.get(score or goal))
    return {name: found[name] for name in METHODS if name in found}


def table(kept: Kept, budget: str, score: str | None = None) -> list[str]:
    """A line a trainer: mean and standard error over seeds of each task's score, and over all random mixtures."""
    every = {column: scored(kept, column, budget, score) for column in COLUMNS}
    columns = {column: found for column, found in every.items() if found}
    lines = [f"{'at equal ' + budget:<40}" + "".join(f"{column:>22}" for column in columns)]
    for name in METHODS:
        cells = [_cell(found.get(name, [])) for found in columns.values()]
        if any(cells):
            lines.append(f"{name:<40}" + "".join(f"{cell or '–':>22}" for cell in cells))
    return lines


def drawn(kept: Kept, budgets: list[str]) -> Iterator[tuple[str, Figure]]:
    """A figure for each column of the tables that has scores, and its name."""
    for column in COLUMNS:
        goal, more = next(entry for task, entry in GOALS.items() if _column(task) == column)
        at = {budget: found for budget in budgets if (found := scored(kept, column, budget))}
        if at:
            yield f"trainers-{column.replace(' ', '-')}.png", ranking(column, goal, more, at)


def _column(task: str) -> str:
    return "random mixtures" if task.startswith("random-") else task


def _cell(found: list[float | None]) -> str:
    good = [x for x in found if x is not None]
    if not found:
        return ""
    lost = f" ({len(found) - len(good)} lost)" if len(good) < len(found) else ""
    if not good:
        return "lost"
    error = f" ± {statistics.stdev(good) / len(good) ** 0.5:.2g}" if len(good) > 1 else ""
    return f"{statistics.mean(good):.4g}{error}{lost}"


GOALS = {
    **{name: ("KL", False) for name in NAMES if name.startswith(("iso", "aniso", "random"))},
    "digits": ("nats", True),
    "patches": ("nats", True),
    "mnist": ("Fréchet", False),
}
COLUMNS = list(dict.fromkeys(map(_column, GOALS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=None, help="tasks")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--budgets", nargs="+", choices=("seconds", "updates"), default=["seconds", "updates"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shrink", type=float, default=1.0, help="divide seconds and updates: a look, not a result")
    parser.add_argument("--figures", type=Path, default=None, help="folder for a figure of each data set")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--photographs", type=Path, default=None)
    parser.add_argument("--fid-weights", type=Path, default=None, help="its .npz: Inception too sees MNIST's images")
    parser.add_argument("--out", type=Path, default=Path("runs/trainers"))
    parser.add_argument("--table", action="store_true", help="only what is measured so far")
    parser.add_argument("--score", default=None, help="that the tables show instead: mass, near, recall")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(options.out / ("results.jsonl" if options.shrink == 1 else f"shrink-{options.shrink:g}.jsonl"))
    if not options.table:
        compiled.library()  # compiled before any clock runs
        for task in tasks(options.only or NAMES, options.data_dir, options.photographs, options.fid_weights):
            n_updates = max(2, round(task.n_updates / options.shrink))
            task = task._replace(seconds=task.seconds / options.shrink, n_updates=n_updates)
            for row in rows(task, options.methods, kept, options.seeds, options.budgets):
                kept.add(row)
                print(json.dumps(row, ensure_ascii=False), flush=True)
    for budget in options.budgets:
        print("\n".join(["", *table(kept, budget, options.score)]))
    if options.figures is not None:
        options.figures.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn(kept, options.budgets):
            with files.replacing(options.figures / name) as temporary:
                figure.savefig(temporary, dpi=110)


if __name__ == "__main__":
    main()
