"""Rows of a table by how likely they are, and the numbers that make a row odd."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.core.streams import aligned, plain
from grbm.data.loading import Dataset
from grbm.evaluate.censored import FEWEST
from grbm.fitting.density import LogPartition
from grbm.report.scores import log_z
from grbm.report.words import with_error
from grbm.runs import Run
from grbm.runs.sampling import on_device

COLUMNS = ("log_density", "p_value")
LONGEST = 30  # Maximum number of characters of the name of a row.
RARE = 0.001  # p-value of rows that are counted
AIS_STEPS, AIS_CHAINS = 1000, 500


class Scored(NamedTuple):
    """Scores of rows, (n,) each, float64: of the known values where some are missing, NaN where all are."""

    log_density: Tensor  # nats, in the units of the data
    p_value: Tensor  # `grbm.fitting.density.Fitted.p_values`
    log_z: LogPartition
    n_unsure: int  # rows whose estimate rests on few annealed chains or draws


def score(run: Run, rows: Tensor, own: Dataset | None = None, *, seed: int = 1) -> Scored:
    """Score rows (n, N). log Z that is annealed begins at the run's ``own`` data, where they are there."""
    here, complete = on_device(run), ~rows.isnan().any(1)
    known = log_z(run, own or Dataset(rows[complete], rows[:0]), n_steps=AIS_STEPS, n_chains=AIS_CHAINS, seed=seed)
    found, n_unsure = torch.full((2, len(rows)), torch.nan, dtype=torch.float64), 0
    some = ~rows.isnan().all(1)
    if some.any():
        estimate = here.estimate(rows[some], known.value)
        found[0, some], n_unsure = estimate.log_p, int((estimate.n_effective < FEWEST).sum())
        found[1, some] = here.p_values(rows[some], seed=seed)
    return Scored(found[0], found[1], known, n_unsure)


def lines(
    run: Run, rows: Tensor, scored: Scored, n: int, index: tuple[str, Sequence[str]] | None = None, *, seed: int = 1
) -> Iterator[str]:
    """Sentences for a person: how many rows are rare, and the ``n`` least likely ones with their oddest numbers.

    ``index`` is the name of a column and the names of the rows in it.
    """
    known = (~scored.p_value.isnan()).nonzero()[:, 0]
    p, complete = scored.p_value[known], ~rows.isnan().any(1)
    if not scored.log_z.converged:
        yield f"log Z has NOT converged, and log-densities are not to be used; p-values are. {scored.log_z.verdict}"
    if scored.n_unsure:
        yield f"{scored.n_unsure:,} rows have uncertain estimates: they may score some nats too low, and seem odder."
    gaps = len(rows) - int(complete.sum())
    if gaps:
        yield f"{gaps:,} of {len(rows):,} rows have gaps: their scores are of the values that are known."
    if empty := len(rows) - len(known):
        yield f"Rows without values, which have no scores: {empty:,}."
    if not len(known):
        return
    least = 1 / (on_device(run).n_compared(gaps=gaps > 0) + 1)  # Below it no p-value lies.
    rare = RARE if least < RARE else math.ceil(1000 * least) / 1000
    yield (
        f"{int((p <= rare).sum()):,} of {len(p):,} rows have a p-value of {rare:g} or less, where {rare * len(p):.2g} "
        f"are expected."
    )
    if complete.any():
        yield f"Mean log-density of rows without gaps: {float(scored.log_density[complete].mean()):.4g} nats."
    by_density = known[torch.argsort(scored.log_density[known], stable=True)]
    some = by_density[torch.argsort(scored.p_value[by_density], stable=True)[:n]]
    if not len(some):
        return
    found = on_device(run).surprises(rows[some])
    names = run.columns or tuple(f"column {k}" for k in range(rows.shape[1]))
    head = ("row",) if index is None else ("row", plain(index[0]))
    table = [(*head, "log-density", "p-value", "oddest number, and what the others of the row say")]
    for row, away, mean, std in zip(some.tolist(), *found, strict=True):
        k = int(away.abs().nan_to_num(0.0, posinf=torch.inf).argmax())
        said = f"{names[k]} {float(rows[row, k]):.5g}, where {with_error(float(mean[k]), float(std[k]))} is expected"
        own = (f"{row:,}",) if index is None else (f"{row:,}", plain(index[1][row])[:LONGEST])
        table.append((*own, f"{float(scored.log_density[row]):.4g}", f"{float(scored.p_value[row]):.2g}", said))
    yield from aligned(table)


def as_array(scored: Scored) -> np.ndarray:
    """Numbers (n, 2) of `COLUMNS`, for a file."""
    return np.stack([scored.log_density.numpy(), scored.p_value.numpy()], 1)
