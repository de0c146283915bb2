"""The typed, frozen description of a run. Here, and nowhere else, names become objects."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grbm.data.config import DatasetConfig, Source
from grbm.errors import UserError, unreadable
from grbm.options import FitOptions, Precision
from grbm.typed import read_json, restore

if TYPE_CHECKING:  # what a configuration is, can be asked without loading what it builds
    import torch

    from grbm.data.loading import Dataset
    from grbm.model import GRBM, Base
    from grbm.objectives import Objective
    from grbm.reference import Reference
    from grbm.samplers import Sampler

Which = Literal["model", "raw", "best"]  # weights of a run
LARGEST_SIDE = 4096  # of a square picture: 17 million visible units
ALWAYS = ("dataset", "model", "sampler", "objective", "train", "sampling")  # what every run's configuration holds
ABOVE_0 = (  # or None, where that is allowed
    *("model.n_hidden", "model.contrasts", "model.anchor_var", "model.anchor_length"),
    *("dataset.n_points", "dataset.crop", "dataset.size", "dataset.white", "objective.n_steps", "objective.n_chains"),
    *("train.n_updates", "train.batch_size", "train.learning_rate", "train.min_var", "train.blocks", "train.patience"),
    *("train.clip_norm", "train.spectral_norm", "checkpoint.minutes", "checkpoint.updates", "checkpoint.keep"),
    *("sampling.n_steps", "log.points"),
)
SAMPLERS = {
    "gibbs": "Gibbs",
    "langevin": "Langevin",
    "gibbs-langevin": "GibbsLangevin",
    "partial-gibbs": "PartialGibbs",
    "global-moves": "GlobalMoves",
    "parallel-tempering": "ParallelTempering",
    "trajectory-tempering": "TrajectoryTempering",
    "annealed": "Annealed",
}  # classes of grbm.samplers
SamplerName = Literal[
    "gibbs", "langevin", "gibbs-langevin", "partial-gibbs", "global-moves",
    "parallel-tempering", "trajectory-tempering", "annealed",
]  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """The machine and where its parameters start."""

    n_hidden: int = 256
    """Binary hidden units."""
    start: Literal["paper", "anchored", "sparse", "matched"] = "paper"
    """paper: W ~ N(0, 1/(N + M)), variances 1. anchored: each hidden unit is undecided at a random data point.
    sparse: hidden units are rarely active, for whitened images. matched: anchored, with weights as long as whitened
    data are wide; hidden units beyond what the rows can teach begin weak."""
    anchor_var: float = 0.3
    """anchored: initial variance of all visible units, near the narrowest in the data."""
    anchor_length: float = 0.3
    """anchored: length of each hidden unit's weight vector."""
    contrasts: int | None = 1
    """Scales that the machine is seen at (`grbm.contrasts`); None: as many as whitened data ask for."""
    contrast_units: str | None = None
    """Columns that have contrast, FIRST:LAST as a slice in Python; None: all. For data that are not whitened."""


