"""The tables and figures of the paper that `grbm reproduce` makes, and the runs of each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grbm.core.errors import UserError
from grbm.core.options import Precision
from grbm.runs.config import Dynamics
from grbm.runs.paper import EXPERIMENTS

Recipe = Literal["paper", "ours"]
BEST = "table1-gibbs-langevin"
TABLES = {
    "table1": [name for name in EXPERIMENTS if name.startswith("table1")],
    "table2": [*(name for name in EXPERIMENTS if name.startswith("table2")), BEST],
    "table3": [
        *("table3-inner1", "table3-inner5", BEST, "table3-step10", "table3-step5"),
        *("table3-adjust0", "table3-adjust25", "table3-adjust50", "table1-gibbs-langevin-adjusted"),
    ],
}
FACES = ["paper-celeba-32", "paper-celeba-2k-64"]
FIGURES = {
    "fig2": [BEST],
    "fig3": [BEST],
    "fig4": ["paper-fashion-mnist", *FACES],
    "fig5": TABLES["table1"],
    "fig6": [BEST],
    "fig7": ["paper-fashion-mnist"],
    "fig8": FACES[:1],
    "fig9": FACES[1:],
}
TARGETS = TABLES | FIGURES
OURS = {  # presets that take the place of the paper's runs
    BEST: "mnist-medium",
    "paper-fashion-mnist": "fashion-medium",
    "paper-celeba-32": "celeba-small",
    "paper-celeba-2k-64": "celeba-64",
}
SMALL_SCALE = 2e-4  # up to which rows of a table train for minutes, and stand beside mnist-small
ABOUT = {
    "table1": "five samplers on MNIST",
    "table2": "hidden units and CD steps on MNIST",
    "table3": "inner steps, step sizes and adjustment on MNIST",
    "fig2": "from noise to digits",
    "fig3": "variances, filters and samples on MNIST",
    "fig4": "samples of Fashion-MNIST, CelebA at 32 x 32, and 2,000 pictures of it at 64 x 64",
    "fig5": "samples of the five samplers on MNIST",
    "fig6": "more digits",
    "fig7": "more of Fashion-MNIST",
    "fig8": "more of CelebA at 32 x 32",
    "fig9": "more of CelebA at 64 x 64",
}


@dataclass(frozen=True)
class PaperOptions:
    """Run what is missing of a table or figure of the paper, go on with what was interrupted, score and draw.

    Tables and figures share their runs.
    """

    dynamics: Dynamics = "paper"
    """paper: the equations as printed, temperature 1. paper-time-program: what the authors' program computed when the
    paper was written. last-public-program: with the acceptance test of its last version."""
    scale: float | None = None
    """Share of the arithmetic of the paper's own runs; by default 1 on a GPU, and on a CPU 0.0001 or less, some
    minutes of one core for each."""
    out: Path | None = None
    """Folder of the runs, tables and figures; by default runs/DYNAMICS-SCALE, or runs/DYNAMICS-cpu, and another for
    each --precision."""
    data_dir: Path = Path("data")
    """Folder of MNIST, Fashion-MNIST and CelebA."""
    data: Path | None = None
    """CelebA's aligned pictures, a folder or zip file, if they are not in data_dir."""
    fid_weights: Path | None = None
    """As in grbm evaluate --fid."""
    fid_samples: int = 10_000
    """As in grbm evaluate --fid."""
    mean: bool | None = None
    """Show and score conditional means μ + W h in place of v; by default only with the dynamics of the program."""
    jobs: int | None = None
    """Runs at a time; by default 1 on a GPU and 2 on a CPU."""
    seed: int = 0
    """Seed of the random numbers."""
    seeds: int = 1
    """So many seeds from that one on, for a table, which then has means and their standard errors over seeds."""
    recipe: Recipe = "paper"
    """ours: a figure by our own recipe in place of the paper's, with presets such as mnist-medium, whatever --dynamics
    and --scale say."""
    precision: Precision = "highest"
    """As in grbm train: fast takes half-precision operands of products where the machine has units for them."""

    @property
    def share(self) -> float | None:
        """``scale``, or its default; None: what each experiment has for a CPU."""
        return 1.0 if self.scale is None and _on_gpu() else self.scale

    @property
    def folder(self) -> Path:
        """``out``, or its default."""
        kind = f"{self.dynamics}-{'cpu' if self.share is None else f'{self.share:g}'}"
        kind = "ours" if self.recipe == "ours" else kind
        return self.out or Path("runs") / (kind + ("" if self.precision == "highest" else f"-{self.precision}"))

    @property
    def at_once(self) -> int:
        """``jobs``, or its default."""
        return self.jobs or (1 if _on_gpu() else 2)


@dataclass(frozen=True)
class EverythingOptions(PaperOptions):
    """Make as many of the paper's figures and tables as a time allows, and say what was left out.

    The same command goes on where it ended.
    """

    budget: float = 3600.0
    """Seconds after which no training goes on; what is trained by then is scored and drawn."""


@dataclass(frozen=True)
class Figure1Options:
    """Run what is missing of Figure 1 of the paper, then draw it and print its table."""

    budget: Literal["short", "long", "paper"] = "short"
    """short: 7,000 updates each, some minutes on two cores. long: 30,000, half an hour a seed. paper: the full
    500,000, many hours."""
    out: Path | None = None
    """Folder of the runs and the figure; by default runs/fig1-BUDGET."""
    jobs: int = 2
    """Runs at a time, one thread each."""
    seed: int = 0
    """Seed of the random numbers."""
    seeds: int = 1
    """So many seeds from that one on; the figure is of the first, the table of all."""
    only: tuple[str, ...] = ()
    """Only these samplers: gibbs, langevin, langevin-adjusted, gibbs-langevin, gibbs-langevin-adjusted, recommended."""
    rules: tuple[str, ...] = ()
    """Only these rows: program, printed, ours."""

    @property
    def folder(self) -> Path:
        """``out``, or its default."""
        return self.out or Path("runs") / f"fig1-{self.budget}"


def _on_gpu() -> bool:
    from grbm.core.devices import pick_device  # which loads PyTorch

    return pick_device("auto").type == "cuda"


def is_ours(what: str) -> bool:
    """Whether our recipe has a target: a figure that shows runs of it, and does not compare the paper's own."""
    return what in FIGURES and set(FIGURES[what]) <= set(OURS)


def runs_of(what: str, recipe: Recipe, scale: float | None) -> list[str]:
    """The presets that a target trains; a table of the paper's runs has our recipe as its last row.

    Raises UserError for a target that compares the paper's samplers or settings, of which our recipe has one.
    """
    names = TARGETS[what]
    if recipe == "ours":
        if not is_ours(what):
            raise UserError(
                f"{what} compares the paper's own runs; --recipe ours is for figures of one run of each kind."
            )
        return [OURS[name] for name in names]
    if what not in TABLES:
        return names
    return [*names, "mnist-small" if scale is None or scale <= SMALL_SCALE else OURS[BEST]]
