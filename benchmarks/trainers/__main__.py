"""Every trainer on one bench: each task at equal seconds and at equal updates, three seeds, one small grid of rates.

    uv run python -m benchmarks.trainers --only isotropic anisotropic digits
    uv run python -m benchmarks.trainers --data-dir DIR --photographs bsds500_train_200.zip   # everything
    uv run python -m benchmarks.trainers --table                                              # what is measured so far

Each trainer's rate is the best on seeds of its own (100, and 101 in the plane) and, but for the plane and MNIST, on
validation rows: from 0.01, or the best of the other budget, the rates go by factors of about three, until the best
has been tried with both its neighbours, and so has what is best at the other budget; it goes on to the seeds that
count. The eight random mixtures take the rate of the isotropic one, one seed each, and have one column. Seconds are
those of one thread's processor time without the start that all have: a trainer makes as many updates as an earlier
run tells, and begins again with another number, up to four times, where that was off by more than a tenth. One that
diverges is judged by what it had before. What is measured is kept in --out, and not measured again.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.trainers.figures import Scored, ranking
from benchmarks.trainers.kept import (
    BUDGETS,
    GOALS,
    Kept,
    Row,
    best_rate,
    column_of,
    next_rate,
    tuning_seeds,
    values,
)
from benchmarks.trainers.measuring import earlier, measure
from benchmarks.trainers.methods import METHODS
from benchmarks.trainers.tasks import NAMES, Task, tasks
from grbm.core import files
from grbm.samplers.engines import compiled


def rows(task: Task, names: list[str], kept: Kept, n_seeds: int, budgets: list[str]) -> Iterator[Row]:
    """All that the task asks for, measured where it is missing."""
    is_random = task.name.startswith("random-")

    def made(name: str, rate: float, seed: int, budget: str) -> Iterator[Row]:
        if not kept.find(task=task.name, method=name, budget=budget, rate=rate, seed=seed):
            yield measure(task, name, rate, seed, budget, earlier(kept, task, name))

    def missing(name: str, budget: str) -> float | None:
        """A rate to be tried, at equal seconds and at equal updates the best of the other too."""
        other = {} if is_random else values(kept, task.name, name, next(b for b in BUDGETS if b != budget))
        return next_rate(values(kept, task.name, name, budget), other)

    for name in names:
        asked = [budget for budget in (["seconds"] if is_random else budgets) if METHODS[name].learns(task, budget)]
        while (found := next(((b, rate) for b in asked if (rate := missing(name, b)) is not None), None)) is not None:
            if is_random:
                raise SystemExit("Random mixtures take the rates of the isotropic one; measure it first.")
            budget, rate = found
            for seed in tuning_seeds(task.name):
                yield from made(name, rate, seed, f"tuning {budget}")
        for budget in asked:
            best = best_rate(values(kept, task.name, name, budget))
            for seed in range(1 if is_random else n_seeds):
                yield from made(name, best, seed, budget)


def scored(kept: Kept, column: str, budget: str, score: str | None = None) -> Scored:
    """Scores of a column of the tables by trainer, of the goal or another one; None for a machine that was lost."""
    found: Scored = {name: [] for name in METHODS}
    for name in METHODS:
        for task in (task for task in GOALS if column_of(task) == column):
            goal, tried = GOALS[task][0], values(kept, task, name, budget)
            same = kept.find(task=task, method=name, budget=budget, rate=best_rate(tried)) if tried else []
            found[name] += [row.get(score or goal) for row in same if (score or goal) in row or row[goal] is None]
    return {name: scores for name, scores in found.items() if scores}


def table(kept: Kept, budget: str, columns: list[str], scores: list[str] | None) -> list[str]:
    """A line a trainer: mean and standard error over seeds of each task's scores, and over all random mixtures.

    At its end stands where the trainer is from.
    """
    every = {(column, score): scored(kept, column, budget, score) for column in columns for score in scores or [None]}
    shown = {key: found for key, found in every.items() if any(x is not None for xs in found.values() for x in xs)}
    titles = [" ".join(filter(None, key)) for key in shown]
    lines = [f"{'at equal ' + budget:<40}" + "".join(f"{title:>22}" for title in titles)]
    for name in METHODS:
        cells = [_cell(found.get(name, [])) for found in shown.values()]
        if any(cells):
            line = "".join(f"{cell or '–':>22}" for cell in cells)
            lines.append(f"{name:<40}{line}   {METHODS[name].source}")
    return lines


def drawn(kept: Kept, budgets: list[str], columns: list[str]) -> Iterator[tuple[str, Figure]]:
    """A figure for each column of the tables that has scores, and its name."""
    for column in columns:
        goal, more = next(entry for task, entry in GOALS.items() if column_of(task) == column)
        at = {budget: found for budget in budgets if (found := scored(kept, column, budget))}
        if at:
            yield f"trainers-{column.replace(' ', '-')}.png", ranking(column, goal, more, at)


def _cell(found: list[float | None]) -> str:
    good = [x for x in found if x is not None]
    if not found:
        return ""
    lost = f" ({len(found) - len(good)} lost)" if len(good) < len(found) else ""
    if not good:
        return "lost"
    error = f" ± {statistics.stdev(good) / len(good) ** 0.5:.2g}" if len(good) > 1 else ""
    return f"{statistics.mean(good):.4g}{error}{lost}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=None, help="tasks")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shrink", type=float, default=1.0, help="divide seconds and updates: a look, not a result")
    parser.add_argument("--figures", type=Path, default=None, help="folder for a figure of each data set")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--photographs", type=Path, default=None)
    parser.add_argument("--fid-weights", type=Path, default=None, help="its .npz: Inception too sees MNIST's images")
    parser.add_argument("--out", type=Path, default=Path("runs/trainers"))
    parser.add_argument("--table", action="store_true", help="only what is measured so far")
    parser.add_argument("--scores", nargs="+", default=None, help="that the tables show instead: mass, near, recall")
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
    columns = list(dict.fromkeys(column_of(name) for name in options.only or NAMES))
    for budget in options.budgets:
        print("\n".join(["", *table(kept, budget, columns, options.scores)]))
    if options.figures is not None:
        options.figures.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn(kept, options.budgets, columns):
            with files.replacing(options.figures / name) as temporary:
                figure.savefig(temporary, dpi=110)


if __name__ == "__main__":
    main()
