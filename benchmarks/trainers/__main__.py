"""Every trainer on one bench: each task at equal seconds and at equal updates, three seeds, one small grid of rates.

    uv run python -m benchmarks.trainers --only isotropic anisotropic digits
    uv run python -m benchmarks.trainers --data-dir DIR --photographs bsds500_train_200.zip   # everything
    uv run python -m benchmarks.trainers --table                                              # what is measured so far

Each trainer's rate is the best on seeds of its own (100, and 101 in the plane) and, but for the plane and MNIST, on
validation rows: from 0.01 the rates go by factors of about three, until the best has been tried with both its
neighbours; it goes on to the seeds that count. The eight random mixtures take the rate of the isotropic one, one seed
each, and have one column. Seconds are those of one thread's processor time without the start that all have: a trainer
makes as many updates as an earlier run tells, and begins again with another number, up to four times, where that was
off by more than a tenth. One that diverges is judged by what it had before.
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
from benchmarks.trainers.loops import Learned
from benchmarks.trainers.methods import METHODS
from benchmarks.trainers.tasks import NAMES, Task, tasks
from grbm import files
from grbm.samplers.engines import compiled

RATES, FIRST = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), 0.01
TUNING = (100, 101)  # seeds by which rates are chosen: the first, and in the plane both
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


def learned(task: Task, name: str, rate: float, n_updates: int, seed: int) -> tuple[Learned, float]:
    """What a trainer makes of a task, and seconds of the processor's time."""
    began = time.process_time()
    found = METHODS[name].learn(task, rate, n_updates, seed)
    return found, time.process_time() - began


def within_seconds(
    task: Task, name: str, rate: float, seed: int, before: tuple[int, float] | None = None
) -> tuple[Learned, float]:
    """What it makes of a task in the task's seconds, and how long that was without making the machine.

    ``before`` has the updates and the seconds of another run.
    """
    began = time.process_time()
    task.machine(seed)
    start = time.process_time() - began
    if before is None:
        learned(task, name, rate, 2, seed)  # what is loaded once
        before = TRIED, max(1e-9, learned(task, name, rate, TRIED, seed)[1] - start)
    n_updates = max(2, round(before[0] * task.seconds / before[1]))
    for left in reversed(range(TRIES)):
        found, seconds = learned(task, name, rate, n_updates, seed)
        seconds = max(1e-9, seconds - start)
        if not left or found.n_updates < n_updates or abs(seconds / task.seconds - 1) < OFF:
            break
        before, n_updates = (n_updates, seconds), updates_for(before, (n_updates, seconds), task.seconds)
    return found, seconds


def updates_for(first: tuple[int, float], second: tuple[int, float], seconds: float) -> int:
    """How many updates take ``seconds``, by two numbers of them and their times, which may grow faster than these."""
    (n, t), (n_later, t_later) = first, second
    power = 1.0 if n == n_later else math.log(t_later / t) / math.log(n_later / n)
    return max(2, round(n_later * (seconds / t_later) ** (1 / min(max(power, 1.0), 3.0))))


def measure(task: Task, name: str, rate: float, seed: int, budget: str, before: tuple[int, float] | None = None) -> Row:
    """Learn once, and judge; a machine that is not finite has the worst score."""
    if budget.endswith("seconds"):
        (model, n_updates), seconds = within_seconds(task, name, rate, seed, before)
    else:
        (model, n_updates), seconds = learned(task, name, rate, task.n_updates, seed)
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


def next_rate(tried: dict[float, float]) -> float | None:
    """The rate to try after those with the given values, more of which is better; None where the best is found."""
    if not tried:
        return FIRST
    best = RATES.index(best_rate(tried))
    near = (RATES[k] for k in (best + 1, best - 1) if 0 <= k < len(RATES))
    return next((rate for rate in near if rate not in tried), None)


def best_rate(tried: dict[float, float]) -> float:
    """Of equal ones the smallest."""
    return max(tried, key=lambda rate: (tried[rate], -rate))


def rows(task: Task, names: list[str], kept: Kept, n_seeds: int, budgets: list[str]) -> Iterator[Row]:
    """All that the task asks for, measured where it is missing."""
    is_random = task.name.startswith("random-")

    def made(name: str, rate: float, seed: int, budget: str) -> Iterator[Row]:
        if not kept.find(task=task.name, method=name, budget=budget, rate=rate, seed=seed):
            yield measure(task, name, rate, seed, budget, near(kept, task, name))

    for name in names:
        for budget in ["seconds"] if is_random else budgets:
            if not METHODS[name].learns(task, budget):
                continue
            while (rate := next_rate(tried := values(kept, task.name, name, budget))) is not None:
                if is_random:
                    raise SystemExit("Random mixtures take the rates of the isotropic one; measure it first.")
                for seed in tuning_seeds(task.name):
                    yield from made(name, rate, seed, f"tuning {budget}")
            for seed in range(1 if is_random else n_seeds):
                yield from made(name, best_rate(tried), seed, budget)


def values(kept: Kept, task: str, name: str, budget: str) -> dict[float, float]:
    """By rate the mean over the tuning seeds of the score that counts, so that more is better; where all seeds are."""
    task = "isotropic" if task.startswith("random-") else task
    tried = kept.find(task=task, method=name, budget=f"tuning {budget}")
    found = {rate: [value_of(row, *GOALS[task]) for row in tried if row["rate"] == rate] for rate in RATES}
    return {rate: statistics.mean(x) for rate, x in found.items() if len(x) == len(tuning_seeds(task))}


def tuning_seeds(task: str) -> tuple[int, ...]:
    return TUNING if GOALS[task][0] == "KL" else TUNING[:1]


def near(kept: Kept, task: Task, name: str) -> tuple[int, float] | None:
    """Updates and seconds of the last run that kept to the seconds."""
    same = kept.find(task=task.name, method=name)
    kept_to = [row for row in same if abs(row["seconds"] / task.seconds - 1) < OFF]
    return (kept_to[-1]["updates"], kept_to[-1]["seconds"]) if kept_to else None


def scored(kept: Kept, column: str, budget: str, score: str | None = None) -> Scored:
    """Scores of a column of the tables by trainer, of the goal or another one; None for a machine that was lost."""
    found: Scored = {}
    for name in METHODS:
        for task, (goal, _) in GOALS.items():
            tried = values(kept, task, name, budget) if _column(task) == column else {}
            same = kept.find(task=task, method=name, budget=budget, rate=best_rate(tried)) if tried else []
            scores = [row.get(score or goal) for row in same if (score or goal) in row or row[goal] is None]
            if scores:
                found.setdefault(name, []).extend(scores)
    return found


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
