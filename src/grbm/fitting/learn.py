"""Train until done: updates, validation and callbacks, for the estimator and for runs."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from grbm.core.distributed import ALONE, ProcessGroup
from grbm.core.errors import DivergenceError, ScaleWarning
from grbm.core.options import FitOptions, Precision
from grbm.core.rows import Rows
from grbm.data.frame import Frame
from grbm.data.tables import ColumnStatistics, Table, spread
from grbm.evaluate.watching import is_gaussian_enough
from grbm.fitting.callbacks import Callback, EarlyStopping, KeepBest, Progress
from grbm.fitting.density import Fitted
from grbm.fitting.recipe import Recipe
from grbm.fitting.start import frame_of
from grbm.learning.objectives import Objective
from grbm.learning.state import TrainState
from grbm.learning.training import fit
from grbm.model import GRBM
from grbm.model.initialise import gaussian_

SEEN = 4000  # Maximum number of rows learned from that a full-covariance Gaussian is scored on.

Ended = Literal["finished", "early", "stopped"]


def learn(
    state: TrainState,
    rows: Tensor | Rows | Dataset[object] | DataLoader[object],
    objective: Objective,
    options: FitOptions,
    *,
    keep: KeepBest | None = None,
    callbacks: Sequence[Callback] = (),
    precision: Precision = "highest",
    group: ProcessGroup = ALONE,
) -> Ended:
    """Learn ``rows`` (n, K) up to update ``options.n_updates``, or until a callback ends it.

    Parameters
    ----------
    state, rows, objective, options, precision, group
        As in `grbm.fit`, which makes the updates.
    keep : KeepBest, optional
        Looks at held-out rows, keeps what was best, and takes back what went wrong.
    callbacks : sequence of Callback
        Told of every update.

    Raises
    ------
    DivergenceError
        If parameters or gradients become NaN, infinite or too large, even at 1/64 of the learning rate where ``keep``
        takes back.
    """
    while state.update < options.n_updates and not any(callback.stops for callback in callbacks):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ScaleWarning)  # estimator and runs tell of units in words of their own
                updates = fit(state, rows, objective, options, precision=precision, group=group)
            for metrics in updates:
                nats, best = (None, None) if keep is None else (keep.look(state), keep.best)
                for callback in callbacks:
                    callback.after(Progress(state.update, options.n_updates, nats, best, state, metrics))
                if any(callback.stops for callback in callbacks):
                    break
        except DivergenceError:
            if keep is None or not keep.take_back(state):
                raise
    ended = next((callback for callback in callbacks if callback.stops), None)
    return "finished" if ended is None else "early" if isinstance(ended, EarlyStopping) else "stopped"


def one_gaussian(
    keep: KeepBest | None,
    recipe: Recipe,
    frame: Frame,
    rows: Tensor | Rows,
    table: Table,
    stats: ColumnStatistics,
    *,
    same: Tensor | None = None,
    seed: int,
    where: str = "X",
) -> Fitted | None:
    """Fit a full-covariance Gaussian to all rows, in its own frame, if it is as good as the best model; else None.

    ``rows`` (n, K) were learned from. ``table`` (n', N) has the held-out ones too, which can improve a Gaussian; its
    copies of a row are equal in ``same`` (n',).
    """
    if keep is None or keep.best is None:
        return None
    if not is_gaussian_enough(frame, keep.model(), keep.best, keep.watch.unseen, rows[spread(len(rows), SEEN)]):
        return None
    whole = replace(
        frame_of(recipe, table, stats, same=same, seed=seed, where=where), grid=frame.grid, bounds=frame.bounds
    )
    model = gaussian_(GRBM(whole.transform.n_units, recipe.model.n_hidden), *whole.base)
    model.contrasts = whole.contrasts
    return Fitted(whole, model)
