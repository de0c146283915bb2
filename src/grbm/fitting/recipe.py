"""Settings of training, and `resolve`, which chooses defaults from facts of a table for estimator and runs.

PyTorch is imported only when an object is built.
"""

import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from grbm.core.errors import UserError
from grbm.core.options import FitOptions, sees_clusters
from grbm.data.config import Mode

if TYPE_CHECKING:
    import torch

    from grbm.data.frame import Frame
    from grbm.learning.objectives import Objective
    from grbm.model import GRBM
    from grbm.samplers import Sampler

SamplerName = Literal[
    "gibbs", "langevin", "gibbs-langevin", "partial-gibbs", "global-moves",
    "parallel-tempering", "trajectory-tempering", "annealed",
]  # fmt: skip
SAMPLERS = get_args(SamplerName)


def _given(config: Any) -> dict[str, Any]:
    """Options of a sampler or objective that are not at their defaults."""
    options = {f.name: (getattr(config, f.name), f.default) for f in fields(config) if f.name != "name"}
    return {name: value for name, (value, default) in options.items() if value != default}


@contextmanager
def _checked(what: str, given: Mapping[str, Any], takes: Set[str]) -> Iterator[None]:
    """Raise UserError for options that a sampler or objective does not take, or whose values it refuses."""
    if wrong := sorted(given.keys() - takes):
        raise UserError(f"The {what} has no option {wrong[0]}; it takes {', '.join(sorted(takes)) or 'no options'}.")
    try:
        yield
    except ValueError as error:
        raise UserError(f"The {what} was refused: {error}") from error


@dataclass(frozen=True)
class ModelConfig:
    """The model and where its parameters start."""

    n_hidden: int = 256
    """Binary hidden units."""
    start: Literal["paper", "anchored", "sparse", "matched"] = "paper"
    """paper: W ~ N(0, 1/(N + M)), variances 1. anchored: each hidden unit is undecided at a random data point.
    sparse: hidden units are rarely active, for whitened images. matched: anchored, with weight vectors whose
    length follows from the spread of whitened data."""
    n_at_work: int | None = None
    """matched: number of hidden units that start with weights of that length; the others start weak. None: all."""
    anchor_var: float = 0.3
    """anchored: initial variance of all visible units, near the narrowest in the data."""
    anchor_length: float = 0.3
    """anchored: length of each hidden unit's weight vector."""
    contrasts: int | None = 1
    """Number of factors by which the model's states are scaled about a centre, for heavy tails and outliers
    (`grbm.model.contrasts`). None: as whitened data ask for; 1: no scaling."""
    contrast_units: str | None = None
    """Columns that have contrast, FIRST:LAST as a slice in Python; None: all. For data that are not whitened."""
    start_var: float = 1.0
    """paper: initial variance of all visible units, in the units of the model."""


