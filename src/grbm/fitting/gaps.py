"""Rows with gaps, completed to learn from: stochastic expectation maximisation (Celeux & Diebolt 1985).

Gaps are drawn given what their rows have: first from one Gaussian that is fitted to the incomplete rows (Dempster,
Laird & Rubin 1977), then, again and again, from the machine that learns the rows so completed.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.core.randomness import generator, seed_of
from grbm.fitting.callbacks import Callback, Progress
from grbm.fitting.density import Fitted
from grbm.fitting.impute import NUMBERS, condition
from grbm.samplers.conditional import Filling

ITERATIONS, SETTLED = 200, 1e-4  # of EM, and the largest change of a standardised number that ends it
REFILLS = 50  # of gaps while stochastic gradients are followed
STEPS = 12  # of the chains that draw them, which begin at draws of the reference given the row


class Gaussian(NamedTuple):
    """A Gaussian of columns, float64: mean (N,) and covariance (N, N)."""

    mean: Tensor
    covariance: Tensor

    def expected(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Rows y (n, N) with each gap (NaN) replaced by its mean given the row, and what rows tell of the covariance.

        The latter is the sum over rows of cov(y) − cov(y | what the row has), (N, N).
        """
        known, y = (~y.isnan()).double(), y.nan_to_num()
        eye, exact = torch.eye(len(self.mean)).to(y), torch.zeros_like(self.mean)
        gain = condition(self.mean, self.covariance, eye, known, exact, y[:, None]).gain
        found = self.mean + torch.einsum("cn,cnk->ck", known * (y - self.mean), gain)
        return found, self.covariance @ (known[:, :, None] * gain).sum(0)


def fit_gaussian(y: Tensor) -> Gaussian:
    """Fit a Gaussian to standardised rows y (n, N) with gaps (NaN) by EM, as if one more row were N(0, I)."""
    n, N = y.shape
    eye = torch.eye(N).to(y)
    fitted = Gaussian(torch.zeros_like(y[0]), eye)
    for _ in range(ITERATIONS):
        total, squares = torch.zeros_like(y[0]), n * fitted.covariance
        for rows in torch.split(y, max(1, NUMBERS // (4 * N * N))):
            expected, told = fitted.expected(rows)
            total, squares = total + expected.sum(0), squares + expected.T @ expected - told
        mean, before = total / n, fitted.covariance
        covariance = (squares - n * mean[:, None] * mean + eye) / (n + 1)
        fitted = Gaussian(mean, 0.5 * (covariance + covariance.T))
        if float((fitted.covariance - before).abs().max()) < SETTLED:
            break
    return fitted


def gaussian_draws(x: np.ndarray, seed: int = 0, *, times: int = 1) -> np.ndarray:
    """Rows x (n, N), float64, with each gap (NaN) drawn given its row, from a Gaussian fitted to all rows.

    So many ``times``, one after another: (times n, N).
    """
    centre, scale = np.nanmean(x, 0), np.nanstd(x, 0)
    y = torch.from_numpy((x - centre) / np.where(scale > 0, scale, 1.0))
    fitted, rng, parts = fit_gaussian(y), generator(seed, "gaps"), []
    factor = torch.linalg.cholesky(fitted.covariance)
    for rows in torch.split(y.repeat(times, 1), max(1, NUMBERS // (4 * y.shape[1] ** 2))):
        free = torch.randn(rows.shape, generator=rng, dtype=torch.float64) @ factor.T  # less the mean
        # A draw given the row is the mean given it, and what a free draw has beyond its own mean given as much.
        alike = Gaussian(torch.zeros_like(fitted.mean), fitted.covariance).expected(
            torch.where(rows.isnan(), rows, free)
        )
        parts.append(fitted.expected(rows)[0] + free - alike[0])
    x = np.tile(x, (times, 1))
    return np.where(np.isnan(x), torch.cat(parts).numpy() * scale + centre, x)


class Refill(Callback):
    """Draw gaps anew from the machine as it is, some fifty times before the rounds of quasi-Newton steps.

    Parameters
    ----------
    fitted : Fitted
        Frame of the rows, with any machine.
    incomplete : Tensor
        (n, N), in the units of the data, NaN where a value is missing.
    numbers : Tensor
        (n,), of these rows among those learned from.
    rows : Tensor
        Those, in units (n', K), which are written over.
    n_updates : int
        Updates before the first round.
    seed : int
    """

    def __init__(
        self, fitted: Fitted, incomplete: Tensor, numbers: Tensor, rows: Tensor, n_updates: int, seed: int
    ) -> None:
        self.fitted, self.incomplete, self.numbers, self.rows = fitted, incomplete, numbers, rows
        self.every, self.n_updates, self.seed = max(1, n_updates // REFILLS), n_updates, seed

    def after(self, progress: Progress) -> None:
        update, state = progress.update, progress.state
        if update > self.n_updates or update % self.every:
            return
        filling = Filling(STEPS, STEPS - 1, 1, seed=seed_of(self.seed, "refill", update))
        machine = Fitted(self.fitted.frame, state.average or state.model)
        filled = machine.sample_given(self.incomplete, filling)[:, 0]
        self.rows[self.numbers] = machine.units(filled).to(self.rows)
