"""What of the paper can be reproduced, and the runs that each table and figure is made of."""

from grbm.runs.paper import EXPERIMENTS

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