@dataclass(frozen=True)
class SamplerConfig:
    """A Markov transition. Options that do not apply to the sampler named are refused."""

    name: SamplerName = "partial-gibbs"
    """What moves the chains."""
    rho: float | None = None
    """partial-gibbs: share of v − (μ + W h) that a step keeps, in (−1, 1). For tempered samplers: their inner move."""
    step_size: float | None = None
    """Langevin family: first step size α₀, in units of the variance."""
    n_inner: int | None = None
    """gibbs-langevin: Langevin steps K per draw of h."""
    adjust_from: int | None = None
    """Langevin family: Metropolis adjustment from this step on (0 = always); None = never."""
    temperature: float | None = None
    """Langevin family: 1 is the paper; the batch size is the published program."""
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
    """Tempered samplers: exponent of the ladder or path from the base to the model."""

    def build(self, base: "Base", reference: "Reference | None" = None) -> "Sampler":
        """The sampler; ``base`` is where tempered ones start, ``reference`` where global moves come from."""
        from grbm import samplers

        kind = getattr(samplers, SAMPLERS[self.name])
        given: dict[str, Any] = {k: v for k, v in asdict(self).items() if k != "name" and v is not None}
        known = {f.name for f in fields(kind)}
        if self.name == "global-moves":
            if reference is None:
                raise UserError(
                    "The sampler global-moves needs whitened data: grbm train ... --dataset.standardise whiten"
                )
            given["reference"], known = reference.widened(base), known - {"sampler"}
        has_inner = "sampler" in known
        rho = given.pop("rho", None) if has_inner else None
        if wrong := sorted(given.keys() - known):
            own = {f.name for f in fields(self)} & (known | ({"rho"} if has_inner else set()))
            takes = ", ".join(sorted(own)) or "no options"
            raise UserError(f"The sampler {self.name} has no option {wrong[0]}; it takes {takes}.")
        try:
            if has_inner:
                given |= {"base": base, "sampler": samplers.Gibbs() if rho is None else samplers.PartialGibbs(rho)}
            sampler: Sampler = kind(**given)
        except ValueError as error:
            raise UserError(f"The sampler {self.name} was refused: {error}") from error
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
    """Hidden units at the data are drawn all the same, as in the published program."""

    def build(self, sampler: "Sampler", batch_size: int) -> "Objective":
        """The objective; options that it does not have are refused, as `SamplerConfig` refuses them."""
        from grbm.objectives import CD, PCD, ModifiedCD

        takes = {"modified-cd": ("burn_in", "n_chains"), "cd": (), "pcd": ("n_chains", "restart")}[self.name]
        for option, unset in (("burn_in", 0), ("n_chains", None), ("restart", 0.0)):
            if getattr(self, option) != unset and option not in takes:
                raise UserError(f"The objective {self.name} has no option {option}.")
        how: Any = {"probabilities": self.probabilities, "data_draws": self.data_draws}
        try:
            if self.name == "cd":
                return CD(sampler, self.n_steps, **how)
            if self.name == "pcd":
                return PCD(sampler, self.n_steps, self.n_chains or batch_size, restart=self.restart, **how)
            return ModifiedCD(sampler, self.n_steps, self.burn_in, self.n_chains, **how)
        except ValueError as error:
            raise UserError(f"The objective {self.name} was refused: {error}") from error


@dataclass(frozen=True)
class TrainConfig(FitOptions):
    """Optimisation."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """sgd: no momentum, as in the paper. adam: betas (adam_beta1, 0.999)."""
    learning_rate: float = 0.01
    """At the start; falls to 0 by a cosine."""
    adam_beta1: float = 0.9
    validation: float = 0.0
    """Share of the training rows that is not learned from but scored along the way, in nats per row."""
    keep_best: bool = False
    """Keep the model that scored best on those rows, one Gaussian among them, in place of the last."""
    patience: int | None = None
    """Stop after so many looks at those rows without a better score: of up to 40, or of those after ``rounds``."""
    variance_rate: float = 1.0
    """Factor on the learning rate of log σ²."""

    @property
    def first_round(self) -> int:
        """As in `FitOptions`, but a run that was made short has half of its updates for stochastic gradients."""
        return self.n_updates - min(self.rounds, self.n_updates // 2)

    def build(self, model: "GRBM") -> "torch.optim.Optimizer":
        """The optimiser of ``model``'s parameters."""
        import torch

        from grbm.sgd import PlainSGD

        rest = [p for name, p in model.named_parameters() if name != "log_var"]
        groups = [
            {"params": rest, "lr": self.learning_rate},
            {"params": [model.log_var], "lr": self.learning_rate * self.variance_rate},
        ]
        if self.optimizer == "sgd":
            return PlainSGD(groups)
        return torch.optim.Adam(groups, betas=(self.adam_beta1, 0.999))


