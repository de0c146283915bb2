"""Which rows are held out: a random choice, in which copies of a row stay together."""

import numpy as np
import torch
from torch import Tensor

from grbm.data.tables import Table, chunks, spread

SOME = 20_000  # rows that tell whether there are copies
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
    n = len(rows)
    some = rows[spread(n, SOME)].double().numpy()
    alike = _pairs(_digests(some))
    if alike == 0:
        return None
    distinct = [column for column in some.T if (column != column[0]).any()]
    by_chance = len(distinct) == 1 and bool((distinct[0] == distinct[0].round()).all())
    if not is_picture and (
        by_chance or not any(alike >= 0.9 * _pairs(column) for column in distinct if _is_fine(column))
    ):
        return None
    digests = np.concatenate([_digests(x) for _, x in chunks(rows)])
    _, same, counts = np.unique(digests, return_inverse=True, return_counts=True)
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


def _beside_atoms(x: np.ndarray) -> np.ndarray:
    """How often each number is there, but for atoms."""
    counts = np.unique(x, return_counts=True)[1]
    found: np.ndarray = counts[counts <= max(FEW, ATOM * len(x))]
    return found


def _pairs(x: np.ndarray) -> int:
    """How many pairs of equal numbers there are."""
    counts = _beside_atoms(x)
    return int((counts * (counts - 1) // 2).sum())


def _is_fine(column: np.ndarray) -> bool:
    """Whether most numbers are no atoms."""
    return bool(2 * _beside_atoms(column).sum() > len(column))
