"""Before the first update of a run: data, frame, machine and objective, from a configuration."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grbm.core.devices import pick_device, require_memory, threads
from grbm.core.distributed import ProcessGroup
from grbm.core.errors import UserError
from grbm.core.randomness import seed_of
from grbm.data.bounding import bounds_of, read_bounds
from grbm.data.bounds import UNBOUNDED, Bounds
from grbm.data.coarse import grid_of
from grbm.data.frame import Frame
from grbm.data.grid import CONTINUOUS, Grid
from grbm.data.limits import limits_in
from grbm.data.loading import Dataset, Measured, statistics
from grbm.data.standardise import Standardised
from grbm.data.tables import StoredTable, Table, measure, refuse_magnitudes
from grbm.data.weighting import repeated
from grbm.evaluate.watching import HeldOut
from grbm.fitting.density import Fitted
from grbm.fitting.gaps import Gaps, Refill, copies_of
from grbm.fitting.start import begin, facts_of, frame_of, held_out, unseen_of
from grbm.learning.objectives import Objective
from grbm.learning.quasi_newton import REMEMBERED
from grbm.learning.state import TrainState
from grbm.model.censoring import UNCENSORED, Censoring
from grbm.runs import checkpoint
from grbm.runs.config import RunConfig
from grbm.runs.folder import CHECKPOINTS, DATA, read_data
from grbm.runs.paper import with_rows
from grbm.runs.presets import for_table

SCORED = 10_000  # Maximum number of validation rows.


class Opened(NamedTuple):
    """A configuration with nothing left open, and the data that it is of."""

    config: RunConfig
    dataset: Dataset
    measured: Measured
    gaps: Gaps | None  # of the rows to train on, which the data set has filled
    grid: Grid  # of the rows to train on, which the data set has in their cells
    bounds: Bounds  # of the same, which the data set has on a scale without them
    limits: Censoring  # of the same, before


class Prepared(NamedTuple):
    """All that a run needs before its first update; nothing is written yet."""

    config: RunConfig
    dataset: Dataset
    measured: Measured
    frame: Frame
    validation: HeldOut  # rows of the training data that are not learned from; may be empty
    data: Tensor | Standardised  # the training rows as the model sees them
    state: TrainState
    objective: Objective
    gaps: Gaps | None
    refill: Refill | None  # of the gaps among ``data``


def open_data(config: RunConfig, group: ProcessGroup, asked: Mapping[str, Any] | None = None) -> Opened:
    """Read the data of a run, and settle what its configuration leaves to them.

    With ``asked`` all that is not asked for, by name, is as the table asks (`grbm.runs.presets.for_table`).
    """
    dataset = group.on_leader(config.load_data) or config.load_data()  # the leader first: a download happens once
    config = with_rows(config, len(dataset.train))
    if dataset.pictures is not None:  # other pictures of this run will be scaled as these are
        white = config.dataset.white or dataset.pictures.white
        config = replace(config, dataset=replace(config.dataset, white=white))
    # numbers that no statistics can be had of are refused first
    measured = group.on_leader(lambda: statistics(dataset, config.where)) or statistics(dataset, config.where)
    if asked is not None and "dataset.censor" not in asked and dataset.limits is not UNCENSORED:
        config = replace(config, dataset=replace(config.dataset, censor="marks"))
        asked = {**asked, "dataset.censor": "marks"}
    grid, bounds, gaps = CONTINUOUS, UNBOUNDED, None
    limits: Censoring = UNCENSORED
    is_auto, told = read_bounds(config.dataset.bounds)
    changes = config.dataset.coarse != "none" or is_auto or bool(told)
    if changes or dataset.gappy is not None or dataset.weights is not None:
        rows, numbers = _all_rows(dataset)
        if dataset.gappy is not None:
            some = dataset.gappy[0]
            low, high = (torch.where(some.isnan(), end, some) for end in (measured.train.low, measured.train.high))
            refuse_magnitudes(low.amin(0).numpy(), high.amax(0).numpy(), config.where)
        same = copies_of(rows) if isinstance(rows, Tensor) else dataset.same
        if dataset.weights is not None:
            often = repeated(dataset.weights[numbers], config.seed).rows
            rows = rows[often] if isinstance(rows, Tensor) else rows.take(often)
            same = often if same is None else same[often]
        grid = grid_of(rows, config.dataset.coarse, config.dataset.censor)
        if is_auto or told:
            how: dict[str, Any] = {"is_auto": is_auto, "told": told, "columns": dataset.columns, "where": config.where}
            bounds, limits = _bounds(rows, grid, config.dataset.censor, dataset, measured, **how)
        if isinstance(rows, Tensor):
            rows = grid.inward(bounds.inward(grid.spread(rows, seed_of(config.seed, "cells"))))
        dataset = dataset._replace(train=rows, same=same)
    if dataset.gappy is not None:
        assert isinstance(dataset.train, Tensor)
        gaps = Gaps(dataset.train, config.seed, dataset.same)
    if asked is not None:
        config = for_table(config, facts_of(dataset.train, dataset.same) if gaps is None else gaps.facts, asked)
    if gaps is not None:
        marked = dataset.limits.mapped(bounds.ends_inward)
        filled = group.broadcast(group.on_leader(lambda: _filled(gaps, config, marked)))
        dataset = dataset._replace(train=filled)
    if gaps is not None or grid.n or bounds.n or dataset.weights is not None:
        measured = measured._replace(train=measure(dataset.train))
    if (bounds.n or grid.is_scored.any()) and (test := measured.test) is not None:
        low, high = (grid.inward(bounds.inward(end)) for end in (test.low, test.high))
        measured = measured._replace(test=test._replace(low=low, high=high))
    return Opened(config, dataset, measured, gaps, grid, bounds, limits)


def _bounds(
    rows: Table, grid: Grid, censor: str, dataset: Dataset, measured: Measured, **how: Any
) -> tuple[Bounds, Censoring]:
    """Bounds of the columns, which hold for rows held out too, and their limits."""
    if not isinstance(rows, Tensor):
        raise UserError("Bounds go with tables that fit into memory: raise --memory, or choose no bounds.")
    if censor not in ("none", "auto", "marks"):
        raise UserError("Bounds go with limits that are found or marked, not with given ones: --dataset.censor auto.")
    limits, stats = limits_in(rows, censor, dataset.limits), [] if measured.test is None else [measured.test]
    return bounds_of(rows, without=grid.is_coarse, limits=limits, stats=stats, **how), limits


def _all_rows(dataset: Dataset) -> tuple[Table, Tensor]:
    """Rows to train on, with gaps or without, in the order of their file, and their numbers in it."""
    assert dataset.numbers is not None
    if dataset.gappy is None or not isinstance(dataset.train, Tensor):
        return dataset.train, dataset.numbers[0]
    numbers, order = torch.cat([dataset.numbers[0], dataset.gappy[1]]).sort()
    return torch.cat([dataset.train, dataset.gappy[0]])[order], numbers


def _filled(gaps: Gaps, config: RunConfig, marked: Censoring) -> Tensor:
    """The rows with their gaps filled by a model that trains for a while."""
    recipe, train, n_units = config.recipe, config.train, gaps.rows.shape[1]
    with threads(recipe.n_threads(n_units)):
        where = pick_device(config.device, recipe.work(n_units))
        how: dict[str, Any] = {"marked": marked, "where": config.where}
        return gaps.by_model(recipe, train.n_updates - train.rounds, where, **how)


def prepare(opened: Opened, folder: Path, group: ProcessGroup, device: str | None, *, resume: bool) -> Prepared:
    """Frame, machine and objective of a run; raises UserError for what cannot be built or shared."""
    config, dataset, measured, gaps, grid, bounds, limits = opened
    marked = dataset.limits.mapped(bounds.ends_inward)
    group.on_leader(lambda: _check(config))
    learned_from, held, counts = held_out(len(dataset.train), config.train.validation, config.seed, dataset.same)
    found = group.on_leader(lambda: _frame(config, dataset, measured, learned_from, folder, marked, resume=resume))
    frame: Frame = group.broadcast(found).with_columns(grid, bounds, limits)
    transform, rows, held = frame.transform, dataset.train, held[:SCORED]
    where = pick_device(device or config.device, config.recipe.work(transform.n_units))
    counts, gappy = None if counts is None else counts[:SCORED].to(where), None if gaps is None else gaps.rows[held]
    validation = unseen_of(frame, rows[held], counts, gappy, seed=config.seed, device=where)
    if len(held):
        rows = rows.take(learned_from) if isinstance(rows, StoredTable) else rows[learned_from]
    data = Standardised(rows, transform, where) if isinstance(rows, StoredTable) else transform(rows).to(where)
    objective = group.on_leader(lambda: _objective(config, len(data), frame, group))
    objective = objective or _objective(config, len(data), frame, group)
    group.on_leader(lambda: _require_memory(config, data.shape[1], objective, where))
    state = begin(config.recipe, frame, data, config.seed, where)
    if group.broadcast(measured.fingerprint) != measured.fingerprint:
        raise UserError("The processes have different data; give all of them the same --data or --data-dir.")
    refill, train = None, config.train
    if gaps is not None and isinstance(data, Tensor):
        looked_at = None if group.world_size > 1 else validation
        fitted, n_updates = Fitted(frame, state.model), train.n_updates - train.rounds
        refill = gaps.refill(fitted, learned_from, data, 0, n_updates, looked_at)
    return Prepared(config, dataset, measured, frame, validation, data, state, objective, gaps, refill)


def _check(config: RunConfig) -> None:
    """Raise UserError for what no run can mean, or of limits or contrasts that do not go with the rest."""
    config.check()
    n_contrasts = config.model.contrasts
    if config.dataset.censor != "none":
        if config.dataset.standardise == "whiten":
            raise UserError("--dataset.censor does not go with whitening; add --dataset.standardise pixel.")
        if n_contrasts != 1:
            raise UserError("--dataset.censor does not go with several contrasts; add --model.contrasts 1.")
        if config.train.validation:
            raise UserError("Models with --dataset.censor cannot be validated; add --train.validation 0.")
    if config.train.contrast_scales and n_contrasts == 1:
        raise UserError("--train.contrast-scales needs several contrasts; add --model.contrasts 8.")
    if config.model.contrast_units is None:
        return
    if n_contrasts in (None, 1):
        raise UserError("--model.contrast-units needs several contrasts; add --model.contrasts 8.")
    if config.dataset.standardise == "whiten":
        raise UserError(
            "--model.contrast-units does not go with whitening; add --dataset.standardise pixel, or scalar."
        )


def _frame(
    config: RunConfig,
    dataset: Dataset,
    measured: Measured,
    learned_from: Tensor,
    folder: Path,
    marked: Censoring,
    *,
    resume: bool,
) -> Frame:
    """The frame: of the run where it has one that was learned in, else of the data."""
    if resume and (folder / DATA).is_file() and checkpoint.updates(folder / CHECKPOINTS):
        return read_data(folder).frame.inner  # the fingerprint of the checkpoints guards the data
    channels, floor = (dataset.image_shape[0], 0.1) if dataset.image_shape else (1, 0.0)
    how: dict[str, Any] = {"n_channels": channels, "floor": floor, "seed": config.seed, "where": config.where}
    how |= {"marked": marked, "same": dataset.same}
    frame = frame_of(config.recipe, dataset.train, measured.train, learned_from, **how)
    if not frame.is_whitened:
        measured.refuse_extreme(frame.transform, config.where)
    return frame


def _require_memory(config: RunConfig, n_visible: int, objective: Objective | None, device: torch.device) -> None:
    """Raise UserError for a model or chains that no memory holds; what is counted is the least that they need."""
    n_hidden = config.model.n_hidden
    copies = 4  # the weights, their gradient, the moments of either phase
    copies += 4 * REMEMBERED if config.train.rounds else 0  # steps and falls in float64
    require_memory(
        4.0 * copies * n_visible * n_hidden,
        f"A model of {n_visible:,} visible and {n_hidden:,} hidden units",
        "use fewer --model.n-hidden" + (", or --train.rounds 0" if config.train.rounds else ""),
        device,
    )
    n_chains = (objective and objective.n_chains) or config.train.batch_size
    require_memory(
        4.0 * 2 * n_chains * (config.sampler.n_replicas or 1) * (n_visible + n_hidden),
        f"{n_chains:,} chains",
        "use fewer --objective.n-chains, or a smaller --train.batch-size",
        device,
    )


def _objective(config: RunConfig, n_rows: int, frame: Frame, group: ProcessGroup) -> Objective:
    """The objective; raises UserError for what cannot be built, or shared by the processes."""
    batch_size = min(config.train.batch_size, n_rows)
    objective = config.objective.build(config.sampler.build(frame), batch_size)
    config.sampling.sampler.build(frame)  # so that a wrong option is refused now and not after training
    if config.train.n_blocks(batch_size, objective.n_chains) % group.world_size:
        raise UserError(
            f"{group.world_size} processes cannot share {config.train.blocks} blocks of {batch_size} rows and "
            f"{objective.n_chains or batch_size} chains evenly; choose --train.blocks, "
            f"--train.batch-size and --objective.n-chains that {group.world_size} divides."
        )
    if config.train.rounds and not objective.persists:
        raise UserError(
            f"Rounds of quasi-Newton steps need persistent chains, not {config.objective.name}: choose "
            f"--train.rounds 0, or --objective.name pcd."
        )
    if group.world_size > 1 and objective.sampler.anneals:
        raise UserError(
            "Annealed chains are resampled among all, which processes cannot share; choose another sampler."
        )
    return objective
