"""Rows of which some numbers are given, and draws of the others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grbm.core.devices import require_memory
from grbm.core.errors import UserError
from grbm.data.delimited import shown
from grbm.data.kinds import table_kind
from grbm.data.loading import reading_of
from grbm.data.named import open_table
from grbm.runs.encoding import rows_with_gaps
from grbm.runs.folder import Run
from grbm.runs.sampling import on_device
from grbm.samplers.conditional import Filling


def given_rows(run: Run, what: str, note: Callable[[str], None]) -> Tensor:
    """Return rows (n, N), float64, NaN where a number is to be drawn.

    Parameters
    ----------
    run : Run
    what : str
        A file in which columns may be absent, or numbers of one row, such as "weight=3000,year=76".
    note : callable
        Told what a person should know of a file.

    Raises
    ------
    UserError
        For columns that the run does not have, text that is no number, and a file that does not fit.
    """
    if "=" in what and not Path(what).exists():
        return _one_row(run, what)
    path, names = Path(what), run.columns
    if not names or table_kind(path) is None:
        return torch.from_numpy(rows_with_gaps(run, path, None, note))
    table = open_table(path, reading_of(run.config.dataset)._replace(columns=(), drop=(), may_be_empty=True))
    for name, why in table.left_out:
        if name in names and why != "empty":
            raise UserError(f"Column {name!r} of {path} holds no numbers ({why}), and {run.folder} learned numbers.")
    if not (there := [name for name in names if name in table.columns]):
        raise UserError(f"{path} has none of the columns of {run.folder}, {shown(names)}.")
    rows = np.full((len(table.rows), len(names)), np.nan)
    rows[:, [names.index(name) for name in there]] = table.picked(there, str(path)).rows[:].numpy()
    return torch.from_numpy(rows)


def _one_row(run: Run, text: str) -> Tensor:
    """Return the row (1, N) of a text such as "weight=3000,year=76"; columns without names have numbers from 0."""
    names = run.columns or tuple(str(k) for k in range(run.transform.n_columns))
    row = torch.full((1, len(names)), torch.nan, dtype=torch.float64)
    for part in text.split(","):
        name, _, number = (x.strip() for x in part.rpartition("="))
        if name not in names:
            raise UserError(f"--given: {run.folder} has no column {name!r}; it has {shown(names)}.")
        try:
            row[0, names.index(name)] = float(number)
        except ValueError:
            raise UserError(f"--given: {part.strip()!r} gives no number; write NAME=NUMBER,NAME=NUMBER.") from None
    if row.isinf().any():
        raise UserError(f"--given {text} holds an infinite number; give finite ones.")
    return row


def draw_given(run: Run, rows: Tensor, n: int, *, n_steps: int = Filling().n_steps, seed: int = 1) -> Tensor:
    """Draw what rows (n', N) lack ``n`` times for each, given what they have: (n', n, N), float64."""
    here = on_device(run)
    size = 12.0 * n * len(rows) * (run.model.n_visible + run.model.n_hidden)
    require_memory(size, f"Drawing {n:,} times for {len(rows):,} rows", "draw fewer, or give fewer rows")
    return here.sample_given(rows, Filling(n_steps, n_steps - 1, n, seed=seed))