@dataclass(frozen=True)
class SamplerConfig:
    """A Markov transition. Options that do not apply to the sampler named are refused."""

    name: SamplerName = "partial-gibbs"
    """Sampler that moves the chains."""
    rho: float | None = None
    """partial-gibbs: share of v − (μ + W h) that a step keeps, in (−1, 1). For tempered samplers: their inner move."""
    step_size: float | None = None
    """Langevin family: first step size α₀, in units of the variance; by default 0.04."""
    n_inner: int | None = None
    """gibbs-langevin: Langevin steps K per draw of h; by default 10."""
    adjust_from: int | None = None
    """Langevin family: Metropolis adjustment from this step on (0 = always); None = never."""
    temperature: float | None = None
    """Langevin family: temperature of the proposals. By default 1, as in the paper; the published program has the batch
    size."""
    per_unit: bool | None = None
    """Langevin family: step size α₀ σ_i² for each unit, in place of α₀ mean(σ²) for all."""
    accept_temperature: float | None = None
    """Langevin family: temperature of the Metropolis test, by default that of the proposals; 1 makes it exact."""
    joint: bool | None = None
    """gibbs-langevin: the Metropolis test is of v and h together, which matters at a temperature other than 1."""
    n_moves: int | None = None
    """global-moves: Gibbs steps between two proposals from the mixture that describes whitened data."""
    n_replicas: int | None = None
    """parallel-tempering: replicas on the ladder."""
    adapt: float | None = None
    """parallel-tempering: how far the ladder moves at every update towards equal swap rates; 0 = never."""
    save_below: float | None = None
    """trajectory-tempering: save a model along training when swaps with the last one saved fall below this rate."""
    power: float | None = None
    """Tempered samplers: exponent of the ladder or path from the base to the model, by default that of the sampler."""

    def build(self, frame: "Frame") -> "Sampler":
        """The sampler; the frame's base is where tempered ones start, its reference where global moves come from."""
        from grbm import samplers

        if self.name == "global-moves" and frame.reference is None:
            raise UserError("The sampler global-moves needs whitened data: grbm train ... --dataset.standardise whiten")
        kind = getattr(samplers, self.name.title().replace("-", ""))  # such as GibbsLangevin
        given, known = _given(self), {f.name for f in fields(kind)}
        takes = {f.name for f in fields(self)} & known
        has_inner = "base" in known
        with _checked(f"sampler {self.name}", given, takes | ({"rho"} if has_inner else set())):
            if has_inner:
                inner = samplers.PartialGibbs(given.pop("rho")) if "rho" in given else samplers.Gibbs()
                given |= {"base": frame.base, "sampler": inner}
            elif "reference" in known and frame.reference is not None:
                given["reference"] = frame.reference.widened(frame.base)
            sampler: Sampler = kind(**given)
        return sampler


@dataclass(frozen=True)
class ObjectiveConfig:
    """The negative phase."""

    name: Literal["modified-cd", "cd", "pcd"] = "modified-cd"
    """Chains start from noise (the paper), from the batch, or where they stopped at the last update."""
    n_steps: int = 100
    """Steps of the chains per update: the paper's CD steps."""
    burn_in: int = 0
    """modified-cd: first steps that do not count."""
    n_chains: int | None = None
    """Chains; by default as many as the batch has rows."""
    restart: float = 0.0
    """pcd: probability that a chain starts again from noise at an update."""
    probabilities: bool = False
    """Hidden probabilities in place of draws in the statistics: the marginal gradient (Alg. 4)."""
    data_draws: bool = False
    """With probabilities: draw the hidden units at the data nevertheless, as the published program does."""

    def build(self, sampler: "Sampler", batch_size: int) -> "Objective":
        """The objective; options that it does not have are refused, as `SamplerConfig` refuses them."""
        from grbm.learning.objectives import CD, PCD, ModifiedCD

        kind: Any = {"modified-cd": ModifiedCD, "cd": CD, "pcd": PCD}[self.name]
        given = _given(self) | {"n_steps": self.n_steps}
        with _checked(f"objective {self.name}", given, {f.name for f in fields(self)} & {f.name for f in fields(kind)}):
            if self.name == "pcd":
                given["n_chains"] = self.n_chains or batch_size
            objective: Objective = kind(sampler, **given)
        return objective


@dataclass(frozen=True)
class TrainConfig(FitOptions):
    """Optimisation."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """sgd: no momentum, as in the paper. adam: betas (adam_beta1, 0.999)."""
    learning_rate: float = 0.01
    """At the start; falls to 0 by a cosine."""
    adam_beta1: float = 0.9
    validation: float = 0.0
    """Share of the training rows used for validation. Their score is the mean log-likelihood, in nats per row. If it
    falls far below the best, training goes back to the best model and continues at half the learning rate."""
    keep_best: bool = False
    """Keep the model with the best validation score, or a full-covariance Gaussian if it scores as well."""
    patience: int | None = None
    """Stop after so many validations in a row without a better score. There are up to 40; with rounds only those after
    each round count."""
    tol: float = 0.0
    """patience: nats per row by which a score must be better."""
    variance_rate: float = 1.0
    """Factor on the learning rate of log σ²."""

    @property
    def first_round(self) -> int:
        """As in `FitOptions`, but a run that was made short has half of its updates for stochastic gradients."""
        return self.n_updates - min(self.rounds, self.n_updates // 2)

    def build(self, model: "GRBM") -> "torch.optim.Optimizer":
        """The optimiser of ``model``'s parameters."""
        import torch

        from grbm.learning.sgd import PlainSGD

        rest = [p for name, p in model.named_parameters() if name != "log_var"]
        groups = [
            {"params": rest, "lr": self.learning_rate},
            {"params": [model.log_var], "lr": self.learning_rate * self.variance_rate},
        ]
        if self.optimizer == "sgd":
            return PlainSGD(groups)
        return torch.optim.Adam(groups, betas=(self.adam_beta1, 0.999))


