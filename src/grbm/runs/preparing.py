"""Before the first update: data, standardisation, model and objective, from a configuration."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.contrasts import UNIT, Contrasts, scaled_gaussians
from grbm.coordinates import FEWEST_ROWS, Array
from grbm.data.loading import Dataset, Measured, standardizer, statistics
from grbm.data.splitting import first_of_each
from grbm.data.standardise import Standardised, Standardizer
from grbm.data.tables import StoredTable, Table, chunks, nothing_varies, spread
from grbm.data.whitening import WIDEST_TABLE, independent, suits_whitening, whiten
from grbm.devices import pick_device, require_memory
from grbm.distributed import ProcessGroup
from grbm.errors import UserError
from grbm.initialise import anchored_, matched_, sparse_
from grbm.model import GRBM, Base
from grbm.objectives import Objective
from grbm.options import has_rounds, recipe_for, sees_clusters
from grbm.quasi_newton import REMEMBERED
from grbm.randomness import generator
from grbm.recipe import held_out
from grbm.reference import Reference
from grbm.runs import checkpoint
from grbm.runs.config import RunConfig
from grbm.runs.folder import CHECKPOINTS, DATA, read_data
from grbm.runs.paper import with_rows
from grbm.runs.presets import for_wide, without_rounds
from grbm.runs.sampling import work
from grbm.training import TrainState

WHITENED_ROWS = 20_000  # that coordinates are found from


class Prepared(NamedTuple):
    """All that a run needs before its first update; nothing is written yet."""

    config: RunConfig
    dataset: Dataset
    scale: Standardizer
    base: Base
    reference: Reference | None  # of whitened data
    contrasts: Contrasts  # that the machine begins with
    validation: Tensor  # rows of the training data that are not learned from, as the model sees them; may be empty
    data: Tensor | Standardised  # the training rows as the model sees them
    state: TrainState
    objective: Objective
    fingerprint: str  # of the data


def prepare(config: RunConfig, folder: Path, group: ProcessGroup, device: str | None, *, resume: bool) -> Prepared:
    """Data, model and objective of a run; raises UserError for what cannot be read, built or shared."""
    dataset = group.on_leader(config.load_data) or config.load_data()  # the leader first: a download happens once
    config = with_rows(config, len(dataset.train))
    if dataset.pictures is not None:  # other pictures of this run will be scaled as these are
        white = config.dataset.white or dataset.pictures.white
        config = replace(config, dataset=replace(config.dataset, white=white))
    if config.preset == "array" and not resume:
        config = _for_table(config, dataset)
    _check_contrasts(config)
    where = str(config.data or config.dataset.name)
    measured = group.on_leader(lambda: statistics(dataset, where)) or statistics(dataset, where)
    known = group.broadcast(group.on_leader(lambda: _scale(config, dataset, measured, folder, resume)))
    scale, base, reference, contrasts = known
    torch_device = pick_device(device or config.device, work(config, dataset.train.shape[1]))
    learned_from, held = held_out(len(dataset.train), config.train.validation, config.seed, dataset.same)
    validation = scale(dataset.train[held[:10_000]]).to(torch_device)
    data = _standardised(dataset, scale, torch_device, learned_from if len(held) else None)
    objective = group.on_leader(lambda: _objective(config, len(data), base, reference, group))
    objective = objective or _objective(config, len(data), base, reference, group)
    group.on_leader(lambda: _require_memory(config, data.shape[1], objective, torch_device))
    model = _start(config, data, base, contrasts).to(torch_device)
    if group.broadcast(measured.fingerprint) != measured.fingerprint:
        raise UserError("The processes have different data; give all of them the same --data or --data-dir.")
    state = TrainState(model, config.train.build(model), seed=config.seed)
    fingerprint = measured.fingerprint
    found = (scale, base, reference, contrasts, validation, data, state, objective, fingerprint)
    return Prepared(config, dataset, *found)


def _check_contrasts(config: RunConfig) -> None:
    """Raise UserError where something is asked of contrasts that the machine will not have."""
    n_contrasts = config.model.contrasts
    if config.train.contrast_scales and n_contrasts == 1:
        raise UserError("--train.contrast-scales goes with several contrasts: --model.contrasts 8.")
    if config.model.contrast_units is None:
        return
    if n_contrasts in (None, 1):
        raise UserError("--model.contrast-units goes with several contrasts: --model.contrasts 8.")
    if config.dataset.standardise == "whiten":
        raise UserError("--model.contrast-units is for columns: --dataset.standardise pixel, or scalar.")


def _for_table(config: RunConfig, dataset: Dataset) -> RunConfig:
    """The preset array as it suits these rows and columns."""
    if config.dataset.standardise != "whiten" or not ("dataset.standardise" in config.given or _suits(dataset)):
        return for_wide(config)
    n_units = int(independent(_some(dataset)).sum())
    n_rows = len(dataset.train) if dataset.same is None else len(first_of_each(dataset.same))
    return config if has_rounds(n_rows, n_units) else without_rounds(config)


def _suits(dataset: Dataset) -> bool:
    """Whether the preset array whitens these data where nothing is said of it."""
    n, n_columns = dataset.train.shape
    return n >= FEWEST_ROWS and n_columns <= WIDEST_TABLE and suits_whitening(_some(dataset))


def _some(dataset: Dataset) -> Array:
    """Training rows that say how columns hang together, float64."""
    return dataset.train[spread(len(dataset.train), WHITENED_ROWS)].double().numpy()


def _scale(
    config: RunConfig, dataset: Dataset, measured: Measured, folder: Path, resume: bool
) -> tuple[Standardizer, Base, Reference | None, Contrasts]:
    """The standardisation, base, reference and contrasts: of the run where it has them, else of the data."""
    n_contrasts, where = config.model.contrasts, str(config.data or config.dataset.name)
    if resume and (folder / DATA).is_file() and checkpoint.updates(folder / CHECKPOINTS):
        return read_data(folder)[:4]  # what the checkpoints were learned with; their fingerprint guards the data
    if config.dataset.standardise == "whiten":
        learned_from = held_out(len(dataset.train), config.train.validation, config.seed, dataset.same)[0]
        rows = dataset.train[learned_from[spread(len(learned_from), WHITENED_ROWS)]]
        fine = sees_clusters(config.model.n_hidden)
        whitened = whiten(rows.double().numpy(), fine=fine, n_contrasts=n_contrasts, seed=config.seed)
        if len(rows) < len(learned_from) and not whitened.scale.kept.all():
            _refuse_exceptions(whitened.scale, dataset.train, learned_from, len(rows), where)
        return whitened.scale, whitened.base, whitened.reference, whitened.contrasts
    scale = standardizer(config.dataset, dataset, measured.train)
    if not scale.n_units:
        raise nothing_varies(len(dataset.train))
    measured.refuse_extreme(scale, where)
    base = scale.base(measured.train)
    if n_contrasts is None or n_contrasts == 1:
        return scale, base, None, UNIT
    rows = scale(dataset.train[spread(len(dataset.train), WHITENED_ROWS)])
    units = _with_contrast(config.model.contrast_units, scale.kept)
    squares = (rows - base.mean).square() / base.var
    squares = squares.sum(1) if units is None else squares @ units
    contrasts = scaled_gaussians(squares, base.mean.clone(), n_contrasts, units)
    return scale, base, None, contrasts.to(base.mean)


def _refuse_exceptions(scale: Standardizer, table: Table, learned_from: Tensor, n_seen: int, where: str) -> None:
    """Raise UserError for rows that break a relation, such as a constant, of the rows used for whitening."""
    counts, counted = torch.zeros(scale.n_columns, dtype=torch.int64), torch.zeros(len(table), dtype=torch.bool)
    counted[learned_from] = True
    for first, rows in chunks(table):
        counts += scale.breaks(torch.from_numpy(rows))[counted[first : first + len(rows)]].sum(0)
    if counts.any():
        column = int(counts.argmax())
        raise UserError(
            f"{where}, column {column}: {int(counts[column]):,} of {len(learned_from):,} rows break a linear relation, "
            f"or a constant value, that holds in the {n_seen:,} rows used for whitening. Remove the column, or those "
            f"rows."
        )


def _with_contrast(chosen: str | None, kept: Tensor) -> Tensor | None:
    """1 for each unit that has contrast, 0 for others, of the columns ``kept`` (N,) bool; None where all have."""
    if chosen is None:
        return None
    units = torch.zeros(len(kept))
    try:
        first, last = (int(end) if end.strip() else None for end in chosen.split(":"))
    except ValueError as error:
        raise UserError(
            f"--model.contrast-units must be FIRST:LAST, such as 1: for all but the first, got {chosen!r}."
        ) from error
    units[first:last] = 1
    units = units[kept]
    if not units.any():
        raise UserError(f"--model.contrast-units {chosen} is none of the {len(units)} visible units.")
    return units


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


def _standardised(
    dataset: Dataset, scale: Standardizer, device: torch.device, which: Tensor | None
) -> Tensor | Standardised:
    """The training rows, or some, as the model sees them: on its device where in memory, else read when needed."""
    if isinstance(dataset.train, StoredTable):
        return Standardised(dataset.train if which is None else dataset.train.take(which), scale, device)
    return scale(dataset.train if which is None else dataset.train[which]).to(device)


def _objective(
    config: RunConfig, n_rows: int, base: Base, reference: Reference | None, group: ProcessGroup
) -> Objective:
    """The objective; raises UserError for what cannot be built, or shared by the processes."""
    batch_size = min(config.train.batch_size, n_rows)
    objective = config.objective.build(config.sampler.build(base, reference), batch_size)
    config.sampling.sampler.build(base, reference)  # so that a wrong option is refused now and not after training
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


def _start(config: RunConfig, data: Tensor | Standardised, base: Base, contrasts: Contrasts) -> GRBM:
    """The machine with the parameters that learning starts from."""
    model, start = GRBM(data.shape[1], config.model.n_hidden, seed=config.seed), config.model
    if start.start != "paper":
        some = data[spread(len(data), 10_000)].cpu()
        some = contrasts.removed(some, base.energy, generator(config.seed, "contrasts"))
        match start.start:
            case "matched":
                n_at_work = recipe_for(len(data), model.n_hidden, model.n_visible).n_at_work
                matched_(model, some, n_at_work=n_at_work, seed=config.seed)
            case "sparse":
                sparse_(model, some, seed=config.seed)
            case "anchored":
                anchored_(model, some, var=start.anchor_var, length=start.anchor_length, seed=config.seed)
    model.contrasts = contrasts
    return model
