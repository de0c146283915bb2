"""Errors as data: each has fields, and the sentence that a person reads is made of them here."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Remedy = Literal["learning_rate", "step_size", "per_unit", "min_var"]
ADVICE: dict[Remedy, str] = {
    "learning_rate": "lower the learning rate",
    "step_size": "lower the step size",
    "per_unit": "use a step size per unit (per_unit)",
    "min_var": "set a larger min_var",
}


class UserError(ValueError):
    """Bad input; the command line prints the sentence and exits with code 2."""

    told = False  # whether another process of the same job tells the user


def unreadable(what: object, error: OSError) -> UserError:
    """The sentence for what is not there, or may not be read; it says nothing of damage."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"There is no {what}; check the path.")
    return UserError(f"{what} cannot be read ({error.strerror or error}); check its permissions.")


@contextmanager
def needed_by(what: str, extra: str, packages: str) -> Iterator[None]:
    """Import optional ``packages`` inside the block: raises UserError, which says ``what`` needs them, if it fails."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"{what} needs pip install {packages} (in a clone: uv run --extra {extra}).") from error


@dataclass(frozen=True)
class Divergence:
    """Cause and place of a divergence, with what to change.

    Attributes
    ----------
    cause : {"gradient", "step size"}
        The gradient was NaN, infinite or absurdly large, or a Langevin step was more than two variances, which
        overshoots.
    update : int
        The update that was being made, or on a GPU after which it was noticed.
    remedies : tuple of {"learning_rate", "step_size", "per_unit", "min_var"}
        What to change, the likeliest first.
    unit : int, optional
        The visible unit where it is worst; None where a GPU was not asked.
    var, chains_v2 : float, optional
        That unit's σ², and the mean square of its chains.
    overshoot : float, optional
        The step in units of the variance, with the cause "step size".
    since : int, optional
        On a GPU, which is not waited for at every update: the first update that it may have been.
    """

    cause: Literal["gradient", "step size"]
    update: int
    remedies: tuple[Remedy, ...]
    unit: int | None = None
    var: float | None = None
    chains_v2: float | None = None
    overshoot: float | None = None
    since: int | None = None

    @property
    def happened(self) -> str:
        """Sentence on the event and its place, without the remedies."""
        if self.overshoot is not None:
            return (
                f"Stopped before update {self.update}: the Langevin step is {self.overshoot:.3g} variances of visible "
                f"unit {self.unit} (variance {_shown(self.var)}), and above 2 it overshoots"
            )
        if self.since is not None:
            when = f"in one of the updates since {self.since}"
            return f"Stopped at update {self.update}: {when} the gradient became NaN, infinite or absurdly large"
        what = f"Stopped at update {self.update}: the gradient is NaN, infinite or absurdly large"
        if self.unit is None:
            return what
        shown = f"variance {_shown(self.var)}, mean square of its chains {_shown(self.chains_v2)}"
        return f"{what}, worst at visible unit {self.unit} ({shown})"

    def __str__(self) -> str:
        return f"{self.happened}; {', or '.join(ADVICE[remedy] for remedy in self.remedies)}."


def _shown(number: float | None) -> str:
    return "unknown" if number is None else f"{number:.3g}"


@dataclass(eq=False)
class DivergenceError(RuntimeError):
    """Learning diverged: numbers became NaN, infinite or absurdly large.

    Attributes
    ----------
    divergence : Divergence
        The update, the unit and the remedy.
    kept : Path, optional
        Where the last good weights are.
    advice : str
        What to do, in the words of whoever learned, in place of the remedies'.
    """

    divergence: Divergence
    kept: Path | None = None
    advice: str = ""

    def __str__(self) -> str:
        if self.advice:
            return f"{self.divergence.happened}. {self.advice}"
        return f"{self.divergence}" + (f" The last good weights are in {self.kept}." if self.kept else "")


@dataclass(eq=False)
class StoppedError(Exception):
    """Training was asked to stop, and did so after a whole update, with its checkpoint written."""

    signal: int = 0  # number of the signal that asked, or 0
    folder: Path | None = None  # of the run that can go on; None where several runs were stopped
    update: int | None = None  # last one of the run

    def __str__(self) -> str:
        if self.folder is None:
            return "stopped, with checkpoints written; to go on, give the same command again."
        return (
            f"stopped after update {self.update:,} and the checkpoint is written; go on with: grbm resume {self.folder}"
        )


class LostProcessError(RuntimeError):
    """Another process of the same job has died; its own message is the one to read."""


class ScaleWarning(UserWarning):
    """The features given to the estimator are not standardised."""
