"""`GaussianBernoulliRBM`, the scikit-learn estimator: a real-valued table in, codes, samples and densities out.

What it holds is arrays, which joblib, pickle and skops keep; what it does is done by a `grbm.fitting.density.Fitted` of
them.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    OutlierMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils._set_output import ADAPTERS_MANAGER, _get_output_config
from sklearn.utils.validation import check_is_fitted, validate_data

from grbm.core.devices import pick_device, threads
from grbm.core.errors import DivergenceError
from grbm.core.notebook import facts
from grbm.core.randomness import generator, seed_of
from grbm.data.bounding import bounds_of
from grbm.data.bounds import UNBOUNDED, Bounds
from grbm.data.coarse import grid_of
from grbm.data.frame import Frame
from grbm.data.grid import CONTINUOUS, Grid
from grbm.data.limits import limits_in
from grbm.data.tables import measure, nothing_varies, refuse_magnitudes, spread
from grbm.data.weighting import mean_and_error, repeated, rounded
from grbm.evaluate.censored import FEWEST
from grbm.evaluate.watching import Nats
from grbm.fitting import checks
from grbm.fitting.callbacks import Call, Callback, EarlyStopping, KeepBest, Progress
from grbm.fitting.checks import Array
from grbm.fitting.density import MOST_GAPPY, Fitted, LogPartition
from grbm.fitting.gaps import Gaps, copies_of
from grbm.fitting.learn import learn, one_gaussian
from grbm.fitting.recipe import Facts, Recipe, changed, resolve
from grbm.fitting.start import begin, facts_of, frame_of, held_out, unseen_of, watch_of
from grbm.learning.guard import Guard
from grbm.learning.objectives import Adaptation
from grbm.learning.state import TrainState
from grbm.learning.training import train_step
from grbm.model import GRBM
from grbm.model.censoring import UNCENSORED, Censoring
from grbm.samplers import Gibbs, sample
from grbm.samplers.conditional import Filling

FLOATS = (np.float64, np.float32)
POSITIVE = Interval(Integral, 1, None, closed="left")
PARAMETERS = ("components_", "intercept_hidden_", "intercept_visible_", "variances_")
FALSE_ALARMS = 0.01  # Share of the model's own draws that are called anomalies by default.
MANY = 1000  # Maximum number of rows learned from whose scores are compared with it.
LOWER = "Take a smaller learning_rate, or a larger min_variance."
ADVICE = "Are the features standardised (StandardScaler)? If so, take a smaller learning_rate or a larger min_variance."


@contextmanager
def _explained(*, scaled: bool) -> Iterator[None]:
    """Raise the error again with advice on the estimator's parameters, if training diverges."""
    try:
        yield
    except DivergenceError as error:
        raise DivergenceError(error.divergence, advice=LOWER if scaled else ADVICE) from error


class GaussianBernoulliRBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """A Gaussian-Bernoulli restricted Boltzmann machine: real-valued features, binary components.

    The density is p(v) = Σ_h exp(−E(v, h))/Z with E(v, h) = ½ Σ_i (v_i − μ_i)²/σ_i² − Σ_i (v_i/σ_i²)(W h)_i − b·h, a
    mixture of 2^n_components Gaussians with one diagonal covariance. v are the features as `whiten` transforms them: by
    default they may have any units, and be collinear or constant. The model is learned by persistent contrastive
    divergence and quasi-Newton steps. With whitening the best model on held-out rows is kept (a
    full-covariance Gaussian, where nothing was better).

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Binary hidden units; "auto" is 64 to 256, by the numbers of rows and columns (256 without whitening).
    learning_rate : float, default=None
        Of plain gradient ascent; `fit` lets it fall to 0 by a cosine, `partial_fit` keeps it. None is 0.05. Where the
        held-out likelihood collapses, updates are taken back and the rate is halved.
    batch_size : int, default=256
        Rows of an update; at most all.
    n_iter : int, default=None
        Passes over the data by stochastic gradients; None makes 1,500 updates of them (300 where rounds follow, 2,000
        without whitening).
        If given, no rounds follow unless ``n_rounds`` is set, and the fitted model is kept even where a
        full-covariance Gaussian scores as well.
    n_rounds : int, default=None
        Maximum number of rounds of quasi-Newton steps after those passes (`grbm.learning.quasi_newton`). They end when
        the held-out log-likelihood has not risen for 12 rounds. None is 60 where X is whitened, has 256 rows and at
        most 40 units, and neither ``n_iter`` nor ``n_replicas`` is given.
    n_steps : int, default=5
        Gibbs steps of the chains for each update.
    n_chains : int, default=None
        Persistent chains; None is 256 (64 without whitening).
    n_replicas : int, default=None
        Replicas of parallel tempering for each chain, without whitening; None is 8, and 1 is none.
    whiten : bool or "auto", default="auto"
        Learn in coordinates in which X and its clusters are uncorrelated; "auto" whitens 20 rows or more of at most 40
        features, collinear ones not counted; and of up to 500, if few of them repeat one value in a quarter of the rows
        or they are strongly correlated (`grbm.data.whitening`). Other X are standardised. False leaves X as it is. What
        is reported is in the units of X in any case.
    n_contrasts : int or "auto", default="auto"
        Number of factors by which the model's states are scaled about a centre, for heavy tails and outliers
        (`grbm.model.contrasts`); "auto" is 12 where they improve the fit, else 1. Only where X is whitened.
    censor : {"none", "auto"} or tuple of two numbers, default="none"
        Limits at which features stop, such as zeros of rainfall or a detection limit (`grbm.model.censoring`). "auto"
        finds features of which many values equal the lowest or highest; ``(low, high)``, either of which may be None,
        are limits of all. Not with whitening.
    coarse : {"none", "auto"}, default="none"
        "auto" learns features of few different numbers, such as counts and grades, as cells between them
        (`grbm.data.grid`): samples and filled gaps are then such numbers, and densities of a row are means over its
        cell. Those of which one number is in a fifth of the rows are learned as normal scores. Not with ``censor``.
    bounds : {"none", "auto"}, tuple of two numbers, or dict, default="none"
        Bounds strictly between which all values of a feature lie (`grbm.data.bounds`); samples and filled gaps keep
        them. ``(low, high)``, either of which may be None, are those of all features, and ``{name or number: (low,
        high)}`` of some. "auto" finds those of positive features, shares and percentages that one normal distribution
        describes better so. Attributes in the units of X are then in those of log(x − low) − log(high − x).
    contamination : float or "auto", default="auto"
        Share of the rows without gaps that `predict` calls anomalies, of those that `fit` or the last `partial_fit`
        learned from. "auto" calls those anomalies that are less likely than 99 of 100 of the model's own draws.
    restart : float, default=0
        Probability that a chain starts again from noise at an update: 0 is maximum likelihood as far as the chains mix;
        0.1 keeps the way from noise to the data open for plain Gibbs chains.
    min_variance : float, default=None
        Lower bound of the variances in the model's coordinates. None is 0.0001, and 0.02 without whitening.
    early_stopping : bool, default=False
        Stop when the held-out log-likelihood no longer rises; without whitening no rows are held out, and this does
        nothing. Rounds stop so in any case.
    validation_fraction : float, default=0.1
        Share of the rows that `fit` holds out to choose the best model by, at least ten; none of fewer than 40
        different rows, nor without whitening.
    n_iter_no_change : int, default=10
        Validations without a rise by ``tol`` before training stops.
    tol : float, default=0.003
        Nats per row.
    warm_start : bool, default=False
        `fit` goes on from what was learned before, in the same coordinates.
    verbose : int, default=0
        1 prints progress: ten lines, or more where learning takes longer than a minute.
    random_state : int, RandomState instance or None, default=None
        An int S makes everything reproducible, whatever the number of threads. ``grbm train array --seed S
        --dataset.held-out 0`` learns the same model.
    device : str, default="auto"
        "cpu", "cuda", ..., or "auto": a GPU if there is one and the model is large enough to be faster there.
    n_jobs : int, default=None
        Threads of training and sampling; -1 is all processors. None is one for small models, else PyTorch's number.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Wᵀ in the units of the features, as are the next three.
    intercept_hidden_ : ndarray of shape (n_components,)
        b of the machine.
    intercept_visible_ : ndarray of shape (n_features,)
        μ.
    variances_ : ndarray of shape (n_features,)
        Of each feature given the hidden units.
    constant_, collinear_ : list of int
        Features that do not vary, and those that follow from others: samples, imputed rows and means have them as they
        must be. Densities are of the other features.
    contrasts_ : ndarray of shape (n_contrasts, 2)
        Each scale and its weight; [[1, 1]] is the machine itself. Parameters are those at scale 1.
    is_gaussian_ : bool
        Whether a full-covariance Gaussian did as well on held-out rows, and is kept: W = 0. Only where ``n_iter`` is
        None.
    validation_scores_ : list of float
        Mean log-likelihood of the held-out rows along `fit`, in nats, as `score` gives it.
    best_validation_score_ : float or None
        That of what is kept.
    offset_ : float
        `score_samples` below which `predict` calls a row an anomaly.
    v_samples_ : ndarray of shape (n_chains, n_features)
        The persistent chains.
    n_iter_ : int
        Passes over the data.
    n_updates_ : int
        Updates of the parameters, of which a round is one.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Where X had names of columns.

    References
    ----------
    Liao, Kornblith, Ren, Fleet & Hinton 2022, "Gaussian-Bernoulli RBMs Without Tears", arXiv:2210.10318.

    Examples
    --------
    >>> import numpy as np
    >>> from grbm import GaussianBernoulliRBM
    >>> X = np.random.default_rng(0).normal(size=(200, 4))
    >>> rbm = GaussianBernoulliRBM(n_components=8, n_iter=5, random_state=0).fit(X)
    >>> rbm.transform(X).shape
    (200, 8)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{name: [POSITIVE, StrOptions({"auto"})] for name in ("n_components", "n_contrasts")},
        **{name: [POSITIVE] for name in ("batch_size", "n_steps", "n_iter_no_change")},
        **{name: [POSITIVE, None] for name in ("n_chains", "n_replicas")},
        **{name: [Interval(Integral, 0, None, closed="left"), None] for name in ("n_iter", "n_rounds")},
        **{name: [Interval(Real, 0, None, closed="neither"), None] for name in ("learning_rate", "min_variance")},
        **{name: ["boolean"] for name in ("early_stopping", "warm_start")},
        "whiten": ["boolean", StrOptions({"auto"})],
        "censor": [StrOptions({"none", "auto"}), tuple],
        "coarse": [StrOptions({"none", "auto"})],
        "bounds": [StrOptions({"none", "auto"}), tuple, dict],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        "restart": [Interval(Real, 0, 1, closed="both")],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
        "device": [str],
        "n_jobs": [Integral, None],
    }

    # What learning leaves beside the attributes: arrays and numbers alone.
    _frame_: dict[str, Array]
    _facts: list[Any]
    _seen: list[Any]  # the number of all rows that learning has seen, their mean and variance
    _best: dict[str, Array]
    _state: dict[str, Array]
    _learned_with: int
    _bounds_told: tuple[bool, dict[str | int | None, tuple[float, float]]]  # by ``bounds``, in learning
    _log_z: list[Any] | None  # what `log_partition` has found, and with which settings
    _log_z_settings: list[int]
    _line: list[float]  # once known: `offset_` + log Z, and the share of draws below
    _usual: float | None  # the median of scores of rows learned from, + log Z

    def __init__(
        self,
        n_components: int | Literal["auto"] = "auto",
        *,
        learning_rate: float | None = None,
        batch_size: int = 256,
        n_iter: int | None = None,
        n_rounds: int | None = None,
        n_steps: int = 5,
        n_chains: int | None = None,
        n_replicas: int | None = None,
        whiten: bool | Literal["auto"] = "auto",
        n_contrasts: int | Literal["auto"] = "auto",
        censor: str | tuple[float | None, float | None] = "none",
        coarse: Literal["none", "auto"] = "none",
        bounds: Any = "none",
        contamination: float | Literal["auto"] = "auto",
        restart: float = 0.0,
        min_variance: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 0.003,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.n_rounds = n_rounds
        self.n_steps = n_steps
        self.n_chains = n_chains
        self.n_replicas = n_replicas
        self.whiten = whiten
        self.n_contrasts = n_contrasts
        self.censor = censor
        self.coarse = coarse
        self.bounds = bounds
        self.contamination = contamination
        self.restart = restart
        self.min_variance = min_variance
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs

    # Learning.

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        callback: Callable[[Progress], object] | None = None,
    ) -> Self:
        """Learn the density of X (n_samples, n_features).

        Rows count by ``sample_weight`` (n_samples,), numbers of 0 or more: 2 is a row twice, and 0 none. Weights that
        are neither whole numbers nor multiples of a unit are rounded at random (`grbm.data.weighting.repeated`).

        Missing values are NaN; they are redrawn from the model during training. Of validation rows with gaps what is
        known is scored.

        ``callback`` is called with a `grbm.fitting.callbacks.Progress` after each validation: about 40 times, or 10
        times before rounds and after each round. Training stops where it returns something true.

        Raises
        ------
        DivergenceError
            If a parameter or gradient is no longer finite, which unscaled features can cause with ``whiten=False``.
        """
        go_on = self.warm_start and self.__sklearn_is_fitted__()
        before = int(vars(self)["n_iter_"]) if go_on else 0
        X, weights = self._to_learn(X, sample_weight, reset=not go_on)
        if not (X[:1] != X).any():
            raise nothing_varies(len(X))
        checks.warn_of_sentinels(X, getattr(self, "feature_names_in_", None))
        if not go_on:
            for name in (*PARAMETERS, "n_iter_"):  # what was learned before is of other data
                self.__dict__.pop(name, None)
            self._learned_with = self._seed(None)
        seed, table = self._learned_with, torch.tensor(X)
        censor = "none" if self.censor == "none" else "auto"
        same, n_pass = copies_of(table), len(X)
        if weights is not None:
            rows, n_pass = repeated(weights, seed)
            X, table, same = X[rows], table[rows], rows if same is None else same[rows]
        if not go_on:
            self._bounds_told = self._told()
        grid = self._frame().grid if go_on else grid_of(table, self.coarse, censor)
        bounds, limits = (self._frame().bounds, UNCENSORED) if go_on else self._bounds_of(table, grid)
        table = grid.inward(bounds.inward(grid.spread(table, seed_of(seed, "cells"))))
        gaps = Gaps(table, seed, same) if table.isnan().any() else None
        self._facts = list(facts_of(table, same) if gaps is None else gaps.facts)
        recipe = self._recipe()
        rounds = usually = recipe.train.rounds
        if self.n_iter is not None and self.n_rounds is None:
            rounds = 0
        if self.verbose and rounds < usually:
            _say(f"No rounds follow, since n_iter was given; n_rounds={usually} adds those of the default.")
        if self.verbose and not go_on:
            steps = ["a first model fills the gaps"] if gaps is not None else []
            steps += ["mixtures of Gaussians are fitted"] if recipe.standardise == "whiten" else []
            _say(f"Preparing {len(table):,} rows of {table.shape[1]:,} columns{': ' * bool(steps)}{', '.join(steps)}.")
        learned_from, held, counts = held_out(len(table), recipe.train.validation, seed, same)
        n_pass = len(learned_from) * n_pass // len(table)
        per_pass = max(1, n_pass // min(self.batch_size, len(learned_from)))
        n_updates = recipe.train.n_updates - usually if self.n_iter is None else self.n_iter * per_pass
        if gaps is not None:
            table = self._completed(gaps, recipe, n_updates) if not go_on else self._redrawn(gaps)
        seen = table[learned_from]  # of the others nothing is known before they are scored
        of_frame: dict[str, Any] = {"grid": grid, "bounds": bounds, "limits": limits, "same": same}
        state = self._resume(seen.numpy()) if go_on else self._begin(table, recipe, learned_from, **of_frame)
        frame = self._frame()
        goal = recipe.build(frame)
        device = state.model.W.device
        rows = frame.transform(seen).to(device)
        known = None if gaps is None else gaps.rows[held]
        unseen = unseen_of(frame, table[held], counts, known, seed=seed, device=device)
        first = state.update
        options = replace(recipe.train, n_updates=first + n_updates + rounds, rounds=rounds)
        watch = watch_of(frame, goal.sampler, unseen, seed)
        keep = None if watch is None else KeepBest(watch, options, state)
        looks: list[Nats] = []
        tell = _teller(first, rows, unseen.log_det) if self.verbose else lambda progress: None
        if self.verbose:
            _say(f"Learning from {len(rows):,} rows with {recipe.model.n_hidden:,} hidden units.")

        def after(progress: Progress) -> bool:
            if progress.nats is not None:
                looks.append(progress.nats)
            elif keep is not None or not options.is_look(progress.update, 1):
                return False
            tell(progress)
            return callback is not None and bool(callback(progress))

        of_rounds = options.patience if rounds else None, options.tol
        stops = (self.n_iter_no_change, self.tol) if self.early_stopping else of_rounds
        early = EarlyStopping(options, *stops)
        callbacks: list[Callback] = [Call(after), early]
        if gaps is not None:
            fitted = Fitted(frame, state.model)
            callbacks.append(gaps.refill(fitted, learned_from, rows, first, n_updates, unseen))
        with self._threads(), _explained(scaled=recipe.standardise != "none"):
            learn(state, rows, goal, options, keep=keep, callbacks=callbacks)
            gaussian = None
            if self.n_iter is None:
                if gaps is not None:  # The model's own draws would favour it.
                    table, same = gaps.by_gaussian(recipe), None
                gaussian = one_gaussian(keep, recipe, frame, rows, table, measure(table), same=same, seed=seed)
        updates, model = state.update, state.average or state.model if keep is None else keep.model()
        if gaussian is not None:  # learning can go on from the start in its frame
            self._frame_is(gaussian.frame)
            state, model = begin(recipe, gaussian.frame, gaussian.inner.units(table), seed, rows.device), gaussian.model
            state.update = updates
        self.is_gaussian_ = gaussian is not None
        self.validation_scores_ = [nats.mean + unseen.log_det for nats in looks]
        best = None if keep is None else keep.best
        self.best_validation_score_ = None if best is None else best.mean + unseen.log_det
        self._keep(state, X.dtype, model)
        self._draw_line(torch.tensor(X[~np.isnan(X).any(1)]))
        self.n_iter_ = min(math.ceil(n_updates / per_pass), math.ceil((updates - first) / per_pass)) + before
        return self

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Go on learning from the rows of X, each once and in their order, at a constant learning rate.

        A row occurs as often as its ``sample_weight`` (n_samples,) says, rounded at random to a whole number: here 0.5
        is a row half of the time, where for `fit` ratios of weights count.

        Without an earlier `fit` nothing is whitened, since the first rows do not tell what all look like.
        """
        first = not self.__sklearn_is_fitted__()
        X, weights = self._to_learn(X, sample_weight, reset=first)
        seed = self._seed(None) if first else self._learned_with
        if weights is not None:
            checks.refuse_many(weights)
            X = X[rounded(weights, seed if first else seed_of(seed, "weights", self.n_updates_))]
            if not len(X) and not first:
                return self
            if not len(X):
                raise ValueError("sample_weight counts rows, and adds up to less than one; give larger weights.")
        if first:
            checks.refuse_gaps(X, "The first rows of partial_fit must be complete: call fit first.")
        asked = {"whiten=True": self.whiten is True, "coarse='auto'": self.coarse == "auto"}
        asked["a column with bounds"] = any(self._told())
        for name in (name for name, is_asked in asked.items() if first and is_asked):
            raise ValueError(f"{name} needs all rows at once: call fit first, then partial_fit.")
        before = {"_seen": getattr(self, "_seen", []), "_frame_": getattr(self, "_frame_", {})}
        complete, table = torch.tensor(X[~np.isnan(X).any(1)]), torch.tensor(X)
        if not first:
            table = self._frame().as_learned(table, seed_of(seed, "cells", self.n_updates_))
        if table.isnan().any():
            table = self._redrawn(Gaps(table, seed))
        X = table.numpy()
        if first:
            self._learned_with = seed
            self._facts = list(Facts(len(X), X.shape[1], suits_whitening=False))  # the first rows may not vary
            self._bounds_told = self._told()
        recipe = self._recipe("none" if first else None)
        state = self._begin(table, recipe, whole=False) if first else self._resume(X)
        self._rebase()
        frame = self._frame()
        data, goal = frame.transform(table).to(state.model.W.device), recipe.build(frame)
        try:
            with self._threads(), _explained(scaled=frame.is_whitened):
                for batch in torch.split(data, self.batch_size):
                    train_step(state, goal, batch, recipe.train)
                state.settle()
        except DivergenceError:
            self.__dict__.update(before)
            raise
        self._keep(state, X.dtype if first else self.components_.dtype, state.average or state.model)
        self._draw_line(complete)
        self.is_gaussian_ = False
        self.validation_scores_, self.best_validation_score_ = [], None
        self.n_iter_ = 1 if first else self.n_iter_ + 1
        return self

    # Codes.

    def transform(self, X: Any) -> Array:
        """Hidden probabilities p(h = 1 | v) of X (n_samples, n_features): (n_samples, n_components).

        For rows with gaps (NaN) they are means over the missing values.
        """
        X = self._validated(X, gaps=True)
        codes: Array = self._fitted(X.dtype).encode(torch.tensor(X)).numpy()
        return codes

    def inverse_transform(self, X: Any) -> Array:
        """The mean of the features given hidden units or their probabilities X (n_samples, n_components).

        Of features with bounds it is the value at the mean of the scale that is learned, which is their median.
        """
        check_is_fitted(self)
        H = np.asarray(X)
        H = np.ascontiguousarray(H, dtype=H.dtype if H.dtype in FLOATS else np.float64)
        if H.ndim != 2 or H.shape[1] != len(self.components_):
            raise ValueError(f"X must be (n_samples, {len(self.components_)}), hidden units, got shape {H.shape}.")
        fitted = self._fitted(np.float64)
        with torch.no_grad():
            visible = fitted.model.visible_mean(torch.tensor(H).double())
            visible = fitted.frame.limits.mean(visible, fitted.model.var.sqrt())
        frame = replace(fitted.frame, grid=CONTINUOUS)  # means need not be numbers that occur
        return self._array(frame.columns(visible), H.dtype)

    def contrast_proba(self, X: Any) -> Array:
        """p(k | v), which of the scales in ``contrasts_`` each row of X has: (n_samples, n_contrasts)."""
        X = self._validated(X)
        fitted = self._fitted(X.dtype)
        with torch.no_grad():
            shares: Array = fitted.model.contrast(fitted.units(torch.tensor(X))).numpy()
        return shares

    # Samples.

    def sample(
        self, n_samples: int = 1, *, given: Any = None, n_steps: int | None = None, random_state: Any = None
    ) -> Any:
        """Draw rows from the model, (n_samples, n_features), by chains of ``n_steps`` steps, by default 500.

        They are an array, or what `set_output` asks for, as are those of `impute`.

        If ``given`` (n, n_features), rows with gaps or one such row, draw the missing values of each row n_samples
        times given the known ones, by chains of 200 steps: (n n_samples, n_features), a row after another. It may also
        be a dict of known values by the names of features, such as ``{"age": 50}``, if `fit` saw names.

        How they start and move says `grbm.fitting.density.Fitted.sample`. ``random_state`` is by default the
        estimator's own, so that an int there makes every call draw the same.
        """
        check_is_fitted(self)
        usual = 500 if given is None else Filling().n_steps
        n_steps, seed = usual if n_steps is None else n_steps, self._seed(random_state)
        if not all(isinstance(n, Integral) and n >= 1 for n in (n_samples, n_steps)):
            raise ValueError(
                f"n_samples and n_steps must be whole numbers of at least 1, got {n_samples} and {n_steps}."
            )
        if given is None:
            with self._threads():
                drawn = self._here().sample(n_samples, n_steps=n_steps, seed=seed)
            return self._framed(self._array(drawn))
        if isinstance(given, Mapping):
            given = self._named_row(given)
        if np.ndim(given) == 1:
            given = given.to_frame().T if hasattr(given, "to_frame") else np.atleast_2d(given)
        rows = self._validated(given, gaps=True)
        filling = Filling(n_steps, n_steps - 1, n_samples, seed=seed)
        with self._threads():
            drawn = self._to_fill().sample_given(torch.tensor(rows), filling)
        return self._framed(self._array(drawn.flatten(0, 1), rows.dtype))

    def _named_row(self, known: Mapping[str, float]) -> Any:
        """One row (1, n_features) of values ``known`` by their names, NaN elsewhere, as `fit` saw rows."""
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            raise ValueError("This estimator knows no names of features; give a row with NaN for what is to be drawn.")
        if unknown := [name for name in known if name not in names]:
            raise ValueError(f"No feature is named {unknown[0]!r}; they are {', '.join(map(str, names))}.")
        row = np.array([[known.get(name, np.nan) for name in names]], dtype=np.float64)
        kind = next((kind for kind in ("pandas", "polars") if kind in sys.modules), None)  # one gave the names
        return row if kind is None else ADAPTERS_MANAGER.adapters[kind].create_container(row, None, lambda: names)

    def gibbs(self, X: Any, *, n_steps: int = 1, random_state: Any = None) -> Array:
        """Gibbs steps from the rows of X: h ~ p(h | v), then v ~ p(v | h), and so on; returns v."""
        X = self._validated(X)
        if n_steps < 1:
            raise ValueError(f"n_steps must be at least 1, got {n_steps}.")
        fitted, seed = self._here(), self._seed(random_state)
        with self._threads():
            v0 = fitted.latent(torch.tensor(X), seed)
            chains = sample(fitted.model, Gibbs(), v0=v0, n_steps=n_steps, seed=seed)
        return self._array(fitted.columns(chains.v), X.dtype)

    # Missing and noisy data.

    def impute(
        self,
        X: Any,
        *,
        noise_std: Any = 0.0,
        n_steps: int = 200,
        n_chains: int = 4,
        n_replicas: int | None = None,
        return_std: bool = False,
        random_state: Any = None,
    ) -> Any:
        """X with its NaNs filled in by the mean of what is missing given what is not; see `grbm.impute`.

        A row that lacks one number, without bounds or limits, is filled exactly (`grbm.evaluate.lines`), unless a
        feature follows from others; other rows are filled by ``n_chains`` chains of ``n_steps`` steps.
        If ``return_std``, also return standard deviations: 0 for values known without noise. `sample` draws values.
        With ``noise_std`` (a number, or one per feature) X is taken to be v + normal noise of that deviation, and what
        is returned is the mean of v. Behind a scaler: ``scaler.inverse_transform(rbm.impute(scaler.transform(X)))``.
        """
        if n_steps < 4 or n_chains < 1:
            raise ValueError(f"n_steps must be at least 4 and n_chains at least 1, got {n_steps} and {n_chains}.")
        given, X = X, self._validated(X, gaps=True)
        noise = np.asarray(noise_std, dtype=np.float64)
        if noise.shape not in ((), X.shape[1:]) or not (noise >= 0).all():
            raise ValueError("noise_std is a standard deviation: numbers of 0 or more, one or one per feature.")
        filling = Filling(n_steps, n_steps // 4, n_chains, n_replicas, self._seed(random_state))
        with self._threads():
            filled, std = self._to_fill().impute(torch.tensor(X), noise, filling)
        found = self._framed(np.where(~np.isnan(X) & (noise == 0), X, self._array(filled, X.dtype)), given)
        return (found, self._framed(std.numpy().astype(X.dtype), given)) if return_std else found

    def impute_quantiles(
        self,
        X: Any,
        quantiles: Any = (0.05, 0.5, 0.95),
        *,
        n_draws: int = 200,
        n_steps: int = 200,
        random_state: Any = None,
    ) -> Array:
        """Quantiles of what is missing of X (NaN) given what is not: (n_quantiles, n_samples, n_features).

        They are of ``n_draws`` draws of each row, by chains of ``n_steps`` steps. Known values are given back.
        """
        shares = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
        if shares.ndim != 1 or not ((shares >= 0) & (shares <= 1)).all():
            raise ValueError(f"quantiles must be numbers in [0, 1], got {quantiles!r}.")
        if n_steps < 1 or n_draws < 1:
            raise ValueError(f"n_steps and n_draws must be at least 1, got {n_steps} and {n_draws}.")
        X = self._validated(X, gaps=True)
        filling = Filling(n_steps, n_steps - 1, n_draws, seed=self._seed(random_state))
        with self._threads():
            found = self._to_fill().quantiles(torch.tensor(X), shares.tolist(), filling)
        return self._array(found, X.dtype)

    def _to_fill(self) -> Fitted:
        """Return the density that fills gaps: of whitened rows on the CPU, in float64."""
        return self._fitted(np.float64) if self._frame().is_whitened else self._here()

    def denoise(self, X: Any, noise_std: Any, **options: Any) -> Any:
        """The mean of v given X = v + normal noise of deviation ``noise_std``; options as in `impute`."""
        return self.impute(X, noise_std=noise_std, **options)

    # Densities.

    def score_samples(self, X: Any) -> Array:
        """Log-likelihood log p of each row of X, in nats and in the units of the features: (n_samples,).

        `log_partition` says how log Z is found, and how surely. Where features are constant or collinear it is the
        density of the others, and −inf for rows in which they are not as they were in all rows learned from.

        For rows with gaps (NaN) it is the log-density of the known values, an estimate; known values of collinear
        features are left out of it.
        """
        X = self._validated(X, gaps=True)
        log_z = self.log_partition().value
        found = self._fitted(np.float64).estimate(torch.tensor(X), log_z)
        if n_unsure := int((found.n_effective < FEWEST).sum()):
            checks.warn_user(
                f"{n_unsure} of {len(X)} rows have uncertain estimates, and may score some nats too low.",
                ConvergenceWarning,
            )
        log_p: Array = found.log_p.numpy()
        beyond = self._frame().bounds.breaks(torch.tensor(X)).any(1).numpy()
        if n_beyond := int(beyond.sum()):
            checks.warn_user(f"{n_beyond} of {len(X)} rows lie beyond bounds, and have no density.", UserWarning)
        if n_broken := int((np.isneginf(log_p) & ~beyond).sum()):
            which = " or ".join(
                k for k, found in (("constant", self.constant_), ("collinear", self.collinear_)) if found
            )
            checks.warn_user(
                f"{n_broken} of {len(X)} rows have no density: features {sorted(self.constant_ + self.collinear_)} "
                f"were {which} in all rows learned from, and here are not.",
                UserWarning,
            )
        return log_p

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean of `score_samples`, with weights (n_samples,) of the rows where they are given."""
        log_p = self.score_samples(X)
        if sample_weight is None:
            return float(log_p.mean())
        weights = checks.weights_of(sample_weight, log_p)
        return mean_and_error(torch.from_numpy(log_p)[weights > 0], weights[weights > 0])[0]

    def log_partition(self, *, n_steps: int = 1000, n_chains: int = 500) -> LogPartition:
        """log Z of the machine (`grbm.fitting.density.Fitted.log_partition`).

        What was found is kept, and serves `score_samples`, until other settings are asked for or learning goes on.
        """
        check_is_fitted(self)
        asked = [n_steps, n_chains]
        if self._log_z is None or asked not in (self._log_z_settings, [1000, 500]):
            self._log_z_settings = asked
            fitted = self._here()
            chains = torch.tensor(self._state["chains.v"], device=fitted.model.W.device)
            seen = chains[-1] if chains.ndim == 3 else chains
            with self._threads():
                found = fitted.log_partition(n_steps=n_steps, n_chains=n_chains, seen=seen)
            self._log_z = list(found[:5])
        log_z = LogPartition(*self._log_z)
        if not log_z.converged:
            more = f"log_partition(n_steps={10 * self._log_z_settings[0]:_})"
            checks.warn_user(
                f"log Z is uncertain. {log_z.verdict} Call {more}, or take at most 36 components, where it is exact.",
                ConvergenceWarning,
            )
        return log_z

    # Anomalies.

    def p_values(self, X: Any, *, n_draws: int = 2000, random_state: Any = None) -> Array:
        """Share of the model's own draws that are no likelier than each row of X: (n_samples,).

        It is uniform for rows like those learned from, and near 0 for anomalies. A row with gaps (NaN) is compared by
        its known values (`Fitted.p_values`).
        """
        X = self._validated(X, gaps=True)
        with self._threads():
            found = self._fitted(np.float64).p_values(torch.tensor(X), n_draws=n_draws, seed=self._seed(random_state))
        p_values: Array = found.numpy()
        return p_values

    def surprises(self, X: Any, *, return_expected: bool = False, random_state: Any = None) -> Any:
        """Distance of each number of X from its mean given the other numbers of its row, in standard deviations.

        Features that make a row odd are far from 0; beyond ±3 is rare. Means and deviations are those that `impute`
        gives where that number alone is missing: mostly exact, else by chains, which take some milliseconds a number.

        Parameters
        ----------
        X : array-like
            (n_samples, n_features), with NaN for what is missing.
        return_expected : bool
            Also return the mean and the deviation of each number given the others, in the units of X.
        random_state : int, RandomState instance or None
            Seed of the chains, where there are any.

        Returns
        -------
        ndarray or data frame
            (n_samples, n_features), number less mean, in deviations: NaN where X is, ±inf beyond bounds. Of such three
            where ``return_expected``.
        """
        given, X = X, self._validated(X, gaps=True)
        with self._threads():
            found = self._to_fill().surprises(torch.tensor(X), Filling(seed=self._seed(random_state)))
        framed = [self._framed(part.numpy().astype(X.dtype), given) for part in found]
        return tuple(framed) if return_expected else framed[0]

    def decision_function(self, X: Any) -> Array:
        """`score_samples` less ``offset_``, in nats: negative for anomalies, (n_samples,).

        log Z cancels. A row with gaps (NaN) has a threshold of its own in place of ``offset_``: as large a share of the
        model's draws, without the same values, lies below it.
        """
        X = self._validated(X, gaps=True)
        x, fitted, (line, share) = torch.tensor(X), self._fitted(np.float64), self._threshold()
        log_p, gappy = fitted.log_prob(x, 0.0), x.isnan().any(1).nonzero()[:, 0]
        lines = torch.full_like(log_p, line)
        if len(gappy):
            with self._threads():
                for rows, drawn in self._own_scores(fitted, x[gappy], MOST_GAPPY):
                    lines[gappy[rows]] = drawn.quantile(share)
        scores: Array = (log_p - lines).numpy()
        return scores

    def predict(self, X: Any) -> Array:
        """−1 for the rows of X that are anomalies and 1 for others, (n_samples,), as ``contamination`` says."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    @property
    def offset_(self) -> float:
        """Log-likelihood, in nats, below which a row without gaps is called an anomaly."""
        return self._threshold()[0] - self.log_partition().value

    def _threshold(self) -> tuple[float, float]:
        """``offset_`` with log Z added, which needs no log Z, and the share of the model's draws below it."""
        check_is_fitted(self)
        if len(self._line) < 2:
            with self._threads():
                whole = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
                ((_, drawn),) = self._own_scores(self._fitted(np.float64), whole)
            if not self._line:
                share = FALSE_ALARMS if self.contamination == "auto" else self.contamination
                self._line.append(float(drawn.quantile(share)))
            self._line.append(float((drawn < self._line[0]).double().mean()))
        line, share = self._line
        if self._usual is not None and self._usual < line:
            checks.warn_user(
                "Half of the rows learned from, or more, count as anomalies: the model does not describe them yet. "
                "Train longer (n_iter=None), or set contamination to their share.",
                ConvergenceWarning,
            )
        return line, share

    def _own_scores(
        self, fitted: Fitted, x: torch.Tensor, n_draws: int = 2000
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return fitted.own_scores(x, n_draws=n_draws, seed=seed_of(self._learned_with, "threshold"))

    def _draw_line(self, rows: torch.Tensor) -> None:
        """Set the threshold by the scores of complete rows learned from, where ``contamination`` tells their share."""
        self._line, self._usual = [], None
        fitted = self._fitted(np.float64)
        is_censored = fitted.frame.censoring is not UNCENSORED
        if is_censored and self.contamination == "auto":
            return
        some = rows[spread(len(rows), MANY)] if is_censored or self.contamination == "auto" else rows
        with self._threads():
            scores = fitted.log_prob(some, 0.0)
        scores = scores[scores.isfinite()]
        if self.contamination == "auto":
            self._usual = float(scores.median()) if len(scores) else None
        elif len(scores):
            self._line.append(float(np.quantile(scores.numpy(), self.contamination)))

    # The machine.

    def to_model(self, dtype: Any = np.float32) -> GRBM:
        """The fitted `grbm.GRBM`, a copy, on the CPU, of rows as `to_coordinates` gives them."""
        check_is_fitted(self)
        kind = torch.float64 if np.dtype(dtype) == np.float64 else torch.float32
        return GRBM.from_parameters(_tensors(self._best)).to(kind)

    def to_coordinates(self, X: Any) -> Array:
        """X as the machine sees it, (n_samples, n_units), float64: whitened, standardised or as it is."""
        frame, rows = self._frame(), torch.tensor(self._validated(X))
        found: Array = frame.transform.exactly(frame.inward(rows)).numpy()
        return found

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")

    def _repr_html_(self) -> str:
        """Show in a notebook how good the fitted model is, above scikit-learn's diagram of the parameters."""
        return facts("Gaussian-Bernoulli RBM", self._facts_shown()) + estimator_html_repr(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        shown = {"text/plain": repr(self)}
        return shown | ({"text/html": self._repr_html_()} if get_config()["display"] == "diagram" else {})

    def _facts_shown(self) -> dict[str, str]:
        if not self.__sklearn_is_fitted__():
            return {"Fitted": "no; call fit(X)"}
        rows = {
            "Learned from": f"{self._seen[0]:,} rows of {self.n_features_in_:,} columns",
            "Hidden units": f"{len(self.components_):,}",
        }
        if self.is_gaussian_:
            rows["Hidden units"] += "; none is active: a full-covariance Gaussian was as good on held-out rows"
        if self.best_validation_score_ is not None:
            rows["Held-out log-likelihood"] = f"{self.best_validation_score_:.4g} nats per row"
        return rows

    # What is asked for, and what follows from it.

    def _recipe(self, standardise: str | None = None) -> Recipe:
        """Recipe from the user's parameters and the table, with the rounds that `fit` makes where n_iter is None."""
        fitted = self.__sklearn_is_fitted__()
        if standardise is None and fitted:
            frame, transform = self._frame(), self._frame().transform
            as_is = bool((transform.mean == 0).all() and (transform.scale == 1).all())
            standardise = "whiten" if frame.is_whitened else "none" if as_is else "pixel"
        elif standardise is None and self.whiten != "auto":
            standardise = "whiten" if self.whiten else "none"
        asked: dict[str, Any] = {
            "standardise": standardise,
            "censor": "none" if fitted else self.censor if isinstance(self.censor, str) else _limits(self.censor),
            "model.n_hidden": len(self.components_) if fitted else _unless_auto(self.n_components),
            "model.contrasts": _unless_auto(self.n_contrasts),
            "sampler.name": "gibbs" if self.n_replicas == 1 else None,
            "sampler.n_replicas": self.n_replicas if self.n_replicas != 1 else None,
            "objective.n_chains": self.n_chains,
            "objective.restart": self.restart,
            "train.learning_rate": self.learning_rate,
            "train.batch_size": self.batch_size,
            "train.min_var": self.min_variance,
            "train.rounds": self.n_rounds,
        }
        recipe = resolve(asked, Facts(*self._facts))
        jumps = recipe.sampler.name == "global-moves"
        said: dict[str, Any] = {"sampler.n_moves" if jumps else "objective.n_steps": self.n_steps}
        if recipe.standardise == "whiten":
            said["train.validation"] = self.validation_fraction
        found: Recipe = changed(recipe, said)
        return found

    def _device(self, recipe: Recipe) -> torch.device:
        """Device of training and evaluation."""
        return pick_device(self.device, recipe.work(self._frame().transform.n_units))

    def _threads(self) -> AbstractContextManager[None]:
        """Context with ``n_jobs`` threads; by default one thread if steps are too short to share."""
        if self.n_jobs is not None:
            return threads(effective_n_jobs(self.n_jobs))
        return threads(self._recipe().n_threads(self._frame().transform.n_units))

    def _seed(self, random_state: Any) -> int:
        """Seed: the given integer, or one drawn from the given random state."""
        given = self.random_state if random_state is None else random_state
        drawn = int(check_random_state(given).randint(2**31 - 1))
        return int(given) if isinstance(given, Integral) else drawn

    def _told(self) -> tuple[bool, dict[str | int | None, tuple[float, float]]]:
        """Whether bounds are to be found, and those that are told."""
        if isinstance(self.bounds, str):
            return self.bounds == "auto", {}
        told = self.bounds if isinstance(self.bounds, dict) else {None: self.bounds}
        return False, {name: _ends(pair, "bounds") for name, pair in told.items()}

    def _bounds_of(self, table: torch.Tensor, grid: Grid) -> tuple[Bounds, Censoring]:
        """Bounds of the columns of a table, and their limits."""
        is_auto, told = self._told()
        if not is_auto and not told:
            return UNBOUNDED, UNCENSORED
        names = [str(name) for name in getattr(self, "feature_names_in_", [])]
        if not isinstance(self.censor, str):
            raise ValueError("bounds go with limits that are found, not with given ones: censor='auto'.")
        limits = limits_in(table, self.censor)
        found = bounds_of(table, is_auto=is_auto, told=told, without=grid.is_coarse, limits=limits, columns=names)
        return found, limits

    # What was learned, as arrays.

    def _begin(
        self,
        table: torch.Tensor,
        recipe: Recipe,
        learned_from: torch.Tensor | None = None,
        *,
        grid: Grid = CONTINUOUS,
        bounds: Bounds = UNBOUNDED,
        limits: Censoring = UNCENSORED,
        same: torch.Tensor | None = None,
        whole: bool = True,
    ) -> TrainState:
        """Find and store the frame of a table; return the state of training before the first update."""
        if recipe.standardise != "whiten" and self.n_contrasts not in ("auto", 1):
            raise ValueError(
                f"n_contrasts={self.n_contrasts} needs whitened rows: whiten=True, and fit, not partial_fit."
            )
        seen = table if learned_from is None else table[learned_from]
        if recipe.standardise == "none":
            checks.check_scale(seen.numpy(), getattr(self, "feature_names_in_", None), whole=whole)
        found = frame_of(recipe, table, measure(table), learned_from, same=same, seed=self._learned_with)
        self._frame_is(found.with_columns(grid, bounds, limits))
        self._seen = [0, 0.0, 0.0]
        self._see(seen.numpy())
        frame = self._frame()
        rows = frame.transform(seen)
        return begin(recipe, frame, rows, self._learned_with, self._device(recipe))

    def _frame_is(self, frame: Frame) -> None:
        self._frame_ = {name: x.numpy() for name, x in frame.tensors().items()}
        self.constant_, self.collinear_ = frame.constant, frame.collinear

    def _frame(self) -> Frame:
        """Frame of the fitted model."""
        return Frame.from_tensors(_tensors(self._frame_))

    def _rebase(self) -> None:
        """Set the base of tempered paths to the mean and variance of all rows so far, if rows are not whitened.

        The variance is shrunk towards 1 as if by ten rows.
        """
        frame, (n, mean, var) = self._frame(), self._seen
        if not frame.is_whitened:
            transform = frame.transform
            centre, scale, kept = (x.numpy() for x in (transform.mean, transform.scale, transform.kept))
            base_var = ((n * var / scale**2 + 10) / (n + 10))[kept].astype(np.float32)
            base_mean = ((mean - centre) / scale)[kept].astype(np.float32)
            self._frame_ = self._frame_ | {"base_mean": base_mean, "base_var": base_var}

    def _fitted(self, dtype: Any = np.float32) -> Fitted:
        """The density, on the CPU."""
        return Fitted(self._frame(), self.to_model(dtype))

    def _here(self) -> Fitted:
        """The density on the device where the model is used."""
        fitted = self._fitted()
        return replace(fitted, model=fitted.model.to(self._device(self._recipe())))

    def _resume(self, X: Array) -> TrainState:
        """State of training from the stored arrays, to continue with rows X."""
        back = "set it back, or call fit with warm_start=False"
        for name, learned in (("n_components", len(self.components_)), ("n_contrasts", len(self.contrasts_))):
            if (asked := getattr(self, name)) not in ("auto", learned):
                raise ValueError(f"{name} is {asked} now, but was {learned} in learning; {back}.")
        is_censored = self._frame().censoring is not UNCENSORED
        if (self.censor == "none") is is_censored and self.censor != "auto":
            raise ValueError(f"censor is {self.censor!r} now, but was another in learning; {back}.")
        if self.coarse == "none" and self._frame().grid.n:
            raise ValueError(f"coarse is 'none' now, but was 'auto' in learning; {back}.")
        if self._told() != getattr(self, "_bounds_told", self._told()):  # which pickles of 0.1 lack
            raise ValueError(f"bounds is {self.bounds!r} now, but was another in learning; {back}.")
        self._warn_beyond(X, self._frame().inner.censoring)
        self._see(X)
        recipe = self._recipe()
        model = self._here().model
        state = TrainState(model, recipe.train.build(model), seed=self._learned_with, update=self.n_updates_)
        state.load(_tensors(self._state))
        shape, n_replicas = (recipe.objective.n_chains, model.n_visible), recipe.sampler.n_replicas
        if self._state["chains.v"].shape != ((n_replicas, *shape) if n_replicas else shape):
            state.persistent, state.adaptation = None, Adaptation()
        return state

    def _see(self, X: Array) -> None:
        """Update the number, mean and variance of all training rows with X."""
        n, mean, var = self._seen
        here, total = X.mean(0, dtype=np.float64), n + len(X)
        spread = n * var + len(X) * X.var(0, dtype=np.float64) + n * len(X) / total * np.square(here - mean)
        self._seen = [total, mean + len(X) / total * (here - mean), spread / total]

    def _keep(self, state: TrainState, dtype: Any, model: GRBM) -> None:
        """Store the state of training and the fitted model as arrays."""
        frame = self._frame()
        self._best = {name: p.detach().cpu().double().numpy().copy() for name, p in model.state_dict().items()}
        transform, best = frame.transform, _tensors(self._best)
        self.components_ = np.ascontiguousarray(
            (transform.columns_of(best["W"].T) * transform.scale).numpy(), dtype=dtype
        )
        self.intercept_hidden_ = self._best["b"].astype(dtype)
        self.intercept_visible_ = transform.inverse(best["mu"][None])[0].numpy().astype(dtype)
        self.variances_ = (transform.variances(best["log_var"].exp()) * transform.scale.square()).numpy().astype(dtype)
        pairs = [x.exp().tolist() for x in (model.contrasts.log_scales, model.contrasts.log_weights)]
        self.contrasts_ = np.array(pairs, dtype=dtype).T.copy()
        average = state.average or state.model
        chains = state.persistent
        if chains is None:  # no update was made
            shape = (self._recipe().objective.n_chains, model.n_visible)
            chains = torch.randn(shape, generator=generator(state.seed, "no chains"))  # type: ignore[arg-type]
        kept = replace(state, average=average, persistent=chains, guard=Guard(), curvature=None)
        self._state = {name: x.detach().cpu().numpy().copy() for name, x in kept.tensors().items()}
        v = chains[-1] if chains.ndim == 3 else chains
        shown = average.at_any_contrast(v, generator(state.seed, "shown", device=v.device))
        self.v_samples_ = self._array(frame.columns(shown.detach().cpu()), dtype)
        self.n_updates_ = state.update
        self._log_z, self._log_z_settings = None, []

    # Rows in, rows out.

    def _to_learn(self, X: Any, sample_weight: Any, *, reset: bool = True) -> tuple[Array, torch.Tensor | None]:
        """Check training rows and their weights, if there are any; leave out rows of weight 0.

        Rows may have gaps (NaN); empty rows are left out, and empty features refused.
        """
        checks.refuse_datasets(X)
        X = validate_data(self, checks.as_numbers(X), dtype=FLOATS, reset=reset, ensure_all_finite="allow-nan")
        weights = None
        if sample_weight is not None:
            weights = checks.weights_of(sample_weight, X)
            X, weights = X[weights.numpy() > 0], weights[weights > 0]
        gaps = np.isnan(X)
        if n_empty := int(gaps.all(1).sum()):
            if n_empty == len(X):
                raise ValueError("X has no values: all are NaN.")
            checks.warn_user(f"Rows of X without any value: {n_empty}, which are left out.", UserWarning)
            weights = None if weights is None else weights[~gaps.all(1)]
            X, gaps = X[~gaps.all(1)], gaps[~gaps.all(1)]
        empty = gaps.all(0)
        if reset and empty.any():
            raise ValueError(f"Feature {int(empty.argmax())} of X has no values; leave it out.")
        some = X[:, ~empty]
        refuse_magnitudes(np.nanmin(some, 0), np.nanmax(some, 0), "X", X.dtype)
        return np.ascontiguousarray(X), weights

    def _completed(self, gaps: Gaps, recipe: Recipe, n_updates: int) -> torch.Tensor:
        """Fill gaps by draws from a model trained for a while."""
        n_units = Facts(*self._facts).n_units
        with threads(recipe.n_threads(n_units)), _explained(scaled=recipe.standardise != "none"):
            return gaps.by_model(recipe, n_updates, pick_device(self.device, recipe.work(n_units)))

    def _redrawn(self, gaps: Gaps) -> torch.Tensor:
        """Fill gaps by draws from the fitted model."""
        with self._threads():
            return gaps.by(self._to_fill(), seed_of(self._learned_with, "gaps", self.n_updates_))

    def _validated(self, X: Any, *, gaps: bool = False) -> Array:
        """Rows for a fitted machine, checked; they may have ``gaps`` (NaN)."""
        check_is_fitted(self)
        X = validate_data(self, checks.as_numbers(X), dtype=FLOATS, reset=False, ensure_all_finite="allow-nan")
        if not gaps:
            checks.refuse_gaps(X, "Fill the gaps of X first: impute(X).")
        array: Array = np.ascontiguousarray(X)
        n, mean, var = self._seen
        frame = self._frame()
        unsure = 0 if frame.is_whitened else 10 / (n + 10) * frame.transform.scale.numpy() ** 2
        seen = frame.known(torch.tensor(array)).numpy()
        checks.check_distance(seen, np.asarray(mean), np.asarray(var + unsure))
        self._warn_beyond(array, frame.censoring)
        return array

    def _warn_beyond(self, X: Array, limits: Censoring) -> None:
        """Warn of values beyond the limits, which are treated as at them."""
        low, high = (end.numpy().astype(X.dtype) for end in limits)
        if beyond := int(((low > X) | (high < X)).sum()):
            checks.warn_user(f"{beyond} values lie beyond the limits, and count as at them.", UserWarning)

    def _framed(self, rows: Array, X: Any = None) -> Any:
        """Rows in the container that `set_output` asks for, with the names of the features and the index of X."""
        chosen = _get_output_config("transform", self)["dense"]
        if chosen == "default":
            return rows
        names = getattr(self, "feature_names_in_", [f"x{k}" for k in range(rows.shape[1])])
        return ADAPTERS_MANAGER.adapters[chosen].create_container(rows, X, columns=lambda: names)

    def _array(self, x: torch.Tensor, dtype: Any = None) -> Array:
        """Rows of features in a dtype, by default that of those learned from, within the bounds."""
        kind = torch.float32 if np.dtype(dtype or self.components_.dtype) == np.float32 else torch.float64
        bounds = Bounds.from_tensors(_tensors(self._frame_), self.n_features_in_)
        found: Array = bounds.narrowed(x, kind).numpy()
        return found


def _unless_auto(number: Any) -> int | None:
    return None if number == "auto" else int(number)


def _limits(censor: tuple[Any, ...]) -> str:
    """A pair of limits, as `grbm.data.limits.limits_of` reads it."""
    return ",".join(repr(end) if math.isfinite(end) else "" for end in _ends(censor, "censor"))


def _ends(pair: Any, name: str) -> tuple[float, float]:
    """Two ends, of which None is an infinite one."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f"{name} must be (low, high), either of which may be None, got {pair!r}.")
    if not all(end is None or isinstance(end, Real) for end in pair):
        raise ValueError(f"{name} must be (low, high), numbers or None, got {pair!r}.")
    low, high = (
        infinite if end is None else float(end) for end, infinite in zip(pair, (-math.inf, math.inf), strict=True)
    )
    if not low < high:
        raise ValueError(f"{name} must be (low, high), with low below high, got {pair!r}.")
    return low, high


def _tensors(arrays: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(x) for name, x in arrays.items()}


def _say(text: str) -> None:
    print(f"[GaussianBernoulliRBM] {text}", flush=True)


def _teller(first: int, rows: torch.Tensor, log_det: float) -> Callable[[Progress], None]:
    """Make a function that prints progress since update ``first``: each tenth of the updates, or every 5 seconds."""
    start, told = time.perf_counter(), [(0, time.perf_counter())]

    def tell(progress: Progress) -> None:
        tenth, now = (progress.update - first) * 10 // max(1, progress.n_updates - first), time.perf_counter()
        if tenth <= told[-1][0] and now < told[-1][1] + 5.0:
            return
        told.append((tenth, now))
        if progress.nats is not None:
            what = f"held-out log-likelihood {progress.nats.mean + log_det:.4g} ± {progress.nats.error:.2g} nats"
        else:
            with torch.no_grad():
                error = (progress.state.model.reconstruction(rows[:1000]) - rows[:1000]).square().mean()
            what = f"mean squared reconstruction error {error:.4g}"
        where = f"Update {progress.update:,} of {progress.n_updates:,}"
        _say(f"{where}, {what}, {now - start:.1f} s")

    return tell