class Facts(NamedTuple):
    """Facts of a table from which default settings follow."""

    n_rows: int  # to learn from, copies counted once
    n_units: int  # columns that vary and are no linear functions of others
    suits_whitening: bool  # `grbm.data.whitening.suits_whitening`, and rows enough
    missing: float = 0.0  # share of the numbers


@dataclass(frozen=True)
class Recipe:
    """Complete settings of training on a table."""

    standardise: Mode
    model: ModelConfig
    sampler: SamplerConfig
    objective: ObjectiveConfig
    train: TrainConfig
    censor: str = "none"

    def build(self, frame: "Frame") -> "Objective":
        """The objective, with its sampler."""
        return self.objective.build(self.sampler.build(frame), self.train.batch_size)

    def work(self, n_visible: int) -> int:
        """Work of an update, weights x chains x steps, by which `grbm.core.devices.pick_device` chooses.

        It is 0 for global moves, which have no GPU kernels.
        """
        if self.sampler.name == "global-moves":
            return 0
        n_replicas = 1
        if self.sampler.name == "parallel-tempering":
            from grbm.samplers import ParallelTempering

            n_replicas = self.sampler.n_replicas or ParallelTempering.n_replicas
        n_chains = (self.objective.n_chains or self.train.batch_size) * n_replicas
        return n_visible * self.model.n_hidden * n_chains * self.objective.n_steps

    def n_threads(self, n_visible: int) -> int | None:
        """Number of threads of training: one where steps are too short to share, else None, PyTorch's own number.

        A second thread gains little there on a machine that is idle, and on a busy one each step waits for it.
        """
        n_chains = (self.objective.n_chains or 1) * (self.sampler.n_replicas or 1)
        return 1 if n_visible * self.model.n_hidden * n_chains < SHARED else None


SHARED = 1e6  # Weights x chains x replicas of a step, below which a second thread gains at most 15 %.
FEWEST_FOR_ROUNDS = 256  # Minimum number of rows for rounds, which overfit fewer.
WIDEST_FOR_ROUNDS = 40  # Maximum number of visible units for rounds, which take seconds each with more.
ROUNDS = 60  # Default maximum number of rounds of quasi-Newton steps.
PRIOR = 6.0  # Prior in rounds, times the share of missing numbers: what fills them else makes the model ever surer.
PATIENCE = 12  # Default number of rounds without a better score on held-out rows, after which they end.
UPDATES = {"whiten": 1500, "by column": 2000}  # Default numbers of updates by stochastic gradients.
BEFORE_ROUNDS = 300  # Maximum default number of these where rounds follow, which get as far from there as from 1,500.
N_HIDDEN = 256  # Default number of hidden units without whitening, and maximum default with it.


