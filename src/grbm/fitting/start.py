"""Prepare training: facts of a table, its frame, the initial state; for the estimator and for runs."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.errors import UserError
from grbm.core.options import sees_clusters
from grbm.core.randomness import generator
from grbm.core.rows import Rows
from grbm.data.frame import Frame
from grbm.data.limits import limits_of
from grbm.data.splitting import first_of_each, split
from grbm.data.standardise import base_of, standardise
from grbm.data.tables import ColumnStatistics, Table, chunks, nothing_varies, spread
from grbm.data.transforms import Transform
from grbm.data.whitening import WIDEST_TABLE, independent, suits_whitening, whiten
from grbm.evaluate.watching import HeldOut, Watch
from grbm.fitting.observed import completed
from grbm.fitting.recipe import Facts, ModelConfig, Recipe
from grbm.learning.state import TrainState
from grbm.model import GRBM
from grbm.model.censoring import UNCENSORED, Censoring
from grbm.model.contrasts import scaled_gaussians
from grbm.model.initialise import anchored_, matched_, sparse_
from grbm.samplers import GlobalMoves, Sampler

FEWEST_HELD_OUT = 10
FEWEST_ROWS = 20  # Fewest rows that are whitened by default.
MANY = 20_000  # Maximum number of rows for facts, and for whitening a table on a disk.
ANCHORS = {"matched": 4000, "anchored": 10_000, "sparse": 10_000}  # Maximum number of rows for an initial model.
FILLINGS, ALL_FILLINGS = 128, 1 << 16  # Maximum number of draws of a validation row with gaps, and of all of them.
NUMBERS = 4_000_000  # Maximum numbers in these rows, but for 1,000 rows: wide tables on a disk stay there.


def facts_of(table: Table, same: Tensor | None = None) -> Facts:
    """Compute the facts of a table (n, N).

    Parameters
    ----------
    table : Table
    same : Tensor, optional
        (n,), equal for copies of a row (`grbm.data.splitting`), which count once.

    Raises
    ------
    UserError
        If every column is constant.
    """
    n, n_columns = table.shape
    n_rows = n if same is None else len(first_of_each(same))
    if n_columns > WIDEST_TABLE:  # of which nothing hangs on the number of units
        return Facts(n_rows, n_columns, suits_whitening=False)
    some = table[spread(n, MANY)].double().numpy()
    if not (n_units := int(independent(some).sum())):
        raise nothing_varies(n)
    return Facts(n_rows, n_units, n_rows >= FEWEST_ROWS and suits_whitening(some))


class Parts(NamedTuple):
    """Numbers of rows by what they are for."""

    learned_from: Tensor
    scored: Tensor  # one of each group of copies
    counts: Tensor | None  # of copies that each scored row stands for, float64; None: 1 each


def held_out(n_rows: int, share: float, seed: int, same: Tensor | None = None) -> Parts:
    """Choose rows to learn from, and rows to score: at least ten, but none of fewer than forty.

    Copies, equal in ``same`` (`grbm.data.splitting`), stay together, and one of them is scored for all, by their
    number: as many rows would seem to say more than they do.
    """
    order = torch.randperm(n_rows, generator=generator(seed, "validation"))
    n_different = n_rows if same is None else len(first_of_each(same))
    n = max(int(share * n_rows), FEWEST_HELD_OUT) if share > 0 and n_different >= 4 * FEWEST_HELD_OUT else 0
    learned_from, held = split(order, n, same)
    if same is None:
        return Parts(learned_from, held, None)
    first = first_of_each(same[held])
    return Parts(learned_from, held[first], same[held].bincount()[same[held][first]].double())


def frame_of(
    recipe: Recipe,
    table: Table,
    stats: ColumnStatistics,
    learned_from: Tensor | None = None,
    *,
    n_channels: int = 1,
    floor: float = 0.0,
    marked: Censoring = UNCENSORED,
    same: Tensor | None = None,
    seed: int = 0,
    where: str = "X",
) -> Frame:
    """The frame of a table (n, N): of all its rows as far as columns go, whitened of those to learn from alone.

    Parameters
    ----------
    recipe : Recipe
    table : Table
        The rows; of those on a disk, whitening reads 20,000.
    stats : ColumnStatistics
        Of all of them.
    learned_from : Tensor, optional
        Numbers of the rows that are not held out; all by default.
    n_channels, floor
        As in `grbm.data.standardise.standardise`.
    marked : Censoring
        Limits of columns that marks in a file tell.
    same : Tensor, optional
        (n,), equal for copies of a row (`grbm.data.splitting`). Where they are many, whitening heeds it.
    seed : int
        Of what is drawn on the way.
    where : str
        What errors call the table.

    Raises
    ------
    UserError
        Where nothing varies, or rows that whitening did not read break relations that it found.
    """
    how = recipe.model
    if recipe.standardise == "whiten":
        numbers = torch.arange(len(table)) if learned_from is None else learned_from
        some = numbers if isinstance(table, Tensor) else numbers[spread(len(numbers), MANY)]
        rows, copies = table[some].double().numpy(), None if same is None else same[some].numpy()
        fine = sees_clusters(how.n_hidden)
        frame = whiten(rows, fine=fine, n_contrasts=how.contrasts, same=copies, seed=seed)
        if len(some) < len(numbers) and not frame.transform.kept.all():
            _refuse_exceptions(frame.transform, table, numbers, len(some), where)
        return frame
    transform = standardise(stats, recipe.standardise, n_channels=n_channels, floor=floor)
    if not transform.n_units:
        raise nothing_varies(len(table))
    base = base_of(transform, stats)
    limits = limits_of(table, stats, recipe.censor, same_unit=floor > 0, marked=marked, where=where)
    if how.contrasts in (None, 1):
        return Frame(transform, base, censoring=limits)
    units = _with_contrast(how, transform.kept)
    squares = (transform(table[spread(len(table), MANY)]) - base.mean).square() / base.var
    contrasts = scaled_gaussians(
        squares.sum(1) if units is None else squares @ units, base.mean.clone(), how.contrasts, units
    )
    return Frame(transform, base, contrasts=contrasts.to(base.mean))


def _refuse_exceptions(transform: Transform, table: Table, learned_from: Tensor, n_seen: int, where: str) -> None:
    """Raise UserError for rows that break a relation, such as a constant, of the rows used for whitening."""
    counts, counted = torch.zeros(transform.n_columns, dtype=torch.int64), torch.zeros(len(table), dtype=torch.bool)
    counted[learned_from] = True
    for first, rows in chunks(table):
        counts += transform.breaks(torch.from_numpy(rows))[counted[first : first + len(rows)]].sum(0)
    if counts.any():
        column = int(counts.argmax())
        raise UserError(
            f"{where}, column {column}: {int(counts[column]):,} of {len(learned_from):,} rows break a linear relation, "
            f"or a constant value, that holds in the {n_seen:,} rows used for whitening. Remove the column, or those "
            f"rows."
        )


def _with_contrast(how: ModelConfig, kept: Tensor) -> Tensor | None:
    """1 for each unit that has contrast, 0 for others, of the columns ``kept`` (N,) bool; None where all have."""
    if how.contrast_units is None:
        return None
    units = torch.zeros(len(kept))
    try:
        first, last = (int(end) if end.strip() else None for end in how.contrast_units.split(":"))
    except ValueError as error:
        raise UserError(
            f"--model.contrast-units must be FIRST:LAST, such as 1: for all but the first, got {how.contrast_units!r}."
        ) from error
    units[first:last] = 1
    units = units[kept]
    if not units.any():
        raise UserError(f"--model.contrast-units {how.contrast_units} is none of the {len(units)} visible units.")
    return units


def unseen_of(
    frame: Frame,
    rows: Tensor,
    weights: Tensor | None = None,
    gappy: Tensor | None = None,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> HeldOut:
    """Make validation rows of ``rows`` (n, N) as learning sees them, which count by their ``weights`` (n,).

    Where they are ``gappy`` ones (n, N), NaN where a value is missing, that are filled, what is known alone is scored;
    but without a reference, or with contrasts of some units alone, all that is filled in is.
    """
    jumps = frame.jumps()
    is_gappy = gappy is not None and bool(gappy.isnan().any())
    if gappy is None or not is_gappy or jumps is None or frame.contrasts.units is not None:
        return HeldOut(frame.transform(rows).to(device), None, weights, frame.mean_log_det(rows, weights))
    n_draws = max(1, min(FILLINGS, ALL_FILLINGS // len(rows)))
    parts = list(completed(frame.contrasts, frame.transform, jumps.reference, gappy, n_draws=n_draws, seed=seed))
    z, offsets = (torch.cat(each) for each in zip(*parts, strict=True))
    offsets = (offsets - frame.transform.log_det).to(device)
    return HeldOut(z.float().to(device), offsets, weights, frame.mean_log_det(gappy, weights))


def watch_of(frame: Frame, sampler: Sampler, unseen: HeldOut, seed: int) -> Watch | None:
    """Make a `Watch` of validation rows: with jumps if the frame has a reference, else with ``sampler``.

    Return None if there are no rows, or log Z cannot be estimated from such chains.
    """
    if not isinstance(sampler, GlobalMoves):
        sampler = frame.jumps() or sampler
    return Watch(sampler, unseen, seed=seed) if len(unseen) and sampler.bridge() is not None else None


def begin(
    recipe: Recipe, frame: Frame, rows: Tensor | Rows, seed: int, device: torch.device | str = "cpu"
) -> TrainState:
    """The state of training before the first update, for rows (n, K) as the machine sees them."""
    model, how = GRBM(rows.shape[1], recipe.model.n_hidden, seed=seed), recipe.model
    if how.start == "paper":
        model.log_var.data.fill_(math.log(how.start_var))
    else:
        most = min(ANCHORS[how.start], max(1000, NUMBERS // model.n_visible))
        some = rows[spread(len(rows), most)].cpu()  # tables may be sorted
        some = frame.contrasts.removed(some, frame.base.energy, generator(seed, "contrasts"))
        match how.start:
            case "matched":
                matched_(model, some, n_at_work=how.n_at_work, seed=seed)
            case "sparse":
                sparse_(model, some, seed=seed)
            case "anchored":
                anchored_(model, some, var=how.anchor_var, length=how.anchor_length, seed=seed)
    model.contrasts, model.censoring = frame.contrasts, frame.limits
    model.to(device)
    return TrainState(model, recipe.train.build(model), seed=seed)