@dataclass(frozen=True)
class SamplingConfig:
    """How the trained model draws samples from noise."""

    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    n_steps: int = 100
    """Steps from noise."""
    mean: bool = False
    """Show the conditional mean μ + W h at the last step, as the published program does, in place of v."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What `grbm resume` continues from. Does not change what is learned."""

    minutes: float = 1.0
    """Time from one checkpoint to the next; longer where writing one takes more than a fiftieth of it."""
    updates: int | None = None
    """Also after every so many updates."""
    keep: int = 3
    """How many to keep, besides the best: the one whose chains were nearest to the data by energy distance."""
    trajectory: float = 0.0
    """Keep models along training, for the sampler trajectory-tempering: another whenever chains of now and those of the
    last one kept would swap less often than this rate, such as 0.4. 0 = none."""


@dataclass(frozen=True)
class LogConfig:
    """What is written while training, besides metrics.jsonl. Does not change what is learned."""

    points: int = 200
    """Lines of metrics.jsonl, evenly spaced."""
    tensorboard: bool = True
    """TensorBoard scalars and images in RUN/tensorboard."""
    images: int = 10
    """Pictures of the chains, evenly spaced; for image data."""
    wandb: str | None = None
    """Weights & Biases project (pip install wandb)."""


Dynamics = Literal["paper", "paper-time-program", "last-public-program"]


@dataclass(frozen=True)
class About:
    """How a run of one of the paper's experiments, which its preset names, departs from it."""

    dynamics: Dynamics = "paper"
    scale: float = 1.0
    n_rows: int | None = None  # training rows, where the paper had others
    changed: tuple[str, ...] = ()  # settings changed by hand, as "flag = value"


