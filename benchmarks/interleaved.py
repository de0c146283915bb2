"""Several trainings timed in turn, so that what else the machine does is shared by all."""

import time
from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")


def update_times(runs: Mapping[K, Iterator[object]], n_updates: int, rounds: int) -> dict[K, list[float]]:
    """Seconds an update of each run, once in each of ``rounds`` turns of ``n_updates``; one turn before warms up."""
    times: dict[K, list[float]] = {key: [] for key in runs}
    for k in range(rounds + 1):
        for key, updates in runs.items():
            began = time.perf_counter()
            for _ in range(n_updates):
                next(updates)
            if k > 0:
                times[key].append((time.perf_counter() - began) / n_updates)
    return times
