"""`GaussianBernoulliRBM`, the scikit-learn estimator: a real-valued table in, codes, samples and densities out."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data

from grbm.conditional import impute
from grbm.devices import pick_device, threads
from grbm.errors import DivergenceError
from grbm.evaluate import ais, exact
from grbm.initialise import anchored_
from grbm.model import GRBM, Base
from grbm.objectives import PCD, Adaptation
from grbm.options import FitOptions
from grbm.randomness import generator
from grbm.samplers import Annealed, Gibbs, ParallelTempering, Sampler, sample
from grbm.table_checks import Array, check_distance, check_scale, refuse_datasets, refuse_gaps, warn_user
from grbm.training import TrainState, fit, train_step

FLOATS = (np.float64, np.float32)
AVERAGE_DECAY = 0.99
FEWEST_ANNEALED, PARTING = 256, 50
DEFAULT_UPDATES = 2000
PARAMETERS = {"components_": "W", "intercept_hidden_": "b", "intercept_visible_": "mu", "variances_": "log_var"}
ADVICE = "Are the features standardised (StandardScaler)? If so, take a smaller learning_rate or a larger min_variance."
SETTLING = 5000  # Gibbs steps of the persistent chains before they go back, in AIS


@contextmanager
def _explained(undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """What to do where learning diverges, in the estimator's own words, after ``undo``."""
    try:
        yield
    except DivergenceError as error:
        undo()
        raise DivergenceError(error.divergence, advice=ADVICE) from error


class LogPartition(NamedTuple):
    """log Z in nats."""

    value: float
    error: float  # standard error; 0 where exact
    method: Literal["exact", "AIS"]
    verdict: str  # whether it can be trusted, in words
    converged: bool  # the same as a fact; True where exact


class GaussianBernoulliRBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A Gaussian-Bernoulli restricted Boltzmann machine: real-valued features, binary components.

    The density is p(v) = Σ_h exp(−E(v, h))/Z with E(v, h) = ½ Σ_i (v_i − μ_i)²/σ_i² − Σ_i (v_i/σ_i²)(W h)_i − b·h, a
    mixture of 2^n_components Gaussians that share their factors. Learned by persistent contrastive divergence: hidden
    units start undecided at rows of X (`grbm.anchored_`), chains are tempered, the gradient is centred, and what counts
    is a running average of the parameters.

    Features should be standardised (`sklearn.preprocessing.StandardScaler`), and rows complete.

    Parameters
    ----------
    n_components : int, default=256
        Binary hidden units.
    learning_rate : float, default=0.05
        Of plain gradient ascent; `fit` lets it fall to 0 by a cosine, `partial_fit` keeps it.
    batch_size : int, default=256
        Rows of an update; at most all.
    n_iter : int, default=None
        Passes over the data; None is as many as make 2,000 updates.
    n_steps : int, default=5
        Gibbs steps of the chains for each update.
    n_chains : int, default=64
        Persistent chains.
    n_replicas : int, default=8
        Replicas of parallel tempering for each chain; 1 is none, and several times as fast. Where the data are clusters
        far apart, chains that are not tempered do not go from one to another, and learning goes wrong.
    restart : float, default=0
        Probability that a chain starts again from noise at an update: 0 is maximum likelihood as far as the chains mix;
        0.1 keeps the way from noise to the data open for plain Gibbs chains.
    min_variance : float, default=0.02
        Lower bound of the variances, in the units of the features.
    verbose : int, default=0
        1 prints ten lines of progress.
    random_state : int, RandomState instance or None, default=None
        An int makes everything reproducible, whatever the number of threads.
    device : str, default="auto"
        "cpu", "cuda", ..., or "auto": a GPU if there is one.
    n_jobs : int, default=None
        Threads of training and sampling; None is PyTorch's own number, -1 all processors.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Wᵀ, of the running average of the parameters, as are the next three.
    intercept_hidden_ : ndarray of shape (n_components,)
        b.
    intercept_visible_ : ndarray of shape (n_features,)
        μ.
    variances_ : ndarray of shape (n_features,)
        σ².
    v_samples_ : ndarray of shape (n_chains, n_features)
        The persistent chains' visible units.
    n_iter_ : int
        Passes over the data.
    n_updates_ : int
        Updates of the parameters.
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
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "n_iter": [Interval(Integral, 0, None, closed="left"), None],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "n_chains": [Interval(Integral, 1, None, closed="left")],
        "restart": [Interval(Real, 0, 1, closed="both")],
        "n_replicas": [Interval(Integral, 1, None, closed="left")],
        "min_variance": [Interval(Real, 0, None, closed="neither")],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
        "device": [str],
        "n_jobs": [Integral, None],
    }

    _log_z: list[Any] | None  # what `log_partition` has found, and with which settings
    _log_z_settings: list[int]

    def __init__(
        self,
        n_components: int = 256,
        *,
        learning_rate: float = 0.05,
        batch_size: int = 256,
        n_iter: int | None = None,
        n_steps: int = 5,
        n_chains: int = 64,
        n_replicas: int = 8,
        restart: float = 0.0,
        min_variance: float = 0.02,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.n_steps = n_steps
        self.n_chains = n_chains
        self.n_replicas = n_replicas
        self.restart = restart
        self.min_variance = min_variance
        self.verbose = verbose
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs

    # Learning.

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the density of X (n_samples, n_features).

        Raises
        ------
        DivergenceError
            When numbers leave the finite world, which unscaled features can cause.
        """
        for name in (*PARAMETERS, "n_iter_"):  # what was learned before is of other data
            self.__dict__.pop(name, None)
        X = self._complete(X)
        check_scale(X, getattr(self, "feature_names_in_", None))
        batch = min(self.batch_size, len(X))
        per_pass = len(X) // batch
        n_iter = math.ceil(DEFAULT_UPDATES / per_pass) if self.n_iter is None else self.n_iter
        state, data = self._begin(X), self._tensor(X)
        start, total = time.perf_counter(), n_iter * per_pass
        with self._threads(), _explained():
            for _ in fit(state, data, self._objective(), replace(self._options(), n_updates=total)):
                if self.verbose and state.update * 10 // total > (state.update - 1) * 10 // total:
                    with torch.no_grad():
                        error = (state.model.visible_mean(state.model(data[:batch])) - data[:batch]).square().mean()
                    print(
                        f"[GaussianBernoulliRBM] Update {state.update:,} of {total:,}, mean squared "
                        f"reconstruction error {error:.4g}, {time.perf_counter() - start:.1f} s",
                        flush=True,
                    )
        self._keep(state, X.dtype)
        self.n_iter_ = n_iter
        return self

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Go on learning from the rows of X, each once and in their order, at a constant learning rate."""
        first = not self.__sklearn_is_fitted__()
        X = self._complete(X, reset=first)
        if first:
            check_scale(X, getattr(self, "feature_names_in_", None), whole=False)
        seen = getattr(self, "_seen", None)
        state = self._begin(X) if first else self._resume(X)
        data = self._tensor(X)
        with self._threads(), _explained(lambda: setattr(self, "_seen", seen)):
            for batch in torch.split(data, self.batch_size):
                train_step(state, self._objective(), batch, self._options())
            state.settle()
        self._keep(state, X.dtype if first else self.components_.dtype)
        self.n_iter_ = 1 if first else self.n_iter_ + 1
        return self

    # Codes.

    def transform(self, X: Any) -> Array:
        """Hidden probabilities p(h = 1 | v) of X (n_samples, n_features): (n_samples, n_components)."""
        X = self._validated(X)
        with torch.no_grad():
            codes: Array = self.to_model(X.dtype).forward(torch.tensor(X)).numpy()
        return codes

    def inverse_transform(self, X: Any) -> Array:
        """The mean of v given hidden units or their probabilities X (n_samples, n_components): μ + W h."""
        check_is_fitted(self)
        H = np.asarray(X)
        H = np.ascontiguousarray(H, dtype=H.dtype if H.dtype in FLOATS else np.float64)
        if H.ndim != 2 or H.shape[1] != len(self.components_):
            raise ValueError(f"X must be (n_samples, {len(self.components_)}), hidden units, got shape {H.shape}.")
        with torch.no_grad():
            visible: Array = self.to_model(H.dtype).visible_mean(torch.tensor(H)).numpy()
        return visible

    # Samples.

    def sample(self, n_samples: int = 1, *, n_steps: int = 500, random_state: Any = None) -> Array:
        """Draw rows from the model: chains annealed from a Gaussian in ``n_steps`` steps, (n_samples, n_features).

        Their importance weights give far clusters their shares (`grbm.Annealed`). ``random_state`` is by default the
        estimator's own, so that an int there makes every call draw the same.
        """
        check_is_fitted(self)
        if n_samples < 1 or n_steps < 1:
            raise ValueError(f"n_samples and n_steps must be at least 1, got {n_samples} and {n_steps}.")
        model, seed = self._model_here(), self._seed(random_state)
        n_chains = max(n_samples, FEWEST_ANNEALED)
        with self._threads():
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
            v0, model = self._tensor(X), self._model_here()
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
        with self._threads():
            found = impute(
                self._model_here(),
                self._tensor(X),
                noise_var=self._tensor(np.square(noise)),
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
        """Log-likelihood log p(v) of each row of X, in nats: (n_samples,).

        With up to 20 components it is exact, else log Z is estimated by annealed importance sampling; `log_partition`
        says which, and how surely. It is the density of the features as they are given: standardise by s, and
        the density of what was standardised is lower by Σ log s.
        """
        X = self._validated(X)
        log_z = self.log_partition().value
        with torch.no_grad():
            log_p: Array = self.to_model(np.float64).log_prob(torch.tensor(X, dtype=torch.float64), log_z).numpy()
        return log_p

    def score(self, X: Any, y: Any = None) -> float:
        """Mean of `score_samples`."""
        return float(self.score_samples(X).mean())

    def log_partition(self, *, n_steps: int = 1000, n_chains: int = 500) -> LogPartition:
        """log Z: by enumeration up to 20 components, else by AIS from both ends, with ``n_steps`` temperatures.

        What was found is kept, and serves `score_samples`, until other settings are asked for or learning goes on.
        """
        check_is_fitted(self)
        asked = [n_steps, n_chains]
        known = self._log_z is not None and len(self._log_z) == len(LogPartition._fields)  # fewer in version 0.1
        if not known or asked not in (self._log_z_settings, [1000, 500]):
            self._log_z_settings = asked
            if len(self.components_) <= exact.MAX_HIDDEN:
                self._log_z = [exact.log_z(self.to_model(np.float64)), 0.0, "exact", "Exact.", True]
            else:
                model = self._model_here()
                chains = torch.tensor(self.v_samples_, dtype=torch.float32)
                base = self._base_here()
                with self._threads():
                    found = ais.log_z(model, chains, base=base, n_steps=n_steps, n_chains=n_chains, settling=SETTLING)
                self._log_z = [found.log_z, found.error, "AIS", f"{found.finding}.", found.converged]
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
        """The fitted `grbm.GRBM`, a copy, on the CPU."""
        check_is_fitted(self)
        model = GRBM(self.n_features_in_, len(self.components_), dtype=torch.float64)
        with torch.no_grad():
            for name, parameter in PARAMETERS.items():
                values = torch.tensor(getattr(self, name), dtype=torch.float64)
                values = values.T if parameter == "W" else values.log() if parameter == "log_var" else values
                model.get_parameter(parameter).copy_(values)
        return model.to(torch.float64 if np.dtype(dtype) == np.float64 else torch.float32)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Between arrays, which is what a fitted estimator holds, and the state of training.

    def _begin(self, X: Array) -> TrainState:
        self._learned_with = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._seen: list[Any] = [0, 0.0, 0.0]
        self._see(X)
        model = GRBM(X.shape[1], self.n_components)
        length = min(0.3, 1.5 * (X.shape[1] / self.n_components) ** 0.5)  # so that all units together vary as X does
        anchored_(model, torch.tensor(X), length=length, seed=self._learned_with)
        model.to(pick_device(self.device))
        return TrainState(model, self._optimizer(model), seed=self._learned_with)

    def _resume(self, X: Array) -> TrainState:
        if self.n_components != len(self.components_):
            raise ValueError(
                f"n_components is {self.n_components} now, but {len(self.components_)} are learned, and partial_fit "
                f"goes on with those; set it back, or fit anew."
            )
        self._see(X)
        model = self._model_here()
        average = self._model_here()
        model.load_state_dict({name: torch.tensor(x) for name, x in self._raw.items()})
        state = TrainState(model, self._optimizer(model), seed=self._learned_with, update=self.n_updates_)
        state.average = average
        shape = (self.n_chains, X.shape[1])
        if self._chains.shape == (shape if self.n_replicas == 1 else (self.n_replicas, *shape)):  # else new chains
            state.persistent = self._tensor(self._chains)
            state.adaptation = Adaptation({name: torch.tensor(x) for name, x in self._memory.items()})
        return state

    def _see(self, X: Array) -> None:
        """Take the rows of X into the number, mean and variance of all rows that learning has seen."""
        n, mean, var = self._seen
        here, total = X.mean(0, dtype=np.float64), n + len(X)
        spread = n * var + len(X) * X.var(0, dtype=np.float64) + n * len(X) / total * np.square(here - mean)
        self._seen = [total, mean + len(X) / total * (here - mean), spread / total]

    def _keep(self, state: TrainState, dtype: Any) -> None:
        """The state as arrays: what learning goes on from, and the average, which everything else uses."""
        model = state.average or state.model
        for name, parameter in PARAMETERS.items():
            values = model.get_parameter(parameter).detach().cpu().double()
            values = values.T if parameter == "W" else values.exp() if parameter == "log_var" else values
            setattr(self, name, np.ascontiguousarray(values.numpy(), dtype=dtype))
        self._raw = {name: p.detach().cpu().numpy().copy() for name, p in state.model.named_parameters()}
        chains = state.persistent
        if chains is None:  # no update was made
            chains = torch.randn(self.n_chains, self.n_features_in_, generator=generator(state.seed, "no chains"))
        self._chains = chains.cpu().numpy()
        self._memory = {name: x.cpu().numpy() for name, x in state.adaptation.state_dict.items()}
        self.v_samples_ = (self._chains[-1] if self._chains.ndim == 3 else self._chains).astype(dtype)
        self.n_updates_ = state.update
        self._log_z, self._log_z_settings = None, []

    def _options(self) -> FitOptions:
        """How `fit` and `partial_fit` learn."""
        return FitOptions(
            batch_size=self.batch_size, centred=True, min_var=self.min_variance, average_decay=AVERAGE_DECAY
        )

    def _threads(self) -> AbstractContextManager[None]:
        return threads(None if self.n_jobs is None else effective_n_jobs(self.n_jobs))

    def _objective(self) -> PCD:
        return PCD(self._sampler(), self.n_steps, self.n_chains, probabilities=True, restart=self.restart)

    def _sampler(self) -> Sampler:
        if self.n_replicas == 1:
            return Gibbs()
        return ParallelTempering(self._base_here(), self.n_replicas)

    def _base_here(self) -> Base:
        """The base of tempered paths: the mean and variance of the data, the latter near 1 while rows are few."""
        n, mean, var = self._seen
        parts = mean, (n * var + 10) / (n + 10)
        return Base(*(torch.tensor(x, dtype=torch.float32, device=pick_device(self.device)) for x in parts))

    def _optimizer(self, model: GRBM) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate)

    def _model_here(self) -> GRBM:
        return self.to_model().to(pick_device(self.device))

    def _complete(self, X: Any, *, reset: bool = True) -> Array:
        """Rows to learn from, checked."""
        refuse_datasets(X)
        X = validate_data(self, X, dtype=FLOATS, reset=reset, ensure_all_finite="allow-nan")
        refuse_gaps(X, "Learning needs complete rows: fill X first (SimpleImputer); a fitted machine has impute.")
        return np.ascontiguousarray(X)

    def _validated(self, X: Any, *, gaps: bool = False) -> Array:
        """Rows for a fitted machine, checked; they may have ``gaps`` (NaN)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False, ensure_all_finite="allow-nan")
        if not gaps:
            refuse_gaps(X, "Fill the gaps of X first: impute(X).")
        array: Array = np.ascontiguousarray(X)
        base = self._base_here()
        check_distance(array, base.mean.cpu().numpy(), base.var.cpu().numpy())
        return array

    def _tensor(self, X: Array) -> torch.Tensor:
        return torch.tensor(X, dtype=torch.float32, device=pick_device(self.device))

    def _array(self, v: torch.Tensor, dtype: Any = None) -> Array:
        return v.cpu().numpy().astype(dtype or self.components_.dtype)

    def _seed(self, random_state: Any) -> int:
        return int(check_random_state(self.random_state if random_state is None else random_state).randint(2**31 - 1))
