"""One trainer on one task: within the task's seconds or for its updates, and how it is judged."""

import math
import time

from benchmarks.trainers.kept import Kept, Row
from benchmarks.trainers.loops import Learned
from benchmarks.trainers.methods import METHODS
from benchmarks.trainers.tasks import Task

TRIED = 60  # updates that tell how long one takes
OFF, TRIES = 0.1, 5  # share of the seconds by which a trainer may miss them, and how often it may begin


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


def earlier(kept: Kept, task: Task, name: str) -> tuple[int, float] | None:
    """Updates and seconds of the last run that kept to the seconds."""
    same = kept.find(task=task.name, method=name)
    kept_to = [row for row in same if abs(row["seconds"] / task.seconds - 1) < OFF]
    return (kept_to[-1]["updates"], kept_to[-1]["seconds"]) if kept_to else None


def _plain(x: float) -> float | None:
    """As JSON has it; None for what is not finite."""
    return float(f"{x:.6g}") if math.isfinite(x) else None
