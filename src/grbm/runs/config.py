"""Typed, frozen configuration of a run."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grbm.core.errors import UserError, unreadable
from grbm.core.options import Precision
from grbm.core.typed import read_json, restore
from grbm.data.config import DatasetConfig, Source, read_limits
from grbm.fitting.recipe import ModelConfig, ObjectiveConfig, Recipe, SamplerConfig, TrainConfig

if TYPE_CHECKING:  # what a configuration is, can be asked without loading what it builds
    from grbm.data.loading import Dataset

Which = Literal["model", "raw", "best"]  # weights of a run
LARGEST_SIDE = 4096  # of a square picture: 17 million visible units
ALWAYS = ("dataset", "model", "sampler", "objective", "train", "sampling")  # what every run's configuration holds
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {  # of settings that are not None
    "above 0": (
        lambda x: x > 0,
        "model.n_hidden model.n_at_work model.contrasts model.anchor_var model.anchor_length model.start_var "
        "train.latent_depth train.latent_rounds dataset.n_points dataset.crop dataset.size dataset.white "
        "objective.n_steps objective.n_chains train.n_updates train.batch_size train.learning_rate train.min_var "
        "train.blocks train.patience train.clip_norm train.spectral_norm checkpoint.minutes checkpoint.updates "
        "checkpoint.keep sampling.n_steps log.points",
    ),
    "above 1": (lambda x: x > 1, "dataset.subset"),
    "at least 0 and below 1": (
        lambda x: 0 <= x < 1,
        "dataset.held_out train.adam_beta1 train.validation train.average_decay checkpoint.trajectory",
    ),
    "at least 0": (lambda x: x >= 0, "train.rounds train.prior train.variance_rate train.tol"),
}


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
    """Checkpoints, from which `grbm resume` goes on. They do not change what is learned."""

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
    """Logs besides metrics.jsonl. They do not change what is learned."""

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
    """Preset array: a table (CSV, TSV, Parquet, Feather, NPY, NPZ) or a Hugging Face data set on disk. Presets images
    and celeba: a folder or zip file of pictures."""
    memory: int = 256
    """Megabytes (in float32) of --data to keep in memory; larger data are read from the disk as they are needed."""
    precision: Precision = "highest"
    """Of the products in chains: highest (float32), high (TF32 on a GPU), fast (half-precision operands)."""
    seed: int = 0
    """Every random number of the run follows from it."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ..., or auto: a GPU if there is one and the model is large enough to be faster there."""
    preset: str = ""
    about: About | None = None
    command: str = ""

    @property
    def source(self) -> Source:
        """The place of the data, as `grbm.data.loading.load` takes it."""
        return Source(self.data_dir, self.data, self.memory)

    @property
    def where(self) -> str:
        """Name of the data in messages."""
        return str(self.data or self.dataset.name)

    @property
    def recipe(self) -> Recipe:
        """All that decides what is learned from rows."""
        parts = self.model, self.sampler, self.objective, self.train
        return Recipe(self.dataset.standardise, *parts, self.dataset.censor)

    def load_data(self) -> "Dataset":
        """The data set; raises UserError where it is missing or malformed."""
        from grbm.data.loading import load

        return load(self.dataset, self.source, self.seed)

    def check(self) -> None:
        """Raise UserError for what no run can mean."""
        settings = self.settings()
        for words, (holds, names) in RANGES.items():
            for name in names.split():
                if (number := settings[name]) is not None and not holds(number):
                    raise UserError(f"{_flag(name)} must be {words}, got {number}.")
        if self.dataset.censor not in ("none", "auto", "marks"):
            read_limits(self.dataset.censor)
        for option in ("coarse", "bounds", "weights", "index"):
            if getattr(self.dataset, option) not in ("none", None, ()) and self.dataset.name != "array":
                raise UserError(f"{_flag(f'dataset.{option}')} goes with tables.")
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
        keeps = self.checkpoint.trajectory > 0 or self.sampler.name == "trajectory-tempering"
        if self.sampling.sampler.name == "trajectory-tempering" and not keeps:
            raise UserError("Sampling with trajectory-tempering needs models of training: --checkpoint.trajectory 0.4.")
        if self.dataset.name == "array" and self.data is None:
            raise UserError("The preset array needs --data FILE, a table such as x.csv or x.npy.")
        if self.dataset.name == "images" and self.data is None:
            raise UserError("The preset images needs --data FOLDER, a folder of pictures.")
        if self.dataset.name not in ("array", "images", "celeba") and self.data is not None:
            raise UserError(
                f"--data is for your own data, and {self.dataset.name} has its own: leave it out, or use the preset "
                "array or images."
            )
        if self.dataset.name not in ("array", "images", "celeba") and self.dataset.subset is not None:
            raise UserError(f"--dataset.subset goes with arrays, pictures and CelebA, not with {self.dataset.name}.")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, default=str) + "\n"

    def identity(self) -> dict[str, Any]:
        """Settings that decide what is learned, by flag: not where data lie, which device computes, what is kept."""
        aside = ("data_dir", "data", "memory", "device", "checkpoint", "log", "preset", "about", "command")
        return {name: value for name, value in self.settings().items() if name.partition(".")[0] not in aside}

    @property
    def digest(self) -> str:
        """A short name for `identity`; settings at their default do not enter, so new ones may be added."""
        usual = RunConfig().identity()
        chosen = {name: value for name, value in self.identity().items() if value != usual[name]}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]

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
            if not isinstance(values, dict):
                raise ValueError("it holds no settings")
            if values.get("model_type") == "grbm":
                raise UserError(f"{path.parent} holds a model alone, not a run: read it with GRBM.from_pretrained.")
            if lacks := [name for name in ALWAYS if name not in values]:
                raise ValueError(f"it has no {lacks[0]}")
            return restore(cls, values)
        except PermissionError as error:
            raise unreadable(path, error) from error
        except UserError:
            raise
        except FileNotFoundError as error:
            raise UserError(f"{path} is not a file; give a folder that `grbm train` made.") from error
        except ValueError as error:
            raise UserError(f"{path} is not a run's configuration ({error}); train again or restore it.") from error


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
