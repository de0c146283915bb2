"""What a fitted estimator holds, arrays alone, and the state of training that they stand for."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from grbm.coordinates import Coordinates, Units
from grbm.data.tables import refuse_magnitudes
from grbm.devices import pick_device, threads
from grbm.errors import DivergenceError
from grbm.initialise import anchored_, gaussian_
from grbm.model import GRBM, Base
from grbm.objectives import PCD, Adaptation
from grbm.options import Recipe, has_rounds, recipe_for, sees_clusters
from grbm.randomness import generator
from grbm.recipe import Learned, Progress, begin, optimizer
from grbm.samplers import Gibbs, GlobalMoves, ParallelTempering, Sampler
from grbm.table_checks import Array, as_numbers, check_distance, check_scale, refuse_datasets, refuse_gaps
from grbm.training import TrainState

FLOATS = (np.float64, np.float32)
ALONE = 1e6  # weights x chains x replicas of a step; below it a second thread gains at most 15 %
MOST_HIDDEN = 256  # that "auto" comes to
LOWER = "Take a smaller learning_rate, or a larger min_variance."
ADVICE = "Are the features standardised (StandardScaler)? If so, take a smaller learning_rate or a larger min_variance."


@contextmanager
def explained(units: Units, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """What to do where learning diverges, in the estimator's own words, after ``undo``."""
    try:
        yield
    except DivergenceError as error:
        undo()
        raise DivergenceError(error.divergence, advice=ADVICE if units == "features" else LOWER) from error


PLAIN = {"n_chains": 64, "min_var": 0.02, "variance_rate": 1.0, "n_updates": 2000, "rounds": 0}  # without whitening


class LogPartition(NamedTuple):
    """log Z in nats."""

    value: float
    error: float  # standard error; 0 where exact
    method: Literal["exact", "AIS", "reference"]
    verdict: str  # whether it can be trusted, in words
    converged: bool  # the same as a fact; True where exact


