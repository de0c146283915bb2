"""Learning from rows with gaps: stochastic expectation maximisation (Celeux & Diebolt 1985).

Missing values are drawn given the known ones: first from a Gaussian fitted by EM (Dempster, Laird & Rubin 1977), then
repeatedly from the model in training.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.core.randomness import generator, seed_of
from grbm.data.whitening import ROWS_A_COLUMN, WIDEST_TABLE, independent
from grbm.fitting.callbacks import Callback, Progress
from grbm.fitting.density import Fitted
from grbm.fitting.impute import NUMBERS, condition
from grbm.samplers.conditional import Filling

ITERATIONS, SETTLED = 200, 1e-4  # Maximum of EM, and the largest change of a standardised covariance that ends it.
HARDLY = 1e-4  # Weight of the identity where rows are many: nearly collinear columns stay so.
REFILLS = 50  # Number of refills before the rounds.
STEPS = 12  # Gibbs steps of a refill, whose chains begin at draws of the reference given the known values.
RELATED = 1e-6  # Smallest coefficient of a linear relation between standardised columns.


class Gaussian(NamedTuple):
    """A Gaussian of columns, float64: mean (N,) and covariance (N, N)."""

    mean: Tensor
    covariance: Tensor

    def expected(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Fill each gap (NaN) of rows y (n, N) with its conditional mean; also return (N, N), by how much the known
        values lower the covariance, summed over the rows.
        """
        known, y = (~y.isnan()).double(), y.nan_to_num()
        patterns, which, counts = torch.unique(known, dim=0, return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
        eye, exact = torch.eye(len(self.mean)).to(y), torch.zeros_like(self.mean)
        gain = condition(self.mean, self.covariance, eye, patterns, exact, patterns[:, None]).gain
        found = self.mean + torch.einsum("cn,cnk->ck", known * (y - self.mean), gain[which])
        told = self.covariance @ torch.einsum("p,pn,pnk->nk", counts.double(), patterns, gain)
        return torch.where(known > 0, y, found), told


def fit_gaussian(y: Tensor) -> Gaussian:
    """Fit a Gaussian to standardised rows y (n, N) with gaps (NaN) by EM.

    The covariance is shrunk towards the identity: as if by one more row where rows are few, else hardly at all.
    """
    n, N = y.shape
    eye = torch.eye(N).to(y)
    prior = 1.0 if n < ROWS_A_COLUMN * N else HARDLY
    fitted = Gaussian(torch.zeros_like(y[0]), eye)
    for _ in range(ITERATIONS):
        total, squares = torch.zeros_like(y[0]), n * fitted.covariance
        for rows in torch.split(y, _at_once(N)):
            expected, told = fitted.expected(rows)
            total, squares = total + expected.sum(0), squares + expected.T @ expected - told
        mean, before = total / n, fitted.covariance
        covariance = (squares - n * mean[:, None] * mean + prior * eye) / (n + prior)
        fitted = Gaussian(mean, 0.5 * (covariance + covariance.T))
        if float((fitted.covariance - before).abs().max()) < SETTLED:
            break
    return fitted


def _at_once(n_columns: int) -> int:
    """Number of rows whose gains are computed at a time."""
    return max(1, NUMBERS // (4 * n_columns**2))


def gaussian_draws(x: np.ndarray, seed: int = 0, *, times: int = 1) -> np.ndarray:
    """Fill each gap (NaN) of rows x (n, N), float64, with a draw given its row, from a Gaussian fitted to all rows.

    So many ``times``, one after another: (times n, N).

    Raises
    ------
    ValueError
        For more columns than covariances are computed of, and for columns with gaps that have a linear relation.
    """
    if x.shape[1] > WIDEST_TABLE:
        raise ValueError(
            f"X has gaps and {x.shape[1]} features; gaps are learned in up to {WIDEST_TABLE}. Fill X first "
            f"(sklearn.impute.SimpleImputer)."
        )
    low, high = np.nanmin(x, 0), np.nanmax(x, 0)
    varies = low < high
    centre, scale = np.where(varies, np.nanmean(x, 0), low), np.where(varies, np.nanstd(x, 0), 1.0)
    standard = (x - centre) / scale
    _refuse_relations(standard)
    y = torch.from_numpy(standard)
    fitted, rng, parts = fit_gaussian(y), generator(seed, "gaps"), []
    factor = torch.linalg.cholesky(fitted.covariance)
    for rows in torch.split(y.repeat(times, 1), _at_once(x.shape[1])):
        free = torch.randn(rows.shape, generator=rng, dtype=torch.float64) @ factor.T  # less the mean
        # A draw given the row is the mean given it, and what a free draw has beyond its own mean given as much.
        alike = Gaussian(torch.zeros_like(fitted.mean), fitted.covariance).expected(
            torch.where(rows.isnan(), rows, free)
        )
        parts.append(fitted.expected(rows)[0] + free - alike[0])
    x = np.tile(x, (times, 1))
    return np.where(np.isnan(x), torch.cat(parts).numpy() * np.where(varies, scale, 0.0) + centre, x)


def _refuse_relations(standard: np.ndarray) -> None:
    """Raise ValueError for a column that is a linear function of others in all complete rows, where any has gaps.

    Draws would break the relation, and whitening would take what is left for structure.
    """
    gaps = np.isnan(standard)
    complete = standard[~gaps.any(1)]
    if len(complete) <= standard.shape[1] + 1:
        return
    kept = independent(complete)
    for column in np.flatnonzero(~kept & (complete.min(0) < complete.max(0))):
        with_constant = np.c_[complete[:, kept], np.ones(len(complete))]
        weights = np.linalg.lstsq(with_constant, complete[:, column], rcond=None)[0][:-1]
        related = np.append(np.flatnonzero(kept)[np.abs(weights) > RELATED], column)
        if gaps[:, related].any():
            others = ", ".join(str(k) for k in related[:-1])
            raise ValueError(
                f"Feature {column} of X is a linear function of features {others} in all complete rows, and some of "
                f"them have gaps; leave feature {column} out."
            )


class Refill(Callback):
    """Redraw missing values from the current model, about 50 times before the rounds.

    Parameters
    ----------
    fitted : Fitted
        Frame of the rows, with any model.
    gappy : Tensor
        Rows with gaps (n, N), in the units of the data, NaN where a value is missing.
    numbers : Tensor
        (n,), of these rows among the training rows.
    rows : Tensor
        The training rows in units (n', K), which are written over.
    first, n_updates : int
        Updates already made, and those to come before the first round.
    seed : int
    """

    def __init__(
        self, fitted: Fitted, gappy: Tensor, numbers: Tensor, rows: Tensor, first: int, n_updates: int, seed: int
    ) -> None:
        self.fitted, self.gappy, self.numbers, self.rows = fitted, gappy, numbers, rows
        self.first, self.n_updates, self.seed = first, n_updates, seed

    def after(self, progress: Progress) -> None:
        made, state = progress.update - self.first, progress.state
        if made > self.n_updates or made % max(1, self.n_updates // REFILLS):
            return
        filling = Filling(STEPS, STEPS - 1, 1, seed=seed_of(self.seed, "refill", progress.update))
        model = Fitted(self.fitted.frame, state.average or state.model)
        self.rows[self.numbers] = model.units(model.sample_given(self.gappy, filling)[:, 0]).to(self.rows)
