"""Learning from rows with gaps: stochastic expectation maximisation (Celeux & Diebolt 1985).

Missing values are drawn given the known ones: first from a Gaussian fitted by EM (Dempster, Laird & Rubin 1977), then
repeatedly from the model in training.
"""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.core.errors import UserError
from grbm.core.randomness import generator, seed_of
from grbm.data.frame import Frame
from grbm.data.splitting import copies
from grbm.data.tables import measure
from grbm.data.whitening import ROWS_A_COLUMN, WIDEST_TABLE, independent, relations
from grbm.evaluate.watching import HeldOut, gaussian_score
from grbm.fitting.callbacks import Callback, KeepBest, Progress
from grbm.fitting.density import Fitted
from grbm.fitting.impute import NUMBERS, Gain, condition
from grbm.fitting.learn import learn
from grbm.fitting.recipe import Facts, Recipe
from grbm.fitting.start import begin, facts_of, frame_of, held_out, unseen_of, watch_of
from grbm.samplers.conditional import Filling

ITERATIONS, SETTLED = 200, 1e-4  # Maximum of EM, and the largest change of a standardised covariance that ends it.
HARDLY = 1e-4  # Rows of unit covariance that are added where there are many: nearly collinear columns stay so.
MORE_ROWS, FOLDS = (1.0, 3.0, 10.0, 30.0), 3  # Where there are few: these or none, chosen by cross-validation.
COMPLETION = 300  # Updates of the model that fills gaps before coordinates are found.
GAUSSIAN_DRAWS = 8  # Draws of each gap for the Gaussian that is kept where no model is better.
REFILLS = 50  # Number of refills before the rounds; another follows each round.
STEPS = 12  # Gibbs steps of a refill, whose chains begin at draws of the reference given the known values.


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
        gain = self._given(patterns, patterns).gain
        found = self.mean + torch.einsum("cn,cnk->ck", known * (y - self.mean), gain[which])
        told = self.covariance @ torch.einsum("p,pn,pnk->nk", counts.double(), patterns, gain)
        return torch.where(known > 0, y, found), told

    def log_prob(self, y: Tensor) -> Tensor:
        """log p of the known values of rows y (n, N), NaN where one is missing: (n,), in nats."""
        parts = []
        for rows in torch.split(y, _at_once(len(self.mean))):
            known = (~rows.isnan()).double()
            evidence = self._given(known, rows.nan_to_num()).log_evidence[:, 0]
            parts.append(evidence - 0.5 * math.log(2 * math.pi) * known.sum(1))
        return torch.cat(parts)

    def _given(self, known: Tensor, y: Tensor) -> Gain:
        """Gain of missing columns from ``known`` ones (n, N), 1 or 0, and the log-density of their values y (n, N)."""
        eye, exact = torch.eye(len(self.mean)).to(y), torch.zeros_like(self.mean)
        return condition(self.mean, self.covariance, eye, known, exact, y[:, None])


def fit_gaussian(y: Tensor) -> Gaussian:
    """Fit a Gaussian to standardised rows y (n, N) with gaps (NaN) by EM, shrunk by `shrinkage`."""
    return by_em(y, shrinkage(y))


def shrinkage(y: Tensor) -> float:
    """Choose the number of rows of unit covariance by which a Gaussian of rows y (n, N), as in `by_em`, is shrunk.

    Hardly any where the rows that have both of two columns are many; else as many as make rows of other folds likelier.
    """
    known = (~y.isnan()).double()
    if (known.T @ known).mean() >= ROWS_A_COLUMN * y.shape[1]:
        return HARDLY
    parts: list[Gaussian | None] = [None] * FOLDS
    chosen, best = HARDLY, -math.inf
    for more in (HARDLY, *MORE_ROWS):
        unseen = 0.0
        for k in range(FOLDS):
            is_unseen = torch.arange(len(y)) % FOLDS == k
            parts[k] = fitted = by_em(y[~is_unseen], more, parts[k])
            unseen += float(fitted.log_prob(y[is_unseen]).sum())
        if unseen <= best:
            break
        chosen, best = more, unseen
    return chosen


def by_em(y: Tensor, more: float, start: Gaussian | None = None) -> Gaussian:
    """Fit a Gaussian to standardised rows y (n, N) with gaps (NaN) by EM, from a ``start``.

    ``more`` is the number of rows of unit covariance that are added to them, which need not be whole.
    """
    n, N = y.shape
    eye = torch.eye(N).to(y)
    fitted = start or Gaussian(torch.zeros_like(y[0]), eye)
    for _ in range(ITERATIONS):
        total, squares = torch.zeros_like(y[0]), n * fitted.covariance
        for rows in torch.split(y, _at_once(N)):
            expected, told = fitted.expected(rows)
            total, squares = total + expected.sum(0), squares + expected.T @ expected - told
        mean, before = total / n, fitted.covariance
        covariance = (squares - n * mean[:, None] * mean + more * eye) / (n + more)
        fitted = Gaussian(mean, 0.5 * (covariance + covariance.T))
        if float((fitted.covariance - before).abs().max()) < SETTLED:
            break
    return fitted


