"""How parameters are learned, and to how many digits: settings alone, which load nothing."""

import math
from dataclasses import dataclass
from typing import Literal

Precision = Literal["highest", "high", "fast"]
LOOKS, LOOKS_BEFORE_ROUNDS = 40, 5  # at held-out rows, while stochastic gradients are followed
APART = 10  # updates at least from look to look, since a look takes as long as several of them


@dataclass(frozen=True)
class FitOptions:
    """Settings of learning, by default those of the paper.

    Each field is described in the API reference and by ``grbm train isotropic --help-all`` (--train.*).
    """

    n_updates: int = 10_000
    """Parameter updates; an epoch is (rows of data)/batch_size of them."""
    batch_size: int = 100
    """Rows of data in an update."""
    centred: bool = False
    """Centre visible and hidden units on the data's means in the gradient."""
    clip_norm: float | None = 10.0
    """Maximum norm of the gradient, over all parameters together; longer gradients are shortened to it. None = no
    clipping."""
    min_var: float = 1e-8
    """Lower bound of the variances."""
    anneal_step_size: bool = False
    """Langevin family: let the first step size fall to 0 over training by the cosine, as one row of Table 3 does."""
    average_decay: float | None = None
    """Decay of an exponential moving average of the parameters, which is then what samples and scores."""
    blocks: int = 4
    """Blocks of rows and chains with random numbers and sums of their own: the most processes that can share the run.
    Fewer where batch and chains do not divide by it."""
    rounds: int = 0
    """The last so many updates are rounds of quasi-Newton steps up the log-likelihood itself
    (`grbm.learning.quasi_newton`): for persistent chains that mix well, and up to some thousands of parameters."""
    prior: float = 0.0
    """Rounds: precision of a normal prior of U = W/σ²; prior/2 Σ U² is taken from the log-likelihood of all rows.
    0 = maximum likelihood. For whitened tables the default is 6 times the share of numbers that are missing."""
    spectral_norm: float | None = None
    """For SGD: length of spectral steps of W (`grbm.learning.spectral`). Along every singular direction of its gradient
    that is not far weaker than the others, W moves by about the learning rate times this; clipping does not shorten
    these steps. None = by the gradient."""
    keep_last: bool = False
    """Keep the incomplete last batch of an epoch. A Langevin temperature that equals ``batch_size``, as in the
    published program, is this batch's size while it lasts: its steps are longer, and of very few rows too long."""

    latent_rounds: int = 10
    """Of censored units: draws of their latent values, and of h, at every update."""
    latent_depth: float | None = None
    """Of censored units: how far beyond a limit latent values may lie in learning, in units of the model. What is
    learned is then a lower bound of the likelihood, and latent values do not drift off. None = any distance."""
    contrast_scales: bool = False
    """Learn the scales of a model's contrasts too (`grbm.model.contrasts`), and not their weights alone."""

    def check(self) -> None:
        """Raise ValueError for what no training can mean."""
        for name, least in (("n_updates", 0), ("rounds", 0), ("batch_size", 1), ("blocks", 1), ("latent_rounds", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        if self.first_round < 0:
            raise ValueError(f"rounds are among the updates, but {self.rounds} are more than {self.n_updates}.")
        for name in ("clip_norm", "spectral_norm", "min_var"):
            if (number := getattr(self, name)) is not None and not number > 0:
                raise ValueError(f"{name} must be above 0, got {number}.")
        if not (math.isfinite(self.prior) and self.prior >= 0):
            raise ValueError(f"prior must be at least 0 and finite, got {self.prior}.")
        if self.average_decay is not None and not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay must be at least 0 and below 1, got {self.average_decay}.")

    @property
    def first_round(self) -> int:
        """Updates before the first round; all of them where there is none."""
        return self.n_updates - self.rounds

    def is_look(self, update: int, apart: int = APART) -> bool:
        """Whether held-out rows are looked at after this many updates.

        After the last and after every round, and some 40 times before, or 5 where rounds follow, ``apart`` updates
        from one another at least.
        """
        n_looks = LOOKS_BEFORE_ROUNDS if self.rounds else LOOKS
        return update >= self.first_round or update % max(apart, self.first_round // n_looks) == 0

    def before_rounds(self, update: int) -> bool:
        """Whether rounds follow: nothing is stopped early before, since they find what stochastic gradients do not."""
        return self.rounds > 0 and update <= self.first_round

    def n_blocks(self, n_rows: int, n_chains: int | None) -> int:
        """The number of blocks of a batch in all, by default of a chain a row: any division learns the same numbers."""
        return math.gcd(self.blocks, n_rows, n_chains or n_rows)


def sees_clusters(n_hidden: int) -> bool:
    """Whether so many hidden units can begin with the narrowest width of a cluster for their unit.

    Fewer end far better where they begin with the whole table, and find what clusters they can.
    """
    return n_hidden >= 64
