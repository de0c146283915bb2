"""Callbacks of training: keep the best model, stop early, call a function. Their state is saved in checkpoints."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grbm.core.options import FitOptions
from grbm.core.typed import is_kind
from grbm.evaluate.ais import known
from grbm.evaluate.watching import Nats, Watch
from grbm.learning.guard import Guard
from grbm.learning.objectives import Adaptation
from grbm.learning.state import StepMetrics, TrainState
from grbm.model import GRBM

HALVINGS = 6  # Maximum number of times that the learning rate is halved.
FELL = 1.0  # Fall of the validation score, in nats beyond its error, after which updates are undone.


class Progress(NamedTuple):
    """State of training after an update, as callbacks receive it."""

    update: int
    n_updates: int
    nats: Nats | None  # held out, in the model's coordinates; None where nothing was looked at
    best: Nats | None
    state: TrainState
    metrics: StepMetrics


class Callback:
    """Base class of callbacks: `after` is called after every update, and training ends once ``stops`` is true.

    The state that a resumed run needs is in `state_dict`: numbers and strings, as in JSON, and tensors.
    """

    stops = False

    def after(self, progress: Progress) -> None:
        """Process an update."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the callback for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; raise ValueError if it is damaged."""


class Call(Callback):
    """Call a function after updates; stop training where it returns true."""

    def __init__(
        self, function: Callable[[Progress], object], when: Callable[[Progress], bool] = lambda progress: True
    ) -> None:
        self.function, self.when = function, when

    def after(self, progress: Progress) -> None:
        if self.when(progress):
            self.stops = bool(self.function(progress))


class EarlyStopping(Callback):
    """Stop after ``patience`` consecutive validations without an improvement of more than ``tol`` nats.

    If quasi-Newton rounds follow, only these are shortened: they find optima that stochastic gradients miss.
    """

    def __init__(self, options: FitOptions, patience: int | None, tol: float = 0.0) -> None:
        self.options, self.patience, self.tol = options, patience, tol
        self.bar, self.since = -math.inf, 0

    def after(self, progress: Progress) -> None:
        if progress.nats is None:
            return
        mean = progress.nats.mean
        is_better = mean > self.bar + self.tol
        self.since = 0 if is_better or self.options.before_rounds(progress.update) else self.since + 1
        self.bar = max(self.bar, mean) if math.isfinite(mean) else self.bar
        self.stops = self.patience is not None and self.since >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"bar": self.bar if math.isfinite(self.bar) else None, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bar = -math.inf if state["bar"] is None else float(state["bar"])
        self.since = int(state["since"])
        self.stops = self.patience is not None and self.since >= self.patience


class KeepBest(Callback):
    """Keep the state of training with the best validation score, and return to it when the score falls far below.

    Training then continues at half the learning rate, at most `HALVINGS` times.

    Attributes
    ----------
    best : Nats, optional
        The best validation score.
    good : TrainState
        State of training at that score.
    """

    def __init__(self, watch: Watch, options: FitOptions, state: TrainState) -> None:
        self.watch, self.options = watch, options
        self.best: Nats | None = None
        self.good, self.halvings = _copied(state), 0

    def look(self, state: TrainState) -> Nats | None:
        """Validate when due; None when not due, or when the score was so bad that the updates were undone."""
        if not self.options.is_look(state.update):
            return None
        try:
            nats = self.watch.look(state)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # Hidden units that are annealed have no energy of so large weights.
            if self.take_back(state):
                return None
            raise
        bar = -math.inf if self.best is None else self.best.mean
        if not nats.mean > bar - FELL - 5 * nats.error and self.take_back(state):
            return None
        if math.isfinite(nats.mean) and nats.mean >= bar:
            self.best, self.good = nats, _copied(state)
        return nats

    def take_back(self, state: TrainState) -> bool:
        """Reset ``state`` to the best one and halve the learning rate; return False after `HALVINGS` times."""
        if self.halvings == HALVINGS:
            return False
        self.halvings += 1
        state.load(self.good.tensors())
        state.optimizer.state.clear()
        for group in state.optimizer.param_groups:
            group["initial_lr"] = group.get("initial_lr", group["lr"]) / 2
        return True

    def model(self) -> GRBM:
        """A copy of the best model: the average of its parameters, where there is one."""
        return copy.deepcopy(self.good.average or self.good.model)

    def state_dict(self) -> dict[str, Any]:
        best = None
        if self.best is not None:
            update, mean, error, log_z = self.best
            best = [update, mean, error, log_z.log_z, log_z.error]
        return {"halvings": self.halvings, "best": best} | self.good.tensors()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tensors = {name: x for name, x in state.items() if isinstance(x, Tensor)}
        if not all(x.isfinite().all() for x in tensors.values()):
            raise ValueError("the best state holds NaN or infinite numbers")
        if state["best"] is not None and not is_kind(list[float], state["best"]):
            raise ValueError(f"the best score is {state['best']!r}")
        try:
            self.good.load(tensors)
        except ValueError as reason:
            raise ValueError(f"the best state is damaged: {reason}") from reason
        self.halvings = int(state["halvings"])
        if state["best"] is not None:
            update, mean, error, *log_z = state["best"]
            self.best = Nats(update, mean, error, known(*log_z))


def _copied(state: TrainState) -> TrainState:
    """Copy a state, so that later updates do not change it."""
    adaptation = Adaptation(dict(state.adaptation.state_dict))
    return replace(
        state,
        model=copy.deepcopy(state.model),
        average=copy.deepcopy(state.average),
        guard=Guard(),
        adaptation=adaptation,
    )
