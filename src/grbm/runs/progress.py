"""Progress of training, for a person who watches."""

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from grbm.core.streams import Stream, terminal

if TYPE_CHECKING:  # it loads PyTorch
    from grbm.runs.preparing import Prepared

PATIENCE = 1.0  # seconds after which a person is told that the data are still being prepared


class ProgressBar:
    """A bar on a terminal, a plain line now and then elsewhere; before them a word where preparing takes its time.

    Of processes that share a run ``is_leader`` is the one that speaks.
    """

    def __init__(self, *, is_leader: bool = True) -> None:
        self.n_updates, self.seconds, self.note, self.nats = 0, 0.0, "", ""
        self.console = Console(highlight=False, file=terminal())  # type: ignore[arg-type]
        columns = ("{task.percentage:3.0f}%", BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Bar(*columns, TextColumn("{task.fields[note]}"), console=self.console, transient=True)
        self.last_line, self.first = 0.0, 0
        self.task: Any = None
        self.is_leader = is_leader
        said = "Preparing the data ..."
        self.waiting = threading.Timer(PATIENCE, print, [said], {"flush": True})
        self.waiting.daemon = True

    def __enter__(self) -> "ProgressBar":
        if self.is_leader:
            self.waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.waiting.cancel()
        if self.bar.live.is_started:
            self.bar.stop()

    def start(self, run: "Prepared") -> None:
        self.waiting.cancel()
        model, update, self.n_updates = run.state.model, run.state.update, run.config.train.n_updates
        n, N = run.data.shape
        counts = run.validation.weights
        n_validation = len(run.validation) if counts is None else int(counts.sum())
        limited = f" ({model.censoring.n} of them censored)" if model.censoring.n else ""
        rows = [f"{n:,} rows of {N} visible units{limited} to learn from"]
        rows += [
            f"{k:,} {what}" for k, what in ((n_validation, "for validation"), (len(run.dataset.test), "held out")) if k
        ]
        size = f"{', '.join(rows)}; {model.n_hidden} hidden units"
        if model.contrasts.n > 1:
            size += f", at {model.contrasts.n} contrasts"
        print(f"{size}; {self.n_updates:,} updates on {model.W.device}" + (f", from {update:,} on" if update else ""))
        self.started, self.first = time.perf_counter(), update
        self.task = self.bar.add_task("", total=self.n_updates, completed=update, note="")
        if self.console.is_terminal:
            self.bar.start()
            self.protect()

    def protect(self) -> None:
        """Let no escape sequence through what the started bar put in the place of the streams, until it stops."""
        sys.stdout, sys.stderr = Stream(sys.stdout), Stream(sys.stderr)

    def update(self, update: int, record: dict[str, Any] | None) -> None:
        self.seconds = time.perf_counter() - self.started
        if record is not None:
            accept = "" if record["accept_prob"] is None else f"  accepted {record['accept_prob']:.0%}"
            if record.get("nats_validation") is not None:
                self.nats = f"  validation {record['nats_validation']:.4g} ± {record['nats_error']:.2g} nats"
            self.note = (
                f"{(update - self.first) / self.seconds:.0f}/s  gradient norm {_shown(record['grad_norm'])}  "
                f"mean variance {_shown(record['var_mean'])}{accept}{self.nats}"
            )
        self.bar.update(self.task, completed=update, note=self.note)
        if not self.console.is_terminal and (update == self.n_updates or self.seconds - self.last_line > 10):
            self.last_line = self.seconds
            print(f"  update {update:,} of {self.n_updates:,}  {self.note}", flush=True)


def _shown(number: float | None) -> str:
    return "not finite" if number is None else f"{number:.3g}"
