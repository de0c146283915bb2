"""Log-densities of the same test rows by several models, kept as they are found."""

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grbm.core.files import replacing

Density = Callable[[np.ndarray], np.ndarray]  # rows to their log-densities
Found = tuple[Density, dict[str, float | bool]]  # and what else there is to say


class Rows(NamedTuple):
    """Rows in the coordinates of the models (n, N), and what is added to their log-densities: one number, or (n,)."""

    x: np.ndarray
    log_volume: float | np.ndarray = 0.0


class Scores:
    """Log-densities of test rows by name, in a folder; what lies there is taken up.

    Parameters
    ----------
    folder : Path
    train, test : Rows
    groups : ndarray
        Which group each test row is of, such as a photograph; errors are those over groups.
    only : list of str, optional
        Parts of names; others are not made.
    more : callable, optional
        Words for the mean log-density of the test rows, such as in bits.
    """

    def __init__(
        self,
        folder: Path,
        train: Rows,
        test: Rows,
        groups: np.ndarray,
        only: list[str] | None = None,
        more: Callable[[float], str] = lambda mean: "",
    ) -> None:
        self.folder, self.parts, self.groups, self.only, self.more = (
            folder,
            {"train": train, "test": test},
            groups,
            only,
            more,
        )
        self.test: dict[str, np.ndarray] = {}
        self.notes: dict[str, dict[str, float | bool]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, make: Callable[[], Found]) -> None:
        """Take up what is kept under this name, else make it; and print the line of the table."""
        if self.only is not None and not any(part in name for part in self.only):
            return
        path = self.folder / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.npz"
        if not path.is_file():
            began = time.time()
            density, note = make()
            found = {part: density(rows.x) + rows.log_volume for part, rows in self.parts.items()}
            found["train"] = np.mean(found["train"])
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.savez(file, **found, **note, seconds=time.time() - began)
        kept = dict(np.load(path))
        self.test[name] = kept.pop("test")
        mean, error = by_group(self.test[name], self.groups)
        note = {key: x.item() for key, x in kept.items() if key not in ("train", "seconds")}
        self.notes[name] = {"train": kept["train"].item(), "test": mean, "error": error, **note}
        shown = f"{kept['train']:9.2f} {mean:9.2f} ± {error:5.2f}{self.more(mean)}  {kept['seconds']:6.0f} s"
        print(f"{name:<36} {shown}  {note or ''}", flush=True)


def by_group(x: np.ndarray, group: np.ndarray) -> tuple[float, float]:
    """Mean of x, and its standard error over groups, whose members resemble each other."""
    total = np.bincount(group, x - x.mean())
    return float(x.mean()), math.sqrt(float((total**2).sum())) / len(x)
