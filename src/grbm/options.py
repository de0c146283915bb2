"""How parameters are learned, and to how many digits: settings alone, which load nothing."""

import math
from dataclasses import dataclass
from typing import Literal

Precision = Literal["highest", "high", "fast"]


@dataclass(frozen=True)
class FitOptions:
    """How parameters are learned; by default as in the paper."""

    n_updates: int = 10_000
    """Parameter updates; an epoch is (rows of data)/batch_size of them."""
    batch_size: int = 100
    """Rows of data in an update."""
    centred: bool = False
    """Centre visible and hidden units on the data's means in the gradient."""
    clip_norm: float | None = 10.0
    """Gradient norm, over all parameters together; None = no clipping."""
    min_var: float = 1e-8
    """Lower bound of the variances."""
    anneal_step_size: bool = False
    """Langevin family: let the first step size fall to 0 over training by the cosine, as one row of Table 3 does."""
    average_decay: float | None = None
    """Decay of an exponential moving average of the parameters, which is then what samples and scores."""
    blocks: int = 4
    """Blocks of rows and chains with random numbers and sums of their own: the most processes that can share the run.
    Fewer where batch and chains do not divide by it."""

    def check(self) -> None:
        """Raise ValueError for what no training can mean."""
        for name, least in (("n_updates", 0), ("batch_size", 1), ("blocks", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        for name in ("clip_norm", "min_var"):
            if (number := getattr(self, name)) is not None and not number > 0:
                raise ValueError(f"{name} must be above 0, got {number}.")
        if self.average_decay is not None and not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay must be at least 0 and below 1, got {self.average_decay}.")

    def n_blocks(self, n_rows: int, objective: object) -> int:
        """The number of blocks of a batch of ``n_rows`` in all: the same numbers are learned for any division of it."""
        return math.gcd(self.blocks, n_rows, getattr(objective, "n_chains", None) or n_rows)


LOOKS = 40  # at held-out rows, while a model learns


@dataclass(frozen=True)
class Recipe:
    """How a whitened table is learned (`grbm.recipe`); `recipe_for` chooses what follows from its size."""

    n_hidden: int
    n_updates: int
    learning_rate: float = 0.05
    variance_rate: float = 0.1  # share of it for log σ², which would else swallow what hidden units should explain
    batch_size: int = 256
    n_chains: int = 256
    n_moves: int = 5  # Gibbs steps between two global moves
    min_var: float = 1e-4  # in the unit of the coordinates
    average_decay: float = 0.99

    def options(self, until: int) -> FitOptions:
        """What `grbm.fit` is told, to go up to update ``until``."""
        return FitOptions(until, self.batch_size, True, min_var=self.min_var, average_decay=self.average_decay)


def sees_clusters(n_hidden: int) -> bool:
    """Whether so many hidden units can begin with the narrowest width of a cluster for their unit.

    Fewer end far better where they begin with the whole table, and find what clusters they can.
    """
    return n_hidden >= 64


def recipe_for(n_rows: int, n_hidden: int | None = None) -> Recipe:
    """As many hidden units as rows can teach, and updates that cost some twenty seconds on two cores."""
    chosen = n_hidden or min(256, max(64, min(128, n_rows // 4), n_rows // 40))
    rate = 0.1 if sees_clusters(chosen) else 1.0  # σ² has far to fall where it begins with the whole table
    return Recipe(chosen, 8000 if n_rows >= 1000 else 4000, variance_rate=rate)
