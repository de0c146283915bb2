"""Options of each command of the command line, as typed, frozen dataclasses."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, Suppress, arg

from grbm.fitting.recipe import SamplerName
from grbm.runs.config import About, RunConfig, Which

Folder = Annotated[Path, Positional, arg(metavar="RUN", help="Folder of a run.")]
Weights = Annotated[
    Which,
    arg(
        help="model: the result of training; with --train.keep-best the best validated model, else the running average "
        "where there is one. raw: the parameters after the last update. best: those of the checkpoint whose chains "
        "were nearest to the data, by energy distance."
    ),
]
Seed = Annotated[int, arg(help="Seed of the random numbers.")]
Json = Annotated[bool, arg(help="Print the result as JSON, and nothing else, to standard output.")]
Overwrite = Annotated[bool, arg(help="Replace files that are already there.")]
Figures = Annotated[bool, arg(help="Draw the figures after training.")]


@dataclass(frozen=True)
class Moved:
    """Options that say where the data of a run are."""

    data_dir: Path | None = None
    """Folder of image data, if it moved since training."""
    data: Path | None = None
    """Path of the data, if they moved since training."""
    key: str | None = None
    """Name of the array in a .npz archive, or of the column in a Hugging Face data set; by default as in training."""

    def of(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the paths and the key that are given."""
        dataset = replace(config.dataset, key=self.key or config.dataset.key)
        data_dir, data = self.data_dir or config.data_dir, self.data or config.data
        return replace(config, data_dir=data_dir, data=data, dataset=dataset)


MovedData = Annotated[Moved, OmitArgPrefixes, arg(name="data")]


@dataclass(frozen=True)
class TrainOptions(RunConfig):
    """All that can be set of a run, and where it goes."""

    preset: Annotated[str, Suppress] = ""
    about: Annotated[About | None, Suppress] = None
    command: Annotated[str, Suppress] = ""
    out: Path | None = None
    """Run folder to make; by default runs/PRESET."""
    overwrite: bool = False
    """Replace a run that is already there."""
    resume: bool = False
    """Go on with a run that is already there; begin if there is none, and do nothing if it is finished."""
    figures: Figures = True


@dataclass(frozen=True)
class ResumeOptions:
    """Go on with a run from its newest good checkpoint, as if it had never been interrupted."""

    run: Folder
    device: str | None = None
    """cpu, cuda, cuda:1 ..., or auto; by default as the run was begun."""
    moved: MovedData = Moved()
    figures: Figures = True


@dataclass(frozen=True)
class SampleOptions:
    """Draw samples and write them, in the data's units, to a file and a picture. With --given, draw the values that are
    not given."""

    run: Folder
    n: int = 128
    """Number of samples; with --given, for each row."""
    given: Annotated[str | None, arg(metavar="FILE|NAME=NUMBER,...")] = None
    """A table with missing columns or values, or one row such as weight=3000,year=76. Missing values are drawn given
    the others."""
    out: Path | None = None
    """File to write: .csv, .tsv, .parquet, .npz or .npy; by default RUN/samples/samples.npy, or given.npy."""
    steps: int | None = None
    """Steps of the chains; by default the run's own, or 200 where columns are given."""
    sampler: str | None = None
    """Another sampler than the run's own, by name, with its default options."""
    mean: bool | None = None
    """Write the mean μ + W h of the visible units in the last step, without Gaussian noise, in place of v; by default
    as the run says."""
    seed: Seed = 1
    weights: Weights = "model"
    overwrite: Overwrite = False


@dataclass(frozen=True)
class EncodeOptions:
    """Write the binary codes of data, a row per sample: hidden probabilities, or bits drawn from them."""

    run: Folder
    what: Annotated[str, Positional, arg(metavar="WHAT")]
    """train or test (the run's own rows), a file with a table, - for standard input, or a folder of pictures."""
    out: Path | None = None
    """The .npy file to write; by default RUN/codes/WHAT.npy, .bits.npy or .packed.npy."""
    bits: bool = False
    """Bits drawn from the probabilities, one a byte, in place of the probabilities."""
    packed: bool = False
    """Such bits, eight a byte (numpy.unpackbits, axis 1, gives them back)."""
    weights: Weights = "model"
    seed: Seed = 1
    overwrite: Overwrite = False
    moved: MovedData = Moved()


@dataclass(frozen=True)
class ImputeOptions:
    """Fill in missing values (NaN), and take away noise of a known size. Writes conditional means and their standard
    deviations."""

    run: Folder
    file: Annotated[Path, Positional, arg(metavar="FILE")]
    """A table in the units of the run's data, such as x.csv or x.npy, with gaps where something is missing; - is
    standard input."""
    noise_std: float = 0.0
    """Standard deviation of the errors of what is there, in its units; 0 = it is exact."""
    out: Path | None = None
    """File to write: .csv, .tsv, .parquet, .npz or .npy; by default of the kind of FILE, in RUN/imputed. Deviations go
    to a file .std beside it."""
    quantiles: tuple[float, ...] = ()
    """Also write quantiles, such as 0.05 0.95, of 200 draws of each missing value: one file for each quantile."""
    steps: int = 200
    """Steps of the chains; a quarter of them is burn-in."""
    chains: int = 4
    """Chains for each row."""
    replicas: int | None = None
    """Replicas of parallel tempering for each chain; by default 4 for up to 20 columns, else 1. Not for runs that are
    whitened or have several contrasts."""
    key: str | None = None
    """Name of the array in a .npz archive."""
    weights: Weights = "model"
    seed: Seed = 1
    overwrite: Overwrite = False


