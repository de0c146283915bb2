"""`GaussianBernoulliRBM`, the scikit-learn estimator: a real-valued table in, codes, samples and densities out."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from grbm import measured
from grbm.conditional import impute
from grbm.coordinates import units_for
from grbm.data.splitting import copies, first_of_each
from grbm.data.tables import nothing_varies
from grbm.evaluate import ais, exact
from grbm.evaluate.watching import Watch, log_z_of
from grbm.fitted import FLOATS, FittedState, LogPartition, explained, sentence
from grbm.model import GRBM
from grbm.randomness import Blocks, generator, seed_of
from grbm.recipe import Progress, held_out, learn, objective
from grbm.samplers import Annealed, Gibbs, GlobalMoves, sample
from grbm.samplers.collapsed import annealed
from grbm.table_checks import Array, warn_of_sentinels, warn_user
from grbm.training import train_step

FEWEST_ANNEALED, PARTING = 256, 50
LOG_Z_DRAWS = 20  # of the reference, for each of the chains that AIS would have
PARAMETERS = ("components_", "intercept_hidden_", "intercept_visible_", "variances_")
SETTLING = 5000  # Gibbs steps of the persistent chains before they go back, in AIS


class GaussianBernoulliRBM(FittedState, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A Gaussian-Bernoulli restricted Boltzmann machine: real-valued features, binary components.

    The density is p(v) = Σ_h exp(−E(v, h))/Z with E(v, h) = ½ Σ_i (v_i − μ_i)²/σ_i² − Σ_i (v_i/σ_i²)(W h)_i − b·h, a
    mixture of 2^n_components Gaussians that share their factors, and v the features in whitened coordinates: features
    of any units will do, collinear and constant ones too. Learned by persistent contrastive divergence: hidden units
    start undecided at rows of X, chains jump by draws of a mixture of Gaussians that fits X, the gradient is centred,
    quasi-Newton steps end what it has begun, and what is kept is what was best on rows held out (one Gaussian, where
    nothing was better).

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
        Passes over the data by stochastic gradients; None is as many as make 1,500 updates (2,000 without whitening).
        If given, no rounds follow unless ``n_rounds`` is set, and the fitted machine is kept even where one Gaussian
        scores as well.
    n_rounds : int, default=None
        Rounds of 25 quasi-Newton steps up the log-likelihood, after those passes (`grbm.quasi_newton`). None is 60
        where X is whitened, has 256 rows and at most 40 units, and neither ``n_iter`` nor ``n_replicas`` is given.
    n_steps : int, default=5
        Gibbs steps of the chains for each update.
    n_chains : int, default=None
        Persistent chains; None is 256 (64 without whitening).
    n_replicas : int, default=None
        Replicas of parallel tempering for each chain, without whitening; None is 8, and 1 is none.
    whiten : bool or "auto", default="auto"
        Learn in coordinates in which X and its clusters are uncorrelated; "auto" is for 20 rows or more whose features,
        but for collinear ones, are at most 40, or 500 few of which repeat one value (`grbm.data.whitening`); others
        are standardised. False leaves them as they are. What is reported is in the units of X in any case.
    n_contrasts : int or "auto", default="auto"
        Scales at which the machine stands, for heavy tails and outliers (`grbm.contrasts`); "auto" is 12 where X asks
        for some, else 1. Only where X is whitened.
    restart : float, default=0
        Probability that a chain starts again from noise at an update: 0 is maximum likelihood as far as the chains mix;
        0.1 keeps the way from noise to the data open for plain Gibbs chains.
    min_variance : float, default=None
        Lower bound of the variances, in the units of the machine. None is 0.0001 of the narrowest width of a cluster
        (0.02 without whitening).
    early_stopping : bool, default=False
        Stop when the held-out log-likelihood no longer rises. What is kept is the best model in any case.
    validation_fraction : float, default=0.1
        Share of the rows that `fit` holds out to choose the best model by; none where it would be fewer than ten.
    n_iter_no_change : int, default=10
        Looks at held-out rows (40 or fewer, and one after each round) without a rise by ``tol`` before learning stops.
    tol : float, default=0.003
        Nats per row.
    warm_start : bool, default=False
        `fit` goes on from what was learned before, in the same coordinates.
    verbose : int, default=0
        1 prints ten lines of progress at most.
    random_state : int, RandomState instance or None, default=None
        An int makes everything reproducible, whatever the number of threads.
    device : str, default="auto"
        "cpu", "cuda", ..., or "auto": a GPU if there is one and the machine is large enough to be faster there.
    n_jobs : int, default=None
        Threads of training and sampling; -1 is all processors. None is one for small machines, whose steps are too
        short to share, else PyTorch's own number.

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
        Features that do not vary, and those that follow from others; the machine does without them, and samples,
        imputed rows and means have them as they must be. Densities are of the other features.
    contrasts_ : ndarray of shape (n_contrasts, 2)
        Each scale and its weight; [[1, 1]] is the machine itself. Parameters are those at scale 1.
    is_gaussian_ : bool
        Whether one Gaussian did as well on held-out rows as anything learned, and is what is kept: W = 0. Only where
        ``n_iter`` is None, so that learning was as long as it should be.
    validation_scores_ : list of float
        Mean log-likelihood of the held-out rows along `fit`, in nats, as `score` gives it.
    best_validation_score_ : float or None
        That of what is kept.
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
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "n_iter": [Interval(Integral, 0, None, closed="left"), None],
        "n_rounds": [Interval(Integral, 0, None, closed="left"), None],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "n_chains": [Interval(Integral, 1, None, closed="left"), None],
        "n_replicas": [Interval(Integral, 1, None, closed="left"), None],
        "whiten": ["boolean", StrOptions({"auto"})],
        "n_contrasts": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "restart": [Interval(Real, 0, 1, closed="both")],
        "min_variance": [Interval(Real, 0, None, closed="neither"), None],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
        "device": [str],
        "n_jobs": [Integral, None],
    }

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
    def fit(self, X: Any, y: Any = None, *, callback: Callable[[Progress], object] | None = None) -> Self:
        """Learn the density of X (n_samples, n_features).

        Some 40 times on the way, after ten updates or more, ``callback`` is called with a `grbm.recipe.Progress`;
        learning stops where it returns something true.

        Raises
        ------
        DivergenceError
            When numbers leave the finite world, which unscaled features can cause with ``whiten=False``.
        """
        go_on = self.warm_start and self.__sklearn_is_fitted__()
        before = int(vars(self)["n_iter_"]) if go_on else 0
        X = self._complete(X, reset=not go_on)
        if not (X[:1] != X).any():
            raise nothing_varies(len(X))
        warn_of_sentinels(X, getattr(self, "feature_names_in_", None))
        units = self._coordinates().units if go_on else units_for(X, self.whiten)
        if not go_on:
            for name in (*PARAMETERS, "n_iter_"):  # what was learned before is of other data
                self.__dict__.pop(name, None)
            self._learned_with = self._seed(None)
        share = self.validation_fraction if units == "whitened" else 0.0
        same = copies(torch.tensor(X))
        learned_from, held = held_out(len(X), share, self._learned_with, same)
        seen = X[learned_from.numpy()]  # of the others nothing is known before they are scored
        state = self._resume(seen) if go_on else self._begin(seen, units)
        whitened, rows, scored = self._coordinates().whitened, self._to_units(seen), self._to_units(X[held.numpy()])
        per_pass = max(1, len(rows) // min(self.batch_size, len(rows)))
        usual = self._recipe(len(X) if same is None else len(first_of_each(same)))
        n_iter = math.ceil(usual.n_updates / per_pass) if self.n_iter is None else self.n_iter
        goal, n_rounds = self._objective(), self.n_rounds
        if n_rounds is None:
            usually = usual.rounds if isinstance(goal.sampler, GlobalMoves) else 0
            n_rounds = usually if self.n_iter is None else 0
            if self.verbose and n_rounds < usually:
                told_of = f"No rounds follow, since n_iter was given; n_rounds={usually} adds those of the default."
                print(f"[GaussianBernoulliRBM] {told_of}", flush=True)
        recipe = replace(usual, n_updates=n_iter * per_pass, rounds=n_rounds)
        watch = None
        if whitened is not None and len(scored):
            watch = Watch(objective(whitened, recipe).sampler, scored, seed=self._learned_with)
        first, log_det, start, told = state.update, self._coordinates().scale.log_det, time.perf_counter(), [0]

        def tell(progress: Progress) -> object:
            tenth = (progress.update - first) * 10 // max(1, progress.n_updates - first)
            if self.verbose and tenth > told[-1]:
                told.append(tenth)
                print(sentence(progress, log_det, rows, time.perf_counter() - start), flush=True)
            return callback is not None and callback(progress)

        with self._threads(), explained(units):
            learned = learn(
                state,
                rows,
                goal,
                recipe,
                watch=watch,
                fallback=whitened if self.n_iter is None else None,
                patience=self.n_iter_no_change if self.early_stopping else None,
                tol=self.tol,
                callback=tell,
            )
        if learned.is_gaussian:  # which rows held out can improve
            learned = self._gaussian_of(X, learned)
        self.is_gaussian_ = learned.is_gaussian
        self.validation_scores_ = [nats.mean + log_det for nats in learned.looks]
        self.best_validation_score_ = None if learned.best is None else learned.best.mean + log_det
        self._keep(learned.state, X.dtype, learned.model)
        self.n_iter_ = min(n_iter, math.ceil((learned.state.update - first) / per_pass)) + before
        return self

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Go on learning from the rows of X, each once and in their order, at a constant learning rate.

        Without an earlier `fit` nothing is whitened, since the first rows do not tell what all look like.
        """
        first = not self.__sklearn_is_fitted__()
        X = self._complete(X, reset=first)
        if first and self.whiten is True:
            raise ValueError("whiten=True needs all rows at once: call fit first, then partial_fit.")
        seen = getattr(self, "_seen", None)
        if first:
            self._learned_with = self._seed(None)
        state = self._begin(X, "features", whole=False) if first else self._resume(X)
        data, options = self._to_units(X), self._recipe(len(X)).options()
        with self._threads(), explained(self._coordinates().units, lambda: setattr(self, "_seen", seen)):
            for batch in torch.split(data, self.batch_size):
                train_step(state, self._objective(), batch, options)
            state.settle()
        self._keep(state, X.dtype if first else self.components_.dtype, state.average or state.model)
        self.is_gaussian_ = False
        self.validation_scores_, self.best_validation_score_ = [], None
        self.n_iter_ = 1 if first else self.n_iter_ + 1
        return self

    # Codes.

    def transform(self, X: Any) -> Array:
        """Hidden probabilities p(h = 1 | v) of X (n_samples, n_features): (n_samples, n_components)."""
        X = self._validated(X)
        with torch.no_grad():
            codes: Array = self.to_model(X.dtype).forward(self._exactly(X).to(_torch_type(X.dtype))).numpy()
        return codes

    def inverse_transform(self, X: Any) -> Array:
        """The mean of the features given hidden units or their probabilities X (n_samples, n_components)."""
        check_is_fitted(self)
        H = np.asarray(X)
        H = np.ascontiguousarray(H, dtype=H.dtype if H.dtype in FLOATS else np.float64)
        if H.ndim != 2 or H.shape[1] != len(self.components_):
            raise ValueError(f"X must be (n_samples, {len(self.components_)}), hidden units, got shape {H.shape}.")
        with torch.no_grad():
            visible = self.to_model(np.float64).visible_mean(torch.tensor(H).double())
        return self._array(visible, H.dtype)

    # Samples.

    def sample(self, n_samples: int = 1, *, n_steps: int = 500, random_state: Any = None) -> Array:
        """Draw rows from the model, (n_samples, n_features): chains of ``n_steps`` steps.

        They start at annealed hidden units (`grbm.samplers.collapsed`) and jump by draws of the mixture that fits X.
        Without whitening they are annealed from a Gaussian, and their importance weights give far clusters their shares
        (`grbm.Annealed`). ``random_state`` is by default the estimator's own, so that an int there makes every call
        draw the same.
        """
        check_is_fitted(self)
        if n_samples < 1 or n_steps < 1:
            raise ValueError(f"n_samples and n_steps must be at least 1, got {n_samples} and {n_steps}.")
        model, seed = self._model_here(), self._seed(random_state)
        n_chains = max(n_samples, FEWEST_ANNEALED)
        reference = self._reference()
        with self._threads():
            if reference is not None:
                energy = model.freeze()
                start = annealed(energy, n_samples, Blocks(seed_of(seed, "annealed"), 1, device=model.W.device))
                v = sample(energy, reference, v0=start, n_steps=-(-n_steps // 5), seed=seed).v
                return self._array(model.at_any_contrast(v, generator(seed, "contrasts", device=v.device)))
            drawn = sample(model, Annealed(self._base_here()), n_chains=n_chains, n_steps=n_steps, seed=seed).v
            some = torch.randperm(n_chains, generator=generator(seed, "some"))[:n_samples]
            # Chains that resampling has copied part again.
            chains = sample(model, Gibbs(), v0=drawn[some.to(drawn.device)], n_steps=PARTING, seed=seed)
        return self._array(chains.v)

    def gibbs(self, X: Any, *, n_steps: int = 1, random_state: Any = None) -> Array:
        """Gibbs steps from the rows of X: h ~ p(h | v), then v ~ p(v | h), and so on; returns v."""
        X = self._validated(X)
        if n_steps < 1:
            raise ValueError(f"n_steps must be at least 1, got {n_steps}.")
        with self._threads():
            v0, model = self._to_units(X), self._model_here()
            chains = sample(model, Gibbs(), v0=v0, n_steps=n_steps, seed=self._seed(random_state))
        return self._array(chains.v, X.dtype)

    # Missing and noisy data.

    def impute(
        self,
        X: Any,
        *,
        noise_std: Any = 0.0,
        n_steps: int = 200,
        n_chains: int = 4,
        n_replicas: int | None = None,
        random_state: Any = None,
    ) -> Array:
        """X with its NaNs filled in by the mean of what is missing given what is not; see `grbm.impute`.

        With ``noise_std`` (a number, or one per feature) X is taken to be v + normal noise of that deviation, and what
        is returned is the mean of v. Behind a scaler: ``scaler.inverse_transform(rbm.impute(scaler.transform(X)))``.
        """
        if n_steps < 4 or n_chains < 1:
            raise ValueError(f"n_steps must be at least 4 and n_chains at least 1, got {n_steps} and {n_chains}.")
        X = self._validated(X, gaps=True)
        noise = np.asarray(noise_std, dtype=np.float64)
        if noise.shape not in ((), X.shape[1:]) or not (noise >= 0).all():
            raise ValueError("noise_std is a standard deviation: numbers of 0 or more, one or one per feature.")
        coordinates = self._coordinates()
        if coordinates.whitened is not None and not n_replicas:
            q = coordinates.whitened.reference.widened(coordinates.whitened.base)
            with self._threads():
                steps: dict[str, int] = {"n_steps": n_steps, "burn_in": n_steps // 4, "n_chains": n_chains}
                steps["seed"] = self._seed(random_state)
                model, known = self.to_model(np.float64), torch.tensor(X).double()
                filled = measured.impute(model, coordinates.scale, q, known, np.square(noise), **steps).mean.numpy()
            return np.where(~np.isnan(X) & (noise == 0), X, filled.astype(X.dtype))
        if coordinates.whitened is not None:
            raise ValueError("n_replicas goes with whiten=False; whitened rows have global moves in its place.")
        rows = self._to_units(X)
        with self._threads():
            found = impute(
                self._model_here(),
                rows,
                noise_var=coordinates.scale.deviations_in_units(torch.tensor(noise)).square().to(rows),
                n_steps=n_steps,
                burn_in=n_steps // 4,
                n_chains=n_chains,
                n_replicas=n_replicas,
                base=self._base_here(),
                seed=self._seed(random_state),
            )
        return np.where(~np.isnan(X) & (noise == 0), X, self._array(found.mean, X.dtype))

    def denoise(self, X: Any, noise_std: Any, **options: Any) -> Array:
        """The mean of v given X = v + normal noise of deviation ``noise_std``; options as in `impute`."""
        return self.impute(X, noise_std=noise_std, **options)

    # Densities.

    def score_samples(self, X: Any) -> Array:
        """Log-likelihood log p of each row of X, in nats and in the units of the features: (n_samples,).

        With up to 20 components it is exact, else log Z is estimated; `log_partition` says how, and how surely. Where
        features are constant or collinear it is the density of the others, and −inf for rows in which they are not as
        they were in all rows learned from.
        """
        X = self._validated(X)
        log_z = self.log_partition().value
        with torch.no_grad():
            log_p: Array = self.to_model(np.float64).log_prob(self._exactly(X), log_z).numpy()
        scale = self._coordinates().scale
        broken = scale.breaks(torch.tensor(X)).any(1).numpy()
        if broken.any():
            which = " or ".join(
                k for k, found in (("constant", self.constant_), ("collinear", self.collinear_)) if found
            )
            warn_user(
                f"{int(broken.sum())} of {len(X)} rows have no density: features "
                f"{sorted(self.constant_ + self.collinear_)} were {which} in all rows learned from, and here are not.",
                UserWarning,
            )
        return np.where(broken, -np.inf, log_p + scale.log_det)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean of `score_samples`."""
        return float(self.score_samples(X).mean())

    def log_partition(self, *, n_steps: int = 1000, n_chains: int = 500) -> LogPartition:
        """log Z of the machine: exact up to 20 components with weights, else bridged from the mixture that fits X.

        The bridge (`grbm.evaluate.bridging`) has 20 draws of the mixture for each of ``n_chains`` and a tenth of
        ``n_steps`` states of chains that jump by such draws. Without whitening it is AIS from both ends, with
        ``n_steps`` temperatures. What was found is kept, and serves `score_samples`, until other settings are asked for
        or learning goes on.
        """
        check_is_fitted(self)
        asked = [n_steps, n_chains]
        if self._log_z is None or asked not in (self._log_z_settings, [1000, 500]):
            self._log_z_settings = asked
            if exact.is_enumerable(model := self.to_model(np.float64)):
                self._log_z = [exact.log_z(model), 0.0, "exact", "Exact.", True]
            else:
                model, reference = self._model_here(), self._reference()
                with self._threads():
                    if reference is not None:
                        n_draws, n_states = LOG_Z_DRAWS * n_chains, max(1, n_steps // 10)
                        found = log_z_of(model, reference, n_states=n_states, n_draws=n_draws)
                    else:
                        chains = torch.tensor(self._chains, device=model.W.device)
                        chains = chains[-1] if chains.ndim == 3 else chains
                        sizes: dict[str, int] = {"n_steps": n_steps, "n_chains": n_chains, "settling": SETTLING}
                        found = ais.log_z(model, chains, base=self._base_here(), **sizes)
                method = "AIS" if reference is None else "reference"
                self._log_z = [found.log_z, found.error, method, f"{found.finding}.", found.converged]
        assert self._log_z is not None
        log_z = LogPartition(*self._log_z)
        if not log_z.converged:
            more = f"log_partition(n_steps={10 * self._log_z_settings[0]:_})"
            warn_user(
                f"log Z is uncertain. {log_z.verdict} Call {more}, or take at most 20 components, where it is exact.",
                ConvergenceWarning,
            )
        return log_z

    def to_model(self, dtype: Any = np.float32) -> GRBM:
        """The fitted `grbm.GRBM`, a copy, on the CPU, of rows as `to_coordinates` gives them."""
        check_is_fitted(self)
        return GRBM.from_parameters({n: torch.tensor(x) for n, x in self._best.items()}).to(_torch_type(dtype))

    def to_coordinates(self, X: Any) -> Array:
        """X as the machine sees it, (n_samples, n_units), float64: whitened, standardised or as it is."""
        found: Array = self._exactly(self._validated(X)).numpy()
        return found

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _torch_type(dtype: Any) -> torch.dtype:
    return torch.float64 if np.dtype(dtype) == np.float64 else torch.float32