def _at_once(n_columns: int) -> int:
    """Number of rows whose gains are computed at a time."""
    return max(1, NUMBERS // (4 * n_columns**2))


def gaussian_draws(x: np.ndarray, seed: int = 0, *, times: int = 1, match: bool = False) -> np.ndarray:
    """Fill each gap (NaN) of rows x (n, N), float64, with a draw given its row, from a Gaussian fitted to all rows.

    So many ``times``, one after another: (times n, N). To ``match`` a Gaussian that is shrunk, a linear map then gives
    all rows its mean and covariance, unless columns follow from others.

    Raises
    ------
    UserError
        For more columns than covariances are computed of, and for columns with gaps that have a linear relation.
    """
    if x.shape[1] > WIDEST_TABLE:
        raise UserError(
            f"There are gaps and {x.shape[1]} columns; gaps are learned in up to {WIDEST_TABLE}. Leave out rows or "
            f"columns with gaps, or fill them first (sklearn.impute.SimpleImputer)."
        )
    low = np.nanmin(x, 0)
    varies = low < np.nanmax(x, 0)
    centre, scale = np.where(varies, np.nanmean(x, 0), low), np.where(varies, np.nanstd(x, 0), 1.0)
    standard = (x - centre) / scale
    own = varies.copy()  # Of the others, which constants and relations tell, a Gaussian would have no width.
    own[_following(standard)] = False
    filled = np.tile(np.where(np.isnan(x), centre, x), (times, 1))
    if not own.any():
        return filled
    y = torch.from_numpy(standard[:, own])
    more = shrinkage(y)
    fitted, rng, parts = by_em(y, more), generator(seed, "gaps"), []
    factor = torch.linalg.cholesky(fitted.covariance)
    for rows in torch.split(y.repeat(times, 1), _at_once(y.shape[1])):
        free = torch.randn(rows.shape, generator=rng, dtype=torch.float64) @ factor.T  # less the mean
        # A draw given the row is the mean given it, and what a free draw has beyond its own mean given as much.
        alike = Gaussian(torch.zeros_like(fitted.mean), fitted.covariance).expected(
            torch.where(rows.isnan(), rows, free)
        )
        parts.append(fitted.expected(rows)[0] + free - alike[0])
    drawn = torch.cat(parts).numpy()
    stays = np.tile(~np.isnan(x[:, own]), (times, 1))
    if match and more > HARDLY and (own == varies).all() and independent(drawn).all():
        drawn, stays = _moved(drawn, fitted), np.zeros_like(stays)
    filled[:, own] = np.where(stays, filled[:, own], drawn * scale[own] + centre[own])
    return filled


def _moved(x: np.ndarray, to: Gaussian) -> np.ndarray:
    """Map rows x (n, N), whose columns are independent, linearly to rows that have the moments of a Gaussian."""
    directions, lengths = np.linalg.qr(x - x.mean(0))
    white = directions * np.sign(lengths.diagonal()) * math.sqrt(len(x))
    return np.asarray(white @ np.linalg.cholesky(to.covariance.numpy()).T + to.mean.numpy())


def _following(standard: np.ndarray) -> list[int]:
    """Columns that are linear functions of others in all complete rows; UserError for one where any has gaps.

    Draws would break the relation, and whitening would take what is left for structure.
    """
    found = []
    for column, others in relations(standard):
        if np.isnan(standard[:, [*others, column]]).any():
            listed = ", ".join(str(k) for k in others)
            raise UserError(
                f"Column {column} is a linear function of columns {listed} in all complete rows, and some of them have "
                f"gaps; leave column {column} out (grbm train --drop)."
            )
        found.append(column)
    return found


def copies_of(rows: Tensor) -> Tensor | None:
    """`grbm.data.splitting.copies` of rows with gaps: copies lack the same values."""
    return copies(rows.masked_fill(rows.isnan(), torch.finfo(rows.dtype).max))


class Gaps:
    """Rows with gaps (n, N), NaN where a value is missing, in the units of the data.

    Parameters
    ----------
    rows : Tensor
        As learning sees them (`Frame.as_learned`): coarse columns lie in their cells, none has bounds.
    seed : int
        Of all that is drawn.
    same : Tensor, optional
        (n,), equal for copies of a row (`copies_of`).
    """

    def __init__(self, rows: Tensor, seed: int, same: Tensor | None = None) -> None:
        self.rows, self.seed, self.same = rows, seed, same
        self.missing = rows.isnan()

    @functools.cached_property
    def drawn(self) -> Tensor:
        """The rows filled by draws from a full-covariance Gaussian (`gaussian_draws`)."""
        return self._drawn(1, match=False)

    @property
    def facts(self) -> Facts:
        """Facts of the rows, as those of rows that a Gaussian fills."""
        return facts_of(self.drawn, self.same)._replace(missing=float(self.missing.double().mean()))

    def by_gaussian(self, recipe: Recipe) -> Tensor:
        """Rows that a full-covariance Gaussian is fitted to where it is kept: each filled eight times (8 n, N).

        Where ``recipe`` whitens they have the moments of the Gaussian by EM. Elsewhere values at limits must stay.
        """
        return self._drawn(GAUSSIAN_DRAWS, match=recipe.standardise == "whiten")

    def _drawn(self, times: int, *, match: bool) -> Tensor:
        filled = gaussian_draws(self.rows.double().numpy(), self.seed, times=times, match=match)
        return torch.from_numpy(filled).to(self.rows)

    def by_model(self, recipe: Recipe, n_updates: int, device: torch.device | str = "cpu", **of_frame: Any) -> Tensor:
        """The rows filled by draws from a model that learns a Gaussian's draws by ``recipe``, 300 updates at most.

        Where that model describes validation rows no better than a Gaussian, the Gaussian's draws stay.

        ``of_frame`` are the options of `grbm.fitting.start.frame_of` beside the seed.
        """
        seed, filled = self.seed, self.drawn
        if recipe.censor != "none":  # The Gaussian knows no limits.
            low, high = (self.rows.masked_fill(self.missing, end) for end in (torch.inf, -torch.inf))
            filled = filled.clamp(low.amin(0), high.amax(0))
        options = replace(recipe.train, n_updates=min(COMPLETION, n_updates), rounds=0)
        learned_from, held, counts = held_out(len(filled), options.validation, seed, self.same)
        frame = frame_of(recipe, filled, measure(filled), learned_from, same=self.same, seed=seed, **of_frame)
        rows = frame.transform(filled[learned_from]).to(device)
        state, goal = begin(recipe, frame, rows, seed, device), recipe.build(frame)
        unseen = unseen_of(frame, filled[held], counts, self.rows[held], seed=seed, device=device)
        watch = watch_of(frame, goal.sampler, unseen, seed)
        keep = None if watch is None else KeepBest(watch, options, state)
        learn(state, rows, goal, options, keep=keep)
        if keep is not None and keep.best is not None and keep.best.mean <= _least(frame, unseen):
            return filled
        model = (state.average or state.model) if keep is None else keep.model()
        return self.by(Fitted(frame, model), seed_of(seed, "gaps", state.update))

    def by(self, fitted: Fitted, seed: int) -> Tensor:
        """The rows with each gap filled by a draw from a fitted model given its row."""
        gappy, filled = self.missing.any(1), self.rows.clone()
        drawn = fitted.inner.sample_given(self.rows[gappy], Filling(n_chains=1, seed=seed))[:, 0]
        filled[gappy] = torch.where(self.missing[gappy], drawn.to(filled), filled[gappy])
        return filled

    def refill(
        self, fitted: Fitted, learned_from: Tensor, rows: Tensor, first: int, n_updates: int, unseen: HeldOut | None
    ) -> "Refill":
        """Callback that redraws the gaps of training ``rows`` (n', K), which have the numbers ``learned_from``.

        It waits for a model that describes the ``unseen`` rows, if these are looked at, better than a Gaussian.
        """
        least = -math.inf if unseen is None else _least(fitted.frame, unseen)
        numbers = self.missing[learned_from].any(1).nonzero()[:, 0]
        gappy = self.rows[learned_from][numbers]
        return Refill(fitted.inner, gappy, numbers, rows, first, n_updates, least, self.seed)


def _least(frame: Frame, unseen: HeldOut) -> float:
    """Mean nats that a Gaussian gives to validation rows, and a model must reach before its draws fill gaps."""
    return gaussian_score(frame, unseen) if len(unseen) and frame.reference is not None else -math.inf


class Refill(Callback):
    """Redraw missing values from the current model, about 50 times before the rounds and after each of them.

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
    least : float
        Mean nats of validation rows; as long as none has been better, nothing is redrawn.
    seed : int
    """

    def __init__(
        self,
        fitted: Fitted,
        gappy: Tensor,
        numbers: Tensor,
        rows: Tensor,
        first: int,
        n_updates: int,
        least: float,
        seed: int,
    ) -> None:
        self.fitted, self.gappy, self.numbers, self.rows = fitted, gappy, numbers, rows
        self.first, self.n_updates, self.least, self.seed = first, n_updates, least, seed

    def after(self, progress: Progress) -> None:
        made, state = progress.update - self.first, progress.state
        if made <= self.n_updates and made % max(1, self.n_updates // REFILLS):
            return
        if (-math.inf if progress.best is None else progress.best.mean) < self.least:
            return
        filling = Filling(STEPS, STEPS - 1, 1, seed=seed_of(self.seed, "refill", progress.update))
        model = Fitted(self.fitted.frame, state.average or state.model)
        self.rows[self.numbers] = model.units(model.sample_given(self.gappy, filling)[:, 0]).to(self.rows)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows[self.numbers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows: Tensor = state["rows"]
        if rows.shape != (len(self.numbers), self.rows.shape[1]) or not rows.isfinite().all():
            raise ValueError("the rows with gaps are damaged")
        self.rows[self.numbers] = rows.to(self.rows)
