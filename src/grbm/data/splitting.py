"""Split rows at random into training and held-out rows, keeping copies of a row together."""

import numpy as np
import torch
from torch import Tensor

from grbm.data.tables import CHUNK, Table, chunks, spread

MOST = 300_000_000  # numbers in a table that is searched for copies; a larger one would add seconds to every command
ATOM = 0.01  # share of all rows above which equal rows count as an atom of the density, not as copies
FEW = 10  # equal rows that never count as an atom


def split(order: Tensor, n: int, same: Tensor | None) -> tuple[Tensor, Tensor]:
    """Split a random ``order`` of row numbers into the remaining rows and the first ``n``, each sorted.

    Rows with equal numbers in ``same`` stay together, so more than ``n`` may be held out.
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
        few = max(2, CHUNK // width)
        repeated = np.flatnonzero(is_copied[same])
        repeated = repeated[np.argsort(same[repeated], kind="stable")][:few]  # whole groups
        sample = np.union1d(repeated, spread(n, few).numpy())  # others too, which tell what is equal by chance
        some = rows[torch.from_numpy(sample)].double().numpy()
        is_whole = width == 1 and bool((some == some.round()).all())
        if is_whole or not any(_identifies(column, same[sample]) for column in some.T):
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
    return ((bits ^ (bits >> np.uint64(29))) * factors).sum(1, dtype=np.uint64)


def _identifies(column: np.ndarray, same: np.ndarray) -> bool:
    """Whether numbers of a column are hardly ever equal but in rows that are copies; most of them must not be atoms."""
    alike, equal = (_repeats(x) for x in (same, column))
    n_pairs = [int((counts * (counts - 1) // 2).sum()) for counts in (alike, equal)]
    return bool(2 * equal.sum() > len(column) and n_pairs[0] >= 0.9 * n_pairs[1])


def _repeats(x: np.ndarray) -> np.ndarray:
    """Count the occurrences of each number that is no atom."""
    counts = np.unique(x, return_counts=True)[1]
    return counts[counts <= max(FEW, ATOM * len(x))]
