"""Which rows are held out: a random choice, in which copies of a row stay together."""

import numpy as np
import torch
from torch import Tensor

from grbm.data.tables import CHUNK, Table, chunks, spread

MOST = 300_000_000  # numbers of a table in which copies are looked for: more take many seconds at every command
ATOM = 0.01  # share of the rows, above which equal ones are a part of the density and no copies
FEW = 10  # equal rows that are no atom, however few there are in all


def split(order: Tensor, n: int, same: Tensor | None) -> tuple[Tensor, Tensor]:
    """Numbers of rows but for the first ``n`` of a random ``order``, and these, each sorted.

    Where rows have equal numbers in ``same`` they go where the first of them goes.
    """
    if same is not None:
        first = torch.full((int(same.max()) + 1,), len(order)).scatter_reduce(
            0, same[order], torch.arange(len(order)), "amin"
        )
        place = first[same[order]]
        order, place = order[place.argsort(stable=True)], place.sort().values
        while 0 < n < len(order) and place[n] == place[n - 1]:
            n += 1
    return order[n:].sort().values, order[:n].sort().values


def copies(rows: Table, *, is_picture: bool = False) -> Tensor | None:
    """(n,) int64, equal for rows that are copies of one another; None where there are none.

    Rows of few different numbers are equal by chance. They are copies where some column has equal numbers hardly ever
    but in equal rows, and pictures are whatever their pixels are. Rows that make up a hundredth of all are an atom.
    """
    n, width = rows.shape
    if n * width > MOST:
        return None
    digests = np.concatenate([_digests(x) for _, x in chunks(rows)])
    _, same, counts = np.unique(digests, return_inverse=True, return_counts=True)
    is_copied = (counts > 1) & (counts <= max(FEW, ATOM * n))
    if not is_copied.any():
        return None
    if not is_picture:
        several = np.flatnonzero(is_copied[same])
        several = several[np.argsort(same[several], kind="stable")][: max(2, CHUNK // width)]  # whole groups
        some = rows[torch.from_numpy(several)].double().numpy()
        if width == 1 and bool((some == some.round()).all()):
            return None
        seen = rows[spread(n, CHUNK // width + 1)].double().numpy()
        if not any(_is_fine(a) and _tells(b, same[several]) for a, b in zip(seen.T, some.T, strict=True)):
            return None
    is_atom = (counts > max(FEW, ATOM * n))[same]
    same[is_atom] = len(counts) + np.arange(is_atom.sum())
    return torch.from_numpy(same)


def first_of_each(same: Tensor) -> Tensor:
    """Numbers of the first row of each group of copies, in order."""
    return torch.from_numpy(np.sort(np.unique(same.numpy(), return_index=True)[1]))


def _digests(x: np.ndarray) -> np.ndarray:
    """(n,) uint64, equal for equal rows x (n, N) float64, and hardly ever for others."""
    factors = np.random.default_rng(0).integers(1 << 63, size=x.shape[1], dtype=np.uint64) * 2 + 1
    bits = np.ascontiguousarray(x + 0.0).view(np.uint64)  # −0 is 0
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)  # round numbers end in zeros
    found: np.ndarray = ((bits ^ (bits >> np.uint64(29))) * factors).sum(1, dtype=np.uint64)
    return found


def _is_fine(column: np.ndarray) -> bool:
    """Whether most numbers of a column are no atoms."""
    counts = np.unique(column, return_counts=True)[1]
    return bool(2 * counts[counts <= max(FEW, ATOM * len(column))].sum() > len(column))


def _tells(column: np.ndarray, same: np.ndarray) -> bool:
    """Whether numbers of a column are equal hardly ever but in rows that are copies."""
    pairs = [np.unique(x, return_counts=True)[1] for x in (same, column)]
    alike, equal = (int((counts * (counts - 1) // 2).sum()) for counts in pairs)
    return alike >= 0.9 * equal