class FittedState:
    """Between arrays and the state of training: the private half of `grbm.GaussianBernoulliRBM`.

    Its public half gives the parameters, such as ``n_steps``, and `to_model`.
    """

    n_components: Any
    learning_rate: float | None
    batch_size: int
    n_steps: int
    n_chains: int | None
    n_replicas: int | None
    n_contrasts: Any
    restart: float
    min_variance: float | None
    random_state: Any
    device: str
    n_jobs: int | None
    components_: Array
    constant_: list[int]
    collinear_: list[int]
    is_gaussian_: bool
    n_features_in_: int
    validation_scores_: list[float]
    best_validation_score_: float | None
    n_updates_: int
    _learned_with: int
    _log_z: list[Any] | None  # what `log_partition` has found, and with which settings
    _log_z_settings: list[int]

    @abstractmethod
    def to_model(self, dtype: Any = np.float32) -> GRBM:
        """The fitted machine."""
        ...

    def contrast_proba(self, X: Any) -> Array:
        """p(k | v), which of the scales in ``contrasts_`` each row of X has: (n_samples, n_contrasts)."""
        X = self._validated(X)
        model = self.to_model(X.dtype)
        with torch.no_grad():
            shares: Array = model.contrast(self._exactly(X).to(model.W)).numpy()
        return shares

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")

    def _begin(self, X: Array, units: Units, *, whole: bool = True) -> TrainState:
        if units != "whitened" and self.n_contrasts not in ("auto", 1):
            raise ValueError(
                f"n_contrasts={self.n_contrasts} needs whitened rows: whiten=True, and fit, not partial_fit."
            )
        whitened = self._find(X, units).whitened
        self._seen: list[Any] = [0, 0.0, 0.0]
        self._see(X)
        recipe = self._recipe(len(X))
        if whitened is not None:
            return begin(self._to_units(X), whitened, recipe, self._learned_with)
        if units == "features":
            check_scale(X, getattr(self, "feature_names_in_", None), whole=whole)
        model = GRBM(self._coordinates().scale.n_units, recipe.n_hidden)
        length = min(0.3, 1.5 * (model.n_visible / recipe.n_hidden) ** 0.5)  # so that all units together vary as X does
        anchored_(model, self._exactly(X), length=length, seed=self._learned_with)
        model.to(self._device())
        return TrainState(model, optimizer(model, recipe), seed=self._learned_with)

    def _find(self, X: Array, units: Units) -> Coordinates:
        """Coordinates of the rows X, which become those of the machine."""
        asked = None if self.n_components == "auto" else int(self.n_components)
        n_hidden = recipe_for(len(X), asked, X.shape[1]).n_hidden
        how: dict[str, Any] = {"fine": sees_clusters(n_hidden), "seed": self._learned_with}
        how["n_contrasts"] = None if self.n_contrasts == "auto" else int(self.n_contrasts)
        found = Coordinates.find(X, units, **how)
        self._coordinates_ = found.state()
        left_out = (~found.scale.kept).nonzero().squeeze(1).tolist()
        self.constant_ = left_out if found.whitened is None else list(found.whitened.constant)
        self.collinear_ = [] if found.whitened is None else list(found.whitened.collinear)
        return found

    def _gaussian_of(self, X: Array, learned: Learned) -> Learned:
        """The one Gaussian that is kept, of all rows, and the start of learning in its coordinates."""
        whitened = self._find(X, "whitened").whitened
        assert whitened is not None
        state = begin(self._to_units(X), whitened, self._recipe(len(X)), self._learned_with)
        state.update = learned.state.update
        model = gaussian_(copy.deepcopy(state.model), *(x.to(state.model.W) for x in whitened.base))
        return learned._replace(model=model, state=state)

    def _resume(self, X: Array) -> TrainState:
        if self.n_components not in ("auto", len(self.components_)):
            raise ValueError(
                f"n_components is {self.n_components} now, but {len(self.components_)} are learned, and partial_fit "
                f"goes on with those; set it back, or fit anew."
            )
        if self.n_contrasts not in ("auto", len(self.contrasts_)):
            raise ValueError(
                f"n_contrasts is {self.n_contrasts} now, but {len(self.contrasts_)} are learned; set it back, or "
                "fit anew."
            )
        self._see(X)
        model, average = self._model_here(), self._model_here()
        model.load_state_dict({name: torch.tensor(x) for name, x in self._raw.items()})
        average.load_state_dict({name: torch.tensor(x) for name, x in self._average.items()})
        recipe = self._recipe(len(X))
        state = TrainState(model, optimizer(model, recipe), seed=self._learned_with, update=self.n_updates_)
        state.average = average
        shape = (recipe.n_chains, model.n_visible)
        tempered = isinstance(self._sampler(), ParallelTempering)
        if self._chains.shape == ((self._replicas, *shape) if tempered else shape):  # else new chains
            state.persistent = torch.tensor(self._chains, device=model.W.device)
            state.adaptation = Adaptation({name: torch.tensor(x) for name, x in self._memory.items()})
        return state

    def _see(self, X: Array) -> None:
        """Take the rows of X into the number, mean and variance of all rows that learning has seen."""
        n, mean, var = self._seen
        here, total = X.mean(0, dtype=np.float64), n + len(X)
        spread = n * var + len(X) * X.var(0, dtype=np.float64) + n * len(X) / total * np.square(here - mean)
        self._seen = [total, mean + len(X) / total * (here - mean), spread / total]

    def _complete(self, X: Any, *, reset: bool = True) -> Array:
        """Rows to learn from, checked."""
        refuse_datasets(X)
        X = validate_data(self, as_numbers(X), dtype=FLOATS, reset=reset, ensure_all_finite="allow-nan")
        refuse_gaps(X, "Learning needs complete rows: fill X first (SimpleImputer); a fitted machine has impute.")
        refuse_magnitudes(X.min(0), X.max(0), "X", X.dtype)
        return np.ascontiguousarray(X)

    def _validated(self, X: Any, *, gaps: bool = False) -> Array:
        """Rows for a fitted machine, checked; they may have ``gaps`` (NaN)."""
        check_is_fitted(self)
        X = validate_data(self, as_numbers(X), dtype=FLOATS, reset=False, ensure_all_finite="allow-nan")
        if not gaps:
            refuse_gaps(X, "Fill the gaps of X first: impute(X).")
        array: Array = np.ascontiguousarray(X)
        n, mean, var = self._seen
        coordinates = self._coordinates()
        unsure = 0 if coordinates.whitened is not None else 10 / (n + 10) * coordinates.scale.scale.numpy() ** 2
        check_distance(array, np.asarray(mean), np.asarray(var + unsure))
        return array

    def _keep(self, state: TrainState, dtype: Any, model: GRBM) -> None:
        """The state as arrays: what learning goes on from, and the model that everything else uses."""
        self._best = {name: p.detach().cpu().double().numpy().copy() for name, p in model.state_dict().items()}
        inside = self._coordinates().in_features(model)
        self.components_ = np.ascontiguousarray(inside.components, dtype=dtype)
        self.intercept_hidden_ = self._best["b"].astype(dtype)
        self.intercept_visible_ = inside.intercept.astype(dtype)
        self.variances_ = inside.variances.astype(dtype)
        pairs = [x.exp().tolist() for x in (model.contrasts.log_scales, model.contrasts.log_weights)]
        self.contrasts_ = np.array(pairs, dtype=dtype).T.copy()
        average = state.average or state.model
        self._raw, self._average = (
            {name: p.detach().cpu().numpy().copy() for name, p in m.state_dict().items()}
            for m in (state.model, average)
        )
        chains = state.persistent
        if chains is None:  # no update was made
            shape = (self._recipe(1).n_chains, model.n_visible)
            chains = torch.randn(shape, generator=generator(state.seed, "no chains"))
        self._chains = chains.cpu().numpy()
        self._memory = {name: x.cpu().numpy() for name, x in state.adaptation.state_dict.items()}
        v = chains[-1] if chains.ndim == 3 else chains
        shown = average.at_any_contrast(v, generator(state.seed, "shown", device=v.device))
        self.v_samples_ = self._array(shown, dtype)
        self.n_updates_ = state.update
        self._log_z, self._log_z_settings = None, []

    def _recipe(self, n_rows: int) -> Recipe:
        """How `fit` and `partial_fit` learn: what the user said, and the rest by the size of the table."""
        is_whitened = "weights" in self._coordinates_
        known = len(self.components_) if self.__sklearn_is_fitted__() else None
        asked = known or (None if self.n_components == "auto" else int(self.n_components))
        chosen = recipe_for(n_rows, asked, self.n_features_in_)
        plain = {} if is_whitened else dict(PLAIN)
        if is_whitened and not has_rounds(n_rows, self._coordinates().scale.n_units):
            plain["rounds"] = 0
        if not is_whitened and known is None and self.n_components == "auto":
            plain["n_hidden"] = MOST_HIDDEN
        said = {"learning_rate": self.learning_rate, "n_chains": self.n_chains, "min_var": self.min_variance}
        said |= {"batch_size": self.batch_size, "n_moves": self.n_steps}
        changed: Any = plain | {name: x for name, x in said.items() if x is not None}
        return replace(chosen, **changed)

    def _coordinates(self) -> Coordinates:
        return Coordinates.from_state(self._coordinates_)

    def _device(self) -> torch.device:
        """The same at all times, however many hidden units "auto" comes to; global moves have no kernels on a GPU."""
        n_hidden = MOST_HIDDEN if self.n_components == "auto" else int(self.n_components)
        n_chains = 0 if self._reference() is not None else self._recipe(1).n_chains * self._replicas
        return pick_device(self.device, self.n_features_in_ * n_hidden * n_chains * self.n_steps)

    def _threads(self) -> AbstractContextManager[None]:
        """Those asked for; else one where steps are so short that threads would mostly wait for one another."""
        if self.n_jobs is not None:
            return threads(effective_n_jobs(self.n_jobs))
        n_hidden = len(self.components_) if self.__sklearn_is_fitted__() else self._recipe(self._seen[0]).n_hidden
        work = self._coordinates().scale.n_units * n_hidden * self._recipe(1).n_chains * self._replicas_in_use
        return threads(1 if work < ALONE else None)

    def _objective(self) -> PCD:
        sampler, recipe = self._sampler(), self._recipe(1)
        n_steps = 1 if isinstance(sampler, GlobalMoves) else self.n_steps
        return PCD(sampler, n_steps, recipe.n_chains, probabilities=True, restart=self.restart)

    @property
    def _replicas_in_use(self) -> int:
        return 1 if isinstance(self._sampler(), GlobalMoves) else self._replicas

    @property
    def _replicas(self) -> int:
        return 8 if self.n_replicas is None else self.n_replicas

    def _sampler(self) -> Sampler:
        """What moves the chains of learning."""
        reference = self._reference()
        if reference is not None and self.n_replicas is None:
            return reference
        return Gibbs() if self._replicas == 1 else ParallelTempering(self._base_here(), self._replicas)

    def _reference(self) -> GlobalMoves | None:
        """Chains that jump by draws of what fits the data; None without whitening."""
        whitened = self._coordinates().whitened
        return None if whitened is None else GlobalMoves(whitened.reference.widened(whitened.base), self.n_steps)

    def _base_here(self) -> Base:
        """The base of tempered paths: mean and variance of the data, in the machine's units, near 1 for few rows."""
        device, coordinates = self._device(), self._coordinates()
        if coordinates.whitened is not None:
            return Base(*(x.to(device) for x in coordinates.whitened.base))
        n, mean, var = self._seen
        centre, scale, kept = (
            x.numpy() for x in (coordinates.scale.mean, coordinates.scale.scale, coordinates.scale.kept)
        )
        parts = ((mean - centre) / scale)[kept], ((n * var / scale**2 + 10) / (n + 10))[kept]
        return Base(*(torch.tensor(x, dtype=torch.float32, device=device) for x in parts))

    def _model_here(self) -> GRBM:
        return self.to_model().to(self._device())

    def _exactly(self, X: Array) -> torch.Tensor:
        return self._coordinates().to_units(X)

    def _to_units(self, X: Array) -> torch.Tensor:
        return self._exactly(X).float().to(self._device())

    def _array(self, z: torch.Tensor, dtype: Any = None) -> Array:
        """Rows in the machine's units as rows of features."""
        return self._coordinates().to_features(z).astype(dtype or self.components_.dtype)

    def _seed(self, random_state: Any) -> int:
        return int(check_random_state(self.random_state if random_state is None else random_state).randint(2**31 - 1))


def sentence(progress: Progress, log_det: float, rows: torch.Tensor, seconds: float) -> str:
    """A line of progress."""
    if progress.nats is not None:
        what = f"held-out log-likelihood {progress.nats.mean + log_det:.4g} ± {progress.nats.error:.2g} nats"
    else:
        model, some = progress.state.model, rows[:1000]
        with torch.no_grad():
            error = (model.reconstruction(some) - some).square().mean()
        what = f"mean squared reconstruction error {error:.4g}"
    return f"[GaussianBernoulliRBM] Update {progress.update:,} of {progress.n_updates:,}, {what}, {seconds:.1f} s"