@dataclass(frozen=True)
class RunConfig:
    """A run: data, model, sampler, objective, optimisation, and how to sample afterwards."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    data_dir: Path = Path("data")
    """Folder of MNIST and Fashion-MNIST (IDX files, gzipped or not); downloaded there when absent."""
    data: Path | None = None
    """Preset array: a .npy or .npz file, or a Hugging Face data set on disk. Preset images: a folder of pictures."""
    memory: int = 256
    """Megabytes (in float32) of --data to keep in memory; larger data are read from the disk as they are needed."""
    precision: Precision = "highest"
    """Of the products in chains: highest (float32), high (TF32 on a GPU), fast (half-precision operands)."""
    seed: int = 0
    """Every random number of the run follows from it."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ..., or auto: a GPU if there is one and the machine is large enough to be faster there."""
    preset: str = ""
    about: About | None = None
    command: str = ""
    given: tuple[str, ...] = ()  # settings that were asked for, such as "train.n_updates", which no data change

    @property
    def source(self) -> Source:
        """The place of the data, as `grbm.data.loading.load` takes it."""
        return Source(self.data_dir, self.data, self.memory)

    def load_data(self) -> "Dataset":
        """The data set; raises UserError where it is missing or malformed."""
        from grbm.data.loading import load

        return load(self.dataset, self.source, self.seed)

    def check(self) -> None:
        """Raise UserError for what no run can mean."""
        settings = self.settings()
        for name in ABOVE_0:
            if (number := settings[name]) is not None and not number > 0:
                raise UserError(f"{_flag(name)} must be above 0, got {number}.")
        if self.dataset.subset is not None and not self.dataset.subset > 1:
            raise UserError(f"--dataset.subset must be above 1, got {self.dataset.subset}.")
        shares: dict[str, float] = {
            "dataset.held_out": self.dataset.held_out,
            "train.adam_beta1": self.train.adam_beta1,
            "train.validation": self.train.validation,
            "train.average_decay": self.train.average_decay or 0.0,
            "checkpoint.trajectory": self.checkpoint.trajectory,
        }
        for name, number in shares.items():
            if not 0 <= number < 1:
                raise UserError(f"{_flag(name)} must be at least 0 and below 1, got {number}.")
        if (self.dataset.size or 0) > LARGEST_SIDE:
            raise UserError(f"--dataset.size must be at most {LARGEST_SIDE:,}, got {self.dataset.size:,}.")
        for name, value in settings.items():
            if isinstance(value, int) and abs(value) >= 2**53:
                raise UserError(f"{_flag(name)} must be below 2^53, got {value}.")
        if self.train.anneal_step_size and self.sampler.name not in ("langevin", "gibbs-langevin"):
            raise UserError(f"--train.anneal-step-size goes with the Langevin family, not with {self.sampler.name}.")
        if self.train.spectral_norm is not None and self.train.optimizer != "sgd":
            raise UserError(
                "--train.spectral-norm goes with the optimizer sgd: adam would rescale every entry of W anew. "
                "Add --train.spectral-norm None."
            )
        if not self.train.variance_rate >= 0:
            raise UserError(f"--train.variance-rate must be at least 0, got {self.train.variance_rate}.")
        keeps = self.checkpoint.trajectory > 0 or self.sampler.name == "trajectory-tempering"
        if self.sampling.sampler.name == "trajectory-tempering" and not keeps:
            raise UserError("Sampling with trajectory-tempering needs models of training: --checkpoint.trajectory 0.4.")
        if self.dataset.name == "array" and self.data is None:
            raise UserError("The preset array needs --data FILE.npy, an array of rows of samples.")
        if self.dataset.name == "images" and self.data is None:
            raise UserError("The preset images needs --data FOLDER, a folder of pictures.")
        if self.dataset.name not in ("array", "images", "celeba") and self.data is not None:
            raise UserError(f"--data goes with the presets array and images; {self.dataset.name} has its own data.")
        if self.dataset.name not in ("array", "images", "celeba") and self.dataset.subset is not None:
            raise UserError(f"--dataset.subset goes with arrays, pictures and CelebA, not with {self.dataset.name}.")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, default=str) + "\n"

    def identity(self) -> dict[str, Any]:
        """What decides what is learned, by flag: not where data lie, what device computes, what is kept or logged."""
        aside = ("data_dir", "data", "memory", "device", "checkpoint", "log", "preset", "about", "command", "given")
        return {name: value for name, value in self.settings().items() if name.partition(".")[0] not in aside}

    def settings(self) -> dict[str, Any]:
        """Every setting, by flag."""
        return dict(_flatten(asdict(self)))

    def difference(self, other: "RunConfig") -> str | None:
        """The first thing that decides what is learned and is not the same, as "name = mine, not the other's"."""
        mine, others = self.identity(), other.identity()
        return next((f"{k} = {mine.get(k)}, not {x}" for k, x in others.items() if mine.get(k) != x), None)

    @classmethod
    def read(cls, path: Path) -> "RunConfig":
        """Read back a file of `to_json`; raises UserError where it is not one."""
        try:
            values = read_json(path)
            if isinstance(values, dict) and values.get("model_type") == "grbm":
                raise UserError(f"{path.parent} holds a machine alone, not a run: read it with GRBM.from_pretrained.")
            if isinstance(values, dict) and isinstance(about := values.get("about"), dict) and about.get("text") == "":
                del about["text"]  # as runs had it before 2026-11-27
            if not isinstance(values, dict) or (lacks := [name for name in ALWAYS if name not in values]):
                raise ValueError(f"it has no {lacks[0]}" if isinstance(values, dict) else "it holds no settings")
            config = restore(cls, values)
        except PermissionError as error:
            raise unreadable(path, error) from error
        except UserError:
            raise
        except FileNotFoundError as error:
            raise UserError(f"{path} is not a file; give a folder that `grbm train` made.") from error
        except ValueError as error:
            raise UserError(f"{path} is not a run's configuration ({error}); train again or restore it.") from error
        return config


def showing(config: RunConfig, mean: bool) -> RunConfig:
    """``config`` with conditional means μ + W h, or states v, as what is shown and scored."""
    return replace(config, sampling=replace(config.sampling, mean=mean))


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