def resolve(asked: Mapping[str, Any], facts: Facts) -> Recipe:
    """Choose the settings that are not asked for from the facts of a table.

    Parameters
    ----------
    asked : dict
        Settings by name, such as "model.n_hidden"; those that are None are not asked for.
    facts : Facts
        Of the rows to learn from.
    """
    asked = {name: x for name, x in asked.items() if x is not None}
    is_censored = asked.get("censor", "none") != "none"
    mode: Mode = asked.get("standardise") or ("whiten" if facts.suits_whitening and not is_censored else "pixel")
    if is_censored and mode == "whiten":
        raise UserError("Limits go with columns that are not whitened: --dataset.standardise pixel (whiten=False).")
    n_hidden = asked.get("model.n_hidden")
    usual = _whitened(facts, n_hidden) if mode == "whiten" else _by_column(facts, n_hidden, mode)
    tempered: SamplerName | None = "parallel-tempering" if asked.get("sampler.n_replicas", 1) > 1 else None
    name: SamplerName = asked.get("sampler.name") or tempered or usual.sampler.name
    if name != usual.sampler.name:  # its options are of another sampler, and so are rounds and numbers of steps
        train, objective = replace(usual.train, rounds=0), replace(usual.objective, n_steps=N_STEPS)
        usual = replace(usual, sampler=SamplerConfig(name), objective=objective, train=train)
    rounds = asked.get("train.rounds", usual.train.rounds)
    n_updates = min(usual.train.n_updates, BEFORE_ROUNDS) if rounds and mode == "whiten" else usual.train.n_updates
    whole = {"train.n_updates": n_updates + rounds, "train.patience": PATIENCE if rounds else None}
    return changed(usual, whole | asked)


def changed(recipe: Any, asked: Mapping[str, Any]) -> Any:
    """Replace the settings of ``recipe``, or of a part of it, that are asked for by name.

    Raises UserError for a name that it does not have.
    """
    own: dict[str, Any] = {}
    of_parts: dict[str, dict[str, Any]] = {}
    for name, value in asked.items():
        part, dot, rest = name.partition(".")
        if part not in {field.name for field in fields(recipe)}:
            raise UserError(f"There is no setting {name!r}; names are those of config.json, such as train.n_updates.")
        if dot:
            of_parts.setdefault(part, {})[rest] = value
        else:
            own[name] = value
    return replace(recipe, **own, **{part: changed(getattr(recipe, part), rest) for part, rest in of_parts.items()})


N_STEPS = 5  # Default number of Gibbs steps of a chain in an update.


def _whitened(facts: Facts, n_hidden: int | None) -> Recipe:
    """Default recipe of a whitened table, its updates without the rounds: hidden units grow with the number of rows.

    Hidden units beyond this number, and beyond 40 for each visible unit, start with weak weights.
    """
    n = facts.n_rows
    narrow = min(200, n // 10) if facts.n_units <= 2 else 0
    taught = min(N_HIDDEN, max(64, min(128, n // 4), n // 40, narrow))
    chosen = n_hidden or taught
    rounds = ROUNDS if n >= FEWEST_FOR_ROUNDS and facts.n_units <= WIDEST_FOR_ROUNDS else 0
    return Recipe(
        "whiten",
        ModelConfig(chosen, "matched", min(chosen, max(taught, 40 * facts.n_units)), contrasts=None),
        SamplerConfig("global-moves", n_moves=N_STEPS),
        ObjectiveConfig("pcd", n_steps=1, n_chains=256, probabilities=True),
        TrainConfig(
            UPDATES["whiten"],
            256,
            rounds=rounds,
            prior=PRIOR * facts.missing,
            learning_rate=0.05,
            # log σ² would else swallow what hidden units should explain; but it has far to fall from the whole table
            variance_rate=0.1 if sees_clusters(chosen) else 1.0,
            centred=True,
            min_var=1e-4,
            average_decay=0.99,
            validation=0.1,
            keep_best=True,
        ),
    )


def _by_column(facts: Facts, n_hidden: int | None, mode: Mode) -> Recipe:
    """Default recipe of a table that is not whitened: parallel tempering, weights scaled to the variance of rows."""
    chosen = n_hidden or N_HIDDEN
    length = min(0.3, 1.5 * math.sqrt(facts.n_units / chosen))
    return Recipe(
        mode,
        ModelConfig(chosen, "anchored", anchor_length=length),
        SamplerConfig("parallel-tempering", n_replicas=8),
        ObjectiveConfig("pcd", n_steps=N_STEPS, n_chains=64, probabilities=True),
        TrainConfig(UPDATES["by column"], 256, learning_rate=0.05, centred=True, min_var=0.02, average_decay=0.99),
    )