@dataclass(frozen=True)
class ScoreOptions:
    """Say how likely each row of a table is: log-density, and p-value under the model's own draws. For each of the
    least likely rows, shows the value that deviates most from what the row's other values predict."""

    run: Folder
    file: Annotated[Path, Positional, arg(metavar="FILE")]
    """A table in the units of the run's data, such as x.csv or x.npy; - is standard input."""
    out: Path | None = None
    """File to write, a row for each: .csv, .tsv, .parquet, .npz or .npy; by default RUN/scores/FILE.csv."""
    n: int = 10
    """Number of the least likely rows to show."""
    index: str | None = None
    """Column of the file that names its rows; by default that of the run (grbm train --index)."""
    key: str | None = None
    """Name of the array in a .npz archive."""
    weights: Weights = "model"
    seed: Seed = 1
    overwrite: Overwrite = False


@dataclass(frozen=True)
class ExportOptions:
    """Write a run's machine for other programs: the encoder as ONNX or torch.export program, or the whole machine, in
    the data's own units, as a folder that GRBM.from_pretrained reads."""

    run: Folder
    out: Annotated[Path, Positional, arg(metavar="OUT")]
    """NAME.onnx, NAME.pt2, or a folder."""
    weights: Weights = "model"
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class JudgingOptions:
    """Options of commands that judge a run."""

    weights: Weights = "model"
    seed: Seed = 1
    json: Json = False
    moved: MovedData = Moved()


@dataclass(frozen=True)
class EvaluateOptions(JudgingOptions):
    """Score a run on its training and held-out data; writes RUN/evaluation.json.

    A file with other data, given as --data, is scored as a whole: the command prints its mean log-likelihood and leaves
    the scores of the run unchanged.
    """

    run: Folder
    samples: int = 10_000
    """Samples from noise to score."""
    log_likelihood: bool = False
    """Compute the log-likelihood of all training and held-out rows, with standard errors; of images also in bits per
    dimension."""
    ais_steps: int = 1000
    """Number of temperatures, where log Z is estimated by annealing; runs on whitened data do not use it."""
    ais_chains: int = 500
    """Number of annealed chains each way, likewise."""
    fid: bool = False
    """Images: distances between samples from noise and training images, beside reference points, to RUN/fid.json."""
    fid_weights: Path | None = None
    """The Inception network of FID: torch-fidelity's .pth (downloaded where it is not given), or a .npz of its first
    part, which gives 768 features on another scale."""
    fid_samples: int = 10_000
    """Number of samples, and of training images that they are compared with."""
    fid_references: bool = True
    """Score held-out images, a full-covariance Gaussian, a mixture of 20 and a small VAE in the same table."""
    fid_mean: bool | None = None
    """Images: score conditional means μ + W h in place of v; by default as the run says."""


@dataclass(frozen=True)
class DoctorOptions(JudgingOptions):
    """Say in plain words what is wrong with a run, or fine, and what to change. The exit code is 3 where something is
    wrong. With --machine in place of a run: what this computer runs chains with, and how fast a step is."""

    run: Annotated[Path | None, Positional, arg(metavar="RUN")] = None
    """Folder of a run."""
    machine: bool = False
    """In place of a run: which engine runs the chains here, what each precision means, how fast a step is."""


@dataclass(frozen=True)
class MixingOptions(JudgingOptions):
    """Say whether a run's chains mix: R-hat, effective sample sizes, autocorrelation, acceptance and swap rates.

    Half of the chains start at the data, half at noise. Writes RUN/mixing.json and RUN/figures/mixing.png.
    """

    run: Folder
    sampler: SamplerName | None = None
    """Another sampler than the run's own, with its default options."""
    chains: int = 8
    draws: int = 1000
    """States to keep of each chain."""
    every: int = 2
    """Steps from one state to the next."""
    burn_in: int = 1000
    """Steps before the first."""
    netcdf: bool = False
    """Also keep all states in RUN/mixing.nc, for ArviZ (arviz.from_netcdf)."""


@dataclass(frozen=True)
class FiguresOptions:
    """Draw all figures of a run anew, from its files."""

    run: Folder
    seed: Seed = 1
    moved: MovedData = Moved()


@dataclass(frozen=True)
class ReportOptions(FiguresOptions):
    """Write RUN/report.html, one page that needs no network: samples and the way to them, filters, learning curves,
    scores, the doctor's findings, settings."""


@dataclass(frozen=True)
class ListOptions:
    """List the runs in a folder and the folders in it: how far each is, and how near to the data."""

    folder: Annotated[Path, Positional, arg(metavar="FOLDER")] = Path("runs")
    """Where to look."""
    json: Json = False


@dataclass(frozen=True)
class CompareOptions:
    """Put runs side by side: settings that differ, scores, samples and learning curves."""

    runs: Positional[tuple[Path, ...]]
    """Folders of two runs or more."""
    out: Path = Path("compare.html")
    """The page to write."""
    seed: Seed = 1
    overwrite: Overwrite = False
