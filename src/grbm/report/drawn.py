"""Summary of conditional draws."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from grbm.core.streams import aligned

SHOWN = 3  # rows
QUANTILES = (0.05, 0.5, 0.95)


def lines(rows: Tensor, draws: Tensor, names: Sequence[str]) -> Iterator[str]:
    """Mean, standard deviation and quantiles of the missing values of the first rows (n, N), from draws (n, S, N)."""
    names = names or tuple(f"column {k}" for k in range(rows.shape[1]))
    table = [("row", "drawn", "mean", "deviation", *(f"{q:.0%}" for q in QUANTILES))]
    gappy = rows.isnan().any(1).nonzero()[:, 0].tolist()
    for row in gappy[:SHOWN]:
        for k in rows[row].isnan().nonzero()[:, 0].tolist():
            x = draws[row, :, k]
            quantiles = x.quantile(torch.tensor(QUANTILES, dtype=x.dtype)).tolist()
            numbers = (float(x.mean()), float(x.std(correction=0)), *quantiles)
            table.append((str(row), names[k], *(f"{number:.4g}" for number in numbers)))
    yield from aligned(table)
    if len(gappy) > SHOWN:
        yield f"and so on, of {len(gappy):,} rows with missing values."
