"""Rows of which some values are given, and draws of the others."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grbm.core.devices import require_memory
from grbm.core.errors import UserError
from grbm.data.delimited import shown
from grbm.data.loading import reading_of
from grbm.data.named import open_table
from grbm.runs.encoding import require_finite, require_within, rows_with_gaps
from grbm.runs.folder import Run
from grbm.runs.sampling import on_device
from grbm.samplers.conditional import Filling


def given_rows(run: Run, what: str, note: Callable[[str], None]) -> Tensor:
    """Return rows (n, N), float64, NaN where a value is to be drawn.

    Parameters
    ----------
    run : Run
    what : str
        A file in which columns may be absent, or values of one row, such as "weight=3000,year=76".
    note : callable
        Told what a person should know of a file.

    Raises
    ------
    UserError
        For columns that the run does not have, values that are no finite numbers, and a file that does not fit.
    """
    if not os.path.exists(what):
        if "=" in what:
            return _one_row(run, what)
        raise UserError(f"--given takes a file, or NAME=NUMBER,NAME=NUMBER; {what!r} is neither.")
    path = Path(what)
    rows = torch.from_numpy(rows_with_gaps(run, path, None, note, may_lack=True))
    require_within(run, rows, what)
    absent = [name for name, is_missing in zip(run.columns, rows.isnan().all(0), strict=False) if is_missing]
    how = reading_of(run.config.dataset)._replace(columns=(), drop=())
    others = [name for name in open_table(path, how).columns if name not in run.columns] if absent else []
    if others:
        note(f"{path}: {shown(others)} are no columns of {run.folder}. It draws {shown(absent)}.")
    if not rows.isnan().any():
        raise UserError(f"{path} has no missing values, so there is nothing to draw; leave out columns, or values.")
    return rows


def _one_row(run: Run, text: str) -> Tensor:
    """Return the row (1, N) of a text such as "weight=3000,year=76"; columns without names have numbers from 0."""
    names = run.columns or tuple(str(k) for k in range(run.transform.n_columns))
    row = np.full((1, len(names)), np.nan)
    for part in text.split(","):
        name, _, number = (x.strip() for x in part.rpartition("="))
        if name not in names:
            raise UserError(
                f"--given: {part.strip()!r} names no column of {run.folder}; it has {shown(names)}. A name with a "
                f"comma goes in a file."
            )
        k = names.index(name)
        if not np.isnan(row[0, k]):
            raise UserError(f"--given: {name!r} is given twice; give it once.")
        try:
            row[0, k] = float(number.replace("_", "?"))  # which Python reads, and tables do not
        except ValueError:
            raise UserError(f"--given: {part.strip()!r} gives no number; write NAME=NUMBER,NAME=NUMBER.") from None
    require_finite(run, row, "--given")
    require_within(run, torch.from_numpy(row), "--given")
    return torch.from_numpy(row)


def draw_given(run: Run, rows: Tensor, n: int, *, n_steps: int = Filling().n_steps, seed: int = 1) -> Tensor:
    """Draw the missing values of rows (n', N) ``n`` times for each, given the known ones: (n', n, N), float64."""
    size = 3.0 * 8 * n * rows.numel()  # the draws, and copies on the way to a file
    require_memory(size, f"Drawing {n:,} times for {len(rows):,} rows", "draw fewer, or give fewer rows")
    return on_device(run).sample_given(rows, Filling(n_steps, n_steps - 1, n, seed=seed))
