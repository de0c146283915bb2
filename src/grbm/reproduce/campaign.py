"""Figures and tables of several runs: what is missing is trained, side by side, and what was interrupted goes on."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

from grbm import runs
from grbm.core.errors import DivergenceError, StoppedError, UserError
from grbm.core.streams import printing
from grbm.runs.config import RunConfig
from grbm.runs.progress import ProgressBar
from grbm.runs.training import on_signals, train


class Planned(NamedTuple):
    """A run to be had, in a folder of its name."""

    name: str
    config: RunConfig


class Target(NamedTuple):
    """A figure or table: its runs, how many train at once in how many threads, and what scores and draws them."""

    what: str
    runs: list[Planned]
    folder: Path
    at_once: int
    threads: int | None
    draw: Callable[[], str]

    def train(self, deadline: float | None = None) -> list[Planned]:
        """Train what is missing; returns the runs that are left at the ``deadline``, as for `train_missing`."""
        todo = missing(self.runs, self.folder)
        if todo and deadline is not None and time.monotonic() >= deadline:
            return todo
        print(f"{self.what}: {len(self.runs)} runs, {len(todo)} to train, in {self.folder}", flush=True)
        train_missing(todo, self.folder, at_once=self.at_once, threads=self.threads, deadline=deadline)
        return missing(self.runs, self.folder)

    def make(self) -> str:
        """Train what is missing, score and draw; returns the table or figure as text."""
        self.train()
        return self.draw()


class _Worker(NamedTuple):
    """A process that trains one run after another: to start one takes seconds."""

    planned: Planned  # what it is at
    process: SpawnProcess
    pipe: Connection  # a run there; a sentence back, or the exception that ended it


def train_missing(
    planned: Sequence[Planned],
    folder: Path,
    *,
    at_once: int,
    threads: int | None = None,
    seconds: float = 60.0,
    deadline: float | None = None,
) -> None:
    """Train what is ``planned`` in ``folder``: one by one, or several in processes of ``threads`` threads each.

    Side by side, a line is printed for each run that ends, and every so many ``seconds`` where the others are. A run
    that diverged counts as done, with its last good weights: that is its result. At the ``deadline``, a time of
    `time.monotonic`, runs under way write their checkpoints and stop, and no other begins.

    Raises
    ------
    UserError
        For a run of other settings in ``folder``, or bad input.
    StoppedError
        After SIGINT, SIGTERM or SIGHUP; each run has written its checkpoint then, and no process is left.
    """
    if at_once == 1 and threads is None and deadline is None:
        for run in planned:
            print(run.name, flush=True)
            with ProgressBar() as progress:
                try:
                    text = _train(run.config, folder / run.name, on_start=progress.start, on_update=progress.update)
                except StoppedError as error:
                    raise StoppedError(error.signal) from error
            print(f"  {text}", flush=True)
        return
    threads = threads or max(1, (os.cpu_count() or 1) // at_once)
    waiting = list(planned)
    workers: list[_Worker] = []
    idle: list[_Worker] = []  # which wait for a run
    failure: BaseException | None = None
    overdue = False

    def stop(number: int) -> None:
        """Pass all but SIGINT on to the workers, as SIGTERM; a terminal sends its SIGINT to all of them itself."""
        for worker in workers:
            if number != signal.SIGINT:
                worker.process.terminate()

    def left() -> float:
        return float("inf") if deadline is None else deadline - time.monotonic()

    with on_signals(stop) as asked:
        while workers or (waiting and not asked and failure is None and left() > 0):
            while waiting and len(workers) < at_once and not asked and failure is None and left() > 0:
                workers.append(_begin(waiting.pop(0), idle, folder, threads))
            if not workers:
                break  # the time was over just now
            ready = wait([worker.pipe for worker in workers], timeout=min(seconds, left()) if left() > 0 else seconds)
            if left() <= 0 and not overdue:
                overdue = True
                stop(signal.SIGTERM)
            for worker in [worker for worker in workers if worker.pipe in ready]:
                workers.remove(worker)
                found = _answer(worker)
                # by SIGTERM: with a checkpoint, or before it had begun to listen
                stopped = isinstance(found, StoppedError) or worker.process.exitcode == -signal.SIGTERM
                if isinstance(found, str):
                    print(f"  {worker.planned.name}: {found}")
                    if waiting:
                        idle.append(worker)
                    else:
                        _dismiss(worker)
                elif overdue and not asked and stopped:
                    print(f"  {how_far(worker.planned, folder) or worker.planned.name}, where the time was over")
                elif failure is None:
                    failure = found
                    for other in workers:  # their runs can go on later
                        other.process.terminate()
            if not ready:
                print("  " + "; ".join(filter(None, (how_far(worker.planned, folder) for worker in workers))))
            sys.stdout.flush()
    for worker in idle:
        _dismiss(worker)
    if asked:
        raise StoppedError(asked[0])
    if failure is not None:
        raise failure


def missing(planned: Sequence[Planned], folder: Path) -> list[Planned]:
    """The runs that are not finished; raises UserError where ``folder`` holds a run of other settings."""
    return [run for run in planned if not _finished(folder / run.name, run.config)]


def _finished(folder: Path, config: RunConfig) -> bool:
    if not (folder / runs.CONFIG).is_file():
        return False
    other = runs.read_config(folder).difference(config)
    if other is not None:
        raise UserError(f"{folder} holds a run with other settings ({other}); choose another folder with --out.")
    status = runs.read_status(folder)
    return status.ended in ("finished", "diverged") and (folder / runs.WEIGHTS).is_file()


def _begin(planned: Planned, idle: list[_Worker], folder: Path, threads: int) -> _Worker:
    """A process that is at it: an idle one that is still there, or another."""
    while idle:
        worker = idle.pop()
        with suppress(OSError):  # killed while it waited
            worker.pipe.send(planned)
            return worker._replace(planned=planned)
        _dismiss(worker)
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(folder, threads, theirs), daemon=True)
    process.start()
    theirs.close()
    ours.send(planned)
    return _Worker(planned, process, ours)


def _dismiss(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.join()


def _answer(worker: _Worker) -> "str | BaseException":
    """Answer of a worker on its run; the process of one that says no sentence has ended."""
    try:
        found: str | BaseException = worker.pipe.recv()
    except EOFError:  # it died without a word, such as for memory
        worker.process.join()
        found = UserError(
            f"The process of {worker.planned.name} ended with code {worker.process.exitcode}; start it again."
        )
    if not isinstance(found, str):
        worker.process.join()
    return found


def _work(folder: Path, threads: int, pipe: Connection) -> None:
    torch.set_num_threads(threads)
    with printing():
        while True:
            try:
                planned: Planned = pipe.recv()
            except (EOFError, KeyboardInterrupt):
                return
            try:
                pipe.send(_train(planned.config, folder / planned.name))
            except (UserError, StoppedError, OSError) as error:
                pipe.send(error)
                return


def _train(config: RunConfig, folder: Path, **told: Any) -> str:
    try:
        train(config, folder, resume=True, **told)
    except DivergenceError as error:
        return str(error)
    return f"{runs.last_metrics(folder).get('seconds', 0.0):.0f} s"


def how_far(planned: Planned, folder: Path) -> str:
    """How far a run in ``folder`` is, in words; empty where it has not logged anything."""
    last = runs.last_metrics(folder / planned.name)
    n_updates = planned.config.train.n_updates
    return f"{planned.name}: update {last['update']:,} of {n_updates:,}" if last else ""
