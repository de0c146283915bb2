"""Coordinates in which a table is easiest to learn: a lossless change, found from the data.

A GRBM is a mixture of Gaussians that share one diagonal covariance. So coordinates are chosen in which the whole data
and what is left within their clusters are both uncorrelated (those of linear discriminants; Hastie & Tibshirani 1996).
Their unit is the narrowest width of a cluster; for a machine of few hidden units, which cannot see clusters so finely,
it is the deviation of the whole table. Wherever there are no clusters these are principal components, and a
machine without hidden units at work is a Gaussian with the data's full covariance. Where rows lie near and far as
those of no such mixture do, it is seen at several contrasts (`grbm.model.contrasts`), and all else is found of rows at
one.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from grbm.core.devices import threads
from grbm.core.randomness import generator
from grbm.data.frame import Frame
from grbm.data.tables import nothing_varies, resolution, vary
from grbm.data.transforms import Whitening
from grbm.model import Base
from grbm.model.contrasts import NUMBER, UNIT, Contrasts, ask_for_contrasts, elliptical
from grbm.model.reference import FIT_ROWS, Reference, as_reference, best_mixture

EXACT = 1e-12  # share of a column's deviation, below which what others leave of it is lost in float64
NARROW = 1e-3  # the same, below which what is left is a column of its own
LARGEST_FULL = 64  # columns, above which mixtures with full covariances take too long
WIDEST = 40  # units that are whitened by default whatever they are
WIDEST_TABLE = 500  # columns that are whitened by default: more take too long
RELATED = 1e-6  # Smallest coefficient of a linear relation between standardised columns.
COARSE = 0.25  # share of rows with one value, from which a column is coarse
MANY = 0.25  # share of more columns than `WIDEST`, from which coarse ones decide
CORRELATED = 0.6  # nats that correlation is worth to each of them, above which they are whitened all the same
ROWS_A_COLUMN = 10  # below which a table is short
ROWS_A_UNIT = 100  # the same for more units than `WIDEST`, whose covariance has that many more numbers
FOLDS = 10  # of cross-validation, where it is
MANY_COPIES = 1.5  # Rows for each that they are worth, above which copies would pass for more than there are.
NARROWEST = 5e-3  # width of a cluster, of a variance of 1 in all
FEWEST, SMALLEST = 30, 0.03  # rows, and share of them, of a cluster whose widths count

Array = np.ndarray[Any, Any]


def whiten(
    x: Array, *, fine: bool = True, n_contrasts: int | None = None, same: Array | None = None, seed: int = 0
) -> Frame:
    """Find coordinates for rows x (n, N), float64; columns of any units. ``fine`` ones have clusters for their unit.

    There are ``n_contrasts``, by default as many as describe the rows best. If rows are repeated, copies are equal in
    ``same`` (n,), whole numbers. Where these are many, clusters are looked for among as many rows as they are worth, no
    two of them copies, which would look like a cluster of no width; and if they are few, so is everything.

    Raises UserError where nothing varies.
    """
    import sklearn.mixture  # noqa: F401, so that its threads are limited too

    with threads(1):  # Products are small: beside a busy processor two threads take twenty times as long.
        return _whitened(x, fine, n_contrasts, _different(same, len(x)), seed)


def _different(same: Array | None, n: int) -> Array:
    """Numbers of rows, of n: all; where copies are many, as many as they are worth (Kish 1965), without copies."""
    counts = np.ones(n) if same is None else np.bincount(same)
    worth = counts.sum() ** 2 / np.square(counts).sum()
    if same is None or MANY_COPIES * worth >= n:
        return np.arange(n)
    some = _spread(n, round(worth))
    return some[np.sort(np.unique(same[some], return_index=True)[1])]


def _whitened(x: Array, fine: bool, n_contrasts: int | None, different: Array, seed: int) -> Frame:
    """As `whiten`, of which rows ``different`` are no copies of one another."""
    n = len(different)
    mean, varies, scale, standard = _standard(x)
    kept, to_inside = set_apart(x)
    if not kept.any():
        raise nothing_varies(len(x))
    inside = standard[:, kept] @ to_inside
    is_wide = inside.shape[1] > WIDEST
    is_short = n < (ROWS_A_UNIT if is_wide else ROWS_A_COLUMN) * inside.shape[1]
    if is_short:
        inside, standard, different = inside[different], standard[different], np.arange(n)
    coordinates = _root(cross_validated(inside) if is_short and is_wide else _shrunk(inside))
    some = different[_spread(n, min(FIT_ROWS, n))]
    white = inside @ coordinates
    least = 1 / n if is_short else 1e-6  # of few rows, two alone would be a cluster of no width
    mixture_of = partial(best_mixture, seed=seed, least=least)
    seen = inside[some] if is_wide else None
    contrasts, change, white, tied = _contrasts(white, some, mixture_of, seen, n_contrasts, seed)
    coordinates = coordinates @ change
    is_one = contrasts.n == 1 and tied.n_components == 1
    if is_one and is_short and not is_wide:
        coordinates = _root(cross_validated(inside))
        white = inside @ coordinates
    # few rows look narrower than others would in some directions, and wider in others; they are taken as they are at
    # several contrasts, which are of all rows together, and for clusters in few columns, which have widths of their own
    is_sure = not is_short or contrasts.n > 1 or not (is_wide or is_one)
    if tied.n_components == 1:
        within, turn = np.ones(white.shape[1]), np.eye(white.shape[1])
    elif is_sure:
        within, turn = np.linalg.eigh(tied.covariances_)
    else:
        within, turn = np.linalg.eigh(_within(white[some], tied, coordinates))
        within = within.clip(max=1.0)  # what all rows have
    if fine:
        narrow = _narrowest(mixture_of(white[some] @ turn, ("diag",)), len(some)) if is_sure else within
        unit = np.sqrt(np.clip(narrow, NARROWEST, 1.0))
        turn, within = turn / unit, within / unit**2
    coordinates = coordinates @ turn

    z = white @ turn
    to_z = np.zeros((x.shape[1], coordinates.shape[1]))
    to_z[kept] = to_inside @ coordinates
    from_inside = np.linalg.inv(coordinates)
    to_x = np.zeros(to_z.T.shape)
    to_x[:, kept] = from_inside @ np.linalg.inv(to_inside)
    follows = varies & ~kept
    if follows.any():
        to_x[:, follows] = from_inside @ np.linalg.lstsq(inside, standard[:, follows], rcond=None)[0]
    if not is_sure:
        widths = np.square(turn).sum(0)
        means, factors = tied.means_ @ turn, np.repeat(np.diag(np.sqrt(within))[None], tied.n_components, 0)
        reference = Reference(*(torch.from_numpy(a).float() for a in (tied.weights_, means, factors)))
    else:
        # of rows that are not many, some direction hardly varies: a Gaussian as narrow would be far too sure
        is_plain = len(z) > 2 * z.shape[1]
        widths = z.var(0) if is_plain else np.einsum("ik,ij,jk->k", turn, _shrunk(white), turn)
        types = ("full", "tied", "diag") if z.shape[1] <= LARGEST_FULL else ("diag",)
        reference = as_reference(mixture_of(z[some], types))
    contrasts = contrasts.mapped(lambda centre: centre @ torch.from_numpy(turn)).to(torch.zeros(1))
    return Frame(
        Whitening(*(torch.from_numpy(a) for a in (mean, scale, to_z, to_x, resolution(x)))),
        Base(*(torch.from_numpy(a).float() for a in (z.mean(0), np.maximum(widths, 1e-9)))),
        reference,
        contrasts,
    )


def _spread(n: int, k: int) -> Array:
    """Numbers of ``k`` of n rows, evenly spaced."""
    return np.linspace(0, n - 1, k).astype(int)


def _contrasts(
    white: Array, some: Array, mixture_of: Callable[..., Any], seen: Array | None, n_contrasts: int | None, seed: int
) -> tuple[Contrasts, Array, Array, Any]:
    """The contrasts that whitened rows (n, K) ask for, and coordinates (K, K) in which rows of one contrast are white.

    And the rows at one contrast, there, and their mixture with one covariance. Contrasts are asked for where this
    mixture is better with them: a GRBM is one with one covariance.
    """
    rows, tied = torch.from_numpy(white), mixture_of(white[some], ("tied",), seen=seen)

    def energy(z: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(-tied.score_samples(z.numpy()))

    if n_contrasts is None:
        tells = len(white) > 2 * white.shape[1]  # of fewer rows, all lie as near as one another
        n_contrasts = NUMBER if tells and ask_for_contrasts(rows[some], energy) else 1
    if n_contrasts == 1:
        return UNIT, np.eye(white.shape[1]), white, tied
    contrasts, covariance = elliptical(rows, n_contrasts, torch.eye(white.shape[1], dtype=torch.float64))
    values, vectors = torch.linalg.eigh(covariance)
    change = vectors / values.sqrt()
    contrasts = contrasts.mapped(lambda centre: centre @ change)
    unit = contrasts.removed(
        rows @ change, lambda u: 0.5 * (u - contrasts.centre).square().sum(-1), generator(seed, "contrasts")
    ).numpy()
    return contrasts, change.numpy(), unit, mixture_of(unit[some], ("tied",))


def suits_whitening(x: Array) -> bool:
    """Whether a table (n, N) is whitened by default, by its columns that are no linear functions of others.

    These are at most 40; or fewer than a quarter of them are coarse, or their correlation is worth more than 0.6 nats
    to each. A standardised machine ends far below a full-covariance Gaussian there; where many columns are coarse, such
    as those of two values, its hidden units see them better. Tables of more than 500 columns are not whitened.
    """
    if x.shape[1] <= WIDEST:
        return True
    if x.shape[1] > WIDEST_TABLE:
        return False
    kept = independent(x)
    n_units = int(kept.sum())
    if n_units <= WIDEST or coarse(x[:, kept]).mean() < MANY:
        return True
    return correlation(x[:, kept]) > CORRELATED * n_units


def coarse(x: Array) -> Array:
    """(N,) bool: columns of which a quarter of the rows or more have one and the same value."""
    some = x[np.linspace(0, len(x) - 1, min(FIT_ROWS, len(x))).astype(int)]
    return np.array([np.unique(column, return_counts=True)[1].max() >= COARSE * len(some) for column in some.T])


def correlation(x: Array) -> float:
    """Nats a row that a Gaussian with full covariance has above one of independent columns, where all vary."""
    covariance = _shrunk(_standard(x.astype(np.float64))[3])
    values = np.linalg.eigvalsh(covariance).clip(1e-10)  # below is rounding
    return 0.5 * float(np.log(np.diag(covariance)).sum() - np.log(values).sum())


def _standard(x: Array) -> tuple[Array, Array, Array, Array]:
    """The mean of each column, whether it varies, its deviation (1 where it does not), and x standardised by them."""
    low = x.min(0)
    mean = low + (x - low).mean(0)  # the digits that vary may be the last of many
    std = (x - mean).std(0)
    varies = vary(std, low, x.max(0), resolution(x))
    mean, scale = np.where(varies, mean, low), np.where(varies, std, 1.0)
    return mean, varies, scale, np.where(varies, (x - mean) / scale, 0.0)


def independent(x: Array) -> Array:
    """(N,) bool: columns of x (n, N) that vary and are no linear functions of those before them.

    But for the rounding of their numbers. Once there is a column less than rows all further ones are kept, since so
    many fit whatever they are.
    """
    return set_apart(x.astype(np.float64))[0]


def relations(x: Array) -> Iterator[tuple[int, list[int]]]:
    """Columns of x (n, N) that are linear functions of others in all rows without NaN, each with these others."""
    complete = x[~np.isnan(x).any(1)]
    if len(complete) <= x.shape[1] + 1:
        return
    _, varies, _, standard = _standard(complete)
    kept = independent(complete)
    for column in np.flatnonzero(~kept & varies):
        weights = np.linalg.lstsq(standard[:, kept], standard[:, column], rcond=None)[0]
        yield int(column), np.flatnonzero(kept)[np.abs(weights) > RELATED].tolist()


def set_apart(x: Array) -> tuple[Array, Array]:
    """Select the `independent` columns of x (n, N), and rescale nearly dependent ones, by Gram-Schmidt.

    The matrix (K, K) is multiplied from the right. It replaces a nearly dependent column by its residual given the
    columns before it, scaled to deviation 1. Without it the shrunk covariance would lose the spread of two prices.
    """
    mean, varies, scale, standard = _standard(x)
    n, which = len(x), np.flatnonzero(varies)
    columns = standard[:, which] / math.sqrt(n)
    if n > len(which):  # the same lengths and angles in fewer numbers
        columns = np.asarray(np.linalg.qr(columns, mode="r"))
    size = np.abs(standard).max(0) + np.abs(mean / scale)
    error = (resolution(x) * size)[which]  # of a number, in deviations
    basis, factor = np.zeros((len(columns), 0)), np.zeros((0, 0))  # columns kept so far are basis @ factor
    is_kept, rows = np.ones(len(which), bool), []
    for j, column in enumerate(columns.T):
        k = basis.shape[1]
        if k >= n - 1:
            break
        along = basis.T @ column
        along += basis.T @ (column - basis @ along)  # what rounding has left of it
        rest = column - basis @ along
        left, weights = float(np.linalg.norm(rest)), np.linalg.solve(factor, along)
        rounding = math.hypot(error[j], np.linalg.norm(weights * error[:j][is_kept[:j]]))
        is_kept[j] = left > max(rounding, EXACT * (1 + float(np.linalg.norm(weights))))
        if is_kept[j]:
            basis = np.column_stack([basis, rest / left])
            factor = np.block([[factor, along[:, None]], [np.zeros((1, k)), np.full((1, 1), left)]])
            if left < NARROW and 2 * k < n:
                rows.append((k, weights, left * math.sqrt(n / (n - k))))
    change = np.eye(int(is_kept.sum()))
    for k, weights, left in rows:
        change[:k, k], change[k, k] = -weights / left, 1 / left
    kept = varies.copy()
    kept[which] = is_kept
    return kept, change


def _shrunk(rows: Array) -> Array:
    """The covariance, shrunk as far towards independent columns as few rows ask for (Ledoit & Wolf 2004)."""
    from sklearn.covariance import ledoit_wolf

    return np.asarray(ledoit_wolf(rows)[0])


def cross_validated(x: Array) -> Array:
    """The covariance (N, N) of rows x (n, N), whose eigenvectors are theirs and whose eigenvalues those of other rows.

    Along the eigenvectors of nine tenths of the rows the other tenth vary as any unseen rows do; the tenths' means, in
    order, are the eigenvalues (Bartz 2016, "Cross-validation based nonlinear shrinkage"). The columns' means are 0.
    """
    from sklearn.isotonic import isotonic_regression

    n, N = x.shape
    squares, tenth = np.zeros(N), np.random.default_rng(0).permutation(n) % FOLDS  # rows may come in turns
    for fold in range(min(n, FOLDS)):
        rest, unseen = x[tenth != fold], x[tenth == fold]
        mean = rest.mean(0)
        vectors = np.linalg.eigh((rest - mean).T @ (rest - mean))[1]
        squares += np.square((unseen - mean) @ vectors).sum(0)
    values = np.maximum(isotonic_regression(squares / n), 1e-10)
    vectors = np.linalg.eigh(x.T @ x)[1]
    return vectors * values @ vectors.T


def _root(covariance: Array) -> Array:
    """Coordinates (N, N) in which it is the identity, by its eigenvectors."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors / np.sqrt(np.maximum(values, 1e-12))


def _within(white: Array, tied: Any, coordinates: Array) -> Array:
    """The covariance (N, N) within the clusters of whitened rows, cross-validated where columns are coordinates.

    Rows less the means that they are expected to have vary too little where clusters overlap, by how uncertain those
    means are; and by as many rows as there are means.
    """
    shares, back = tied.predict_proba(white), np.linalg.inv(coordinates)
    means = tied.means_ @ back
    expected = shares @ means
    rest = white @ back - expected
    uncertain = (means.T * shares.mean(0)) @ means - expected.T @ expected / len(white)
    within = (cross_validated(rest - rest.mean(0)) + uncertain) * len(white) / (len(white) - len(means))
    return coordinates.T @ within @ coordinates


def _narrowest(clusters: Any, n_rows: int) -> Array:
    """The narrowest variance of each coordinate, in those of a mixture's clusters that have rows enough to tell."""
    whole = clusters.weights_ >= min(clusters.weights_.max(), max(FEWEST / n_rows, SMALLEST))
    return clusters.covariances_[whole].min(0)
