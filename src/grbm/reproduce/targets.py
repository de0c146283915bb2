"""What of the paper can be reproduced, and the runs that each table and figure is made of."""

from typing import Literal

from grbm.core.errors import UserError
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
