"""Several runs side by side: those that are missing are trained, those that were interrupted go on."""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from grbm import runs
from grbm.config import RunConfig
from grbm.errors import DivergenceError, StoppedError, UserError
from grbm.progress import Progress


class Job(NamedTuple):
    """A run to be had, in a folder of its name."""

    name: str
    config: RunConfig


def train_missing(
    jobs: Sequence[Job], folder: Path, *, at_once: int, threads: int | None = None, seconds: float = 60.0
) -> None:
    """Train ``jobs`` in ``folder``: one after the other, or several in processes of ``threads`` threads each.

    Side by side, a line is printed for each run that ends, and every so many ``seconds`` where the others are. A run
    that diverged counts as done, with its last good weights: that is its result.

    Raises
    ------
    UserError
        For a run of other settings in ``folder``, or bad input.
    StoppedError
        After SIGINT or SIGTERM; each run has written its checkpoint then.
    """
    if at_once == 1 and threads is None:
        for job in jobs:
            print(job.name, flush=True)
            with Progress(job.config.train.n_updates) as progress:
                _train(job.config, folder / job.name, on_start=progress.start, on_update=progress.update)
        return
    threads = threads or max(1, (os.cpu_count() or 1) // at_once)
    with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(_train_alone, job.config, folder / job.name, threads): job for job in jobs}
        try:
            while pending:
                done, _ = wait(pending, timeout=seconds, return_when=FIRST_COMPLETED)
                for future in done:
                    _report(pending.pop(future), future)
                if not done:
                    print("  " + "; ".join(filter(None, (_progress(job, folder) for job in pending.values()))))
                sys.stdout.flush()
        except BaseException:  # nothing queued behind a failure, or behind Ctrl-C, should start any more
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def missing(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """Those that are not finished; raises UserError where ``folder`` holds a run of other settings."""
    return [job for job in jobs if not _finished(folder / job.name, job.config)]


def _finished(folder: Path, config: RunConfig) -> bool:
    if not (folder / runs.CONFIG).is_file():
        return False
    before, now = (c.identity() for c in (RunConfig.read(folder / runs.CONFIG), config))
    for name, value in now.items():
        if before.get(name) != value:
            raise UserError(
                f"{folder} holds a run with other settings ({name} = {before.get(name)}, not {value}); choose another "
                f"folder with --out."
            )
    status = runs.read_status(folder)
    return status is not None and not status.startswith("interrupted") and (folder / runs.WEIGHTS).is_file()


def _train(config: RunConfig, folder: Path, **told: Any) -> str:
    from grbm import experiment

    try:
        experiment.train(config, folder, resume=True, **told)
    except DivergenceError as error:
        return str(error)
    return f"{runs.read_metrics(folder)[-1]['seconds']:.0f} s"


def _train_alone(config: RunConfig, folder: Path, threads: int) -> str:
    torch.set_num_threads(threads)
    return _train(config, folder)


def _report(job: Job, future: "Future[str]") -> None:
    try:
        print(f"  {job.name}: {future.result()}")
    except StoppedError as error:
        where = error.message.partition(" and ")[0]
        raise StoppedError(f"{job.name} {where}; give the same command to go on", error.signal) from error


def _progress(job: Job, folder: Path) -> str:
    metrics = runs.read_metrics(folder / job.name)
    return f"{job.name}: update {metrics[-1]['update']:,} of {job.config.train.n_updates:,}" if metrics else ""
