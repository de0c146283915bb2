"""Codes of data by the hidden units of a trained run, and its guesses of what gaps or noise hide."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from grbm.core.devices import require_memory
from grbm.core.errors import UserError
from grbm.core.files import replacing
from grbm.core.randomness import generator
from grbm.data.delimited import Reading
from grbm.data.kinds import SUFFIXES, table_kind
from grbm.data.loading import look_of, reading_of
from grbm.data.named import NamedTable, names_of, open_table, row_names, weights_in
from grbm.data.pictures import open_pictures
from grbm.data.tables import Table, spread
from grbm.runs.config import RunConfig
from grbm.runs.folder import Run
from grbm.runs.sampling import on_device
from grbm.samplers.conditional import Filling

CHUNK = 4096  # rows at a time: tables may be larger than memory


def rows_to_encode(
    run: Run, what: str, note: Callable[[str], None], key: str | None = None, *, may_lack: bool = False
) -> tuple[Table, torch.Tensor | None]:
    """The run's own "train" or "test" rows, or those of a file or folder, read as the run reads its data.

    With them come the numbers of the run's own rows in the file that was split; None where no file was. ``note`` is
    called with what the user should know. Raises UserError where there is no such thing, or its rows do not fit.
    """
    config: RunConfig = run.config
    if what in ("train", "test"):
        dataset = run.load_data()
        rows: Table = dataset.train if what == "train" else dataset.test
        if len(rows) == 0:
            raise UserError(f"{run.folder} kept no rows from training; encode train, or a file.")
        return rows, None if dataset.numbers is None else dataset.numbers[what == "test"]
    path, key = Path(what), key or config.dataset.key
    if (path.is_dir() or path.suffix.lower() in (".zip", *SUFFIXES)) and run.image_shape is not None:
        look, (channels, height, width) = look_of(config.dataset), run.image_shape  # made like those learned from
        size = look.size or (height if height == width else None)
        pictures = open_pictures(path, look._replace(size=size, grey=look.grey or channels == 1), key)
        pictures.describe(path, note)
        rows = pictures.rows
    elif path.suffix.lower() in SUFFIXES:
        raise UserError(f"{path} is a picture, but {run.folder} was not trained on images; encode an array.")
    else:
        rows = table_of(run, path, key, may_lack=may_lack).rows
    if rows.shape[1] != run.transform.n_columns:
        raise UserError(
            f"{path} has {rows.shape[1]} columns, but {run.folder} was trained on {run.transform.n_columns}."
        )
    return rows, None


def table_of(run: Run, path: Path, key: str | None = None, *, may_lack: bool = False) -> NamedTable:
    """A file as the run reads its tables: columns are found by their names, or are those of the right number.

    It ``may_lack`` some of the columns of the run, which are then NaN.
    """
    how = reading_of(run.config.dataset)._replace(key=key or run.config.dataset.key, may_be_empty=True)
    if run.columns and table_kind(path) is not None:
        there = run.columns
        if may_lack:
            found = open_table(path, how._replace(columns=(), drop=()))
            there = tuple(name for name in run.columns if name in (*found.columns, *dict(found.left_out)))
        how = how._replace(columns=there, drop=())
    elif (beside := _weights_beside(run, path, how)) is not None:
        how = how._replace(drop=(*how.drop, beside))
    elif table_kind(path) is None and open_table(path, Reading(how.key)).fits(run.columns, run.transform.n_columns):
        how = Reading(how.key)
    table = open_table(path, how).picked(run.columns, str(path), may_lack=may_lack)
    _refuse_other_limits(run, table, path)
    return table


def _weights_beside(run: Run, path: Path, how: Reading) -> str | None:
    """The run's column of weights, where a file has it beside as many others as the run learned from."""
    weights = run.config.dataset.weights
    if weights is None:
        return None
    names = names_of(path, how)
    return weights if weights in names and len(names) > run.transform.n_columns else None


def names_of_rows(run: Run, path: Path, asked: str | None, note: Callable[[str], None]) -> tuple[str, list[str]] | None:
    """The column of a file that names its rows, and the names; None without one.

    It is the one ``asked`` for, or that of the run. Raises UserError where the file lacks what is asked for; of the
    run's own, ``note`` is called.
    """
    name = asked or run.config.dataset.index
    if name is None:
        return None
    found = row_names(path, name, reading_of(run.config.dataset))
    if found is None and asked is not None:
        raise UserError(f"{path} has no column {name!r} that could name its rows.")
    if found is None:
        note(f"{path} has no column {name!r}, so its rows have numbers and no names.")
        return None
    return name, found


def weights_of(run: Run, path: Path, n_rows: int, note: Callable[[str], None]) -> torch.Tensor | None:
    """Weights (n_rows,) of the rows of a file, by the column that the run's weights were in; None without one."""
    name = run.config.dataset.weights
    if name is None:
        return None
    found = weights_in(path, reading_of(run.config.dataset), name)
    if found is None or len(found) != n_rows:
        note(f"{path} has no column {name!r} of weights: its rows count alike.")
        return None
    return found


def _refuse_other_limits(run: Run, table: NamedTable, path: Path) -> None:
    """Raise UserError for marks such as <0.5 where the run takes values below for measurements."""
    if table.rows.n_columns != run.transform.n_columns:
        return
    beyond = (table.limits.low > run.frame.censoring.low) | (table.limits.high < run.frame.censoring.high)
    for k in beyond.nonzero()[:1, 0].tolist():
        raise UserError(
            f"{path}, column {table.name(k)}, has values beyond a limit ({table.limits.low[k]:g}, "
            f"{table.limits.high[k]:g}) that {run.folder} takes for measurements; train with the data that have it."
        )


def strangeness(run: Run, rows: Table) -> float:
    """Root mean square of the standardised rows, some of them: 1 for the training data, far more in other units."""
    x = run.frame.known(rows[spread(len(rows), CHUNK)])
    complete = x[~x.isnan().any(1)]
    if not len(complete):  # of whose columns some are known
        return float(run.transform.scaled(x)[:, run.transform.kept].square().nanmean().sqrt())
    z = run.transform(complete)
    if run.frame.is_whitened:  # its unit is the width of a cluster
        z = (z - run.frame.base.mean) / run.frame.base.var.sqrt()
    return float(z.square().nanmean().sqrt())


def finite_parts(run: Run, rows: Table, where: str = "", *, gaps: bool = False) -> Iterator[torch.Tensor]:
    """The rows, some thousands at a time; raises UserError for what is not finite, also as the model sees it.

    NaN stands for ``gaps`` where these are allowed. Errors say ``where`` the rows are from.
    """
    for first in range(0, len(rows), CHUNK):
        x = rows[first : first + CHUNK]
        y = run.frame.known(x)
        stands_in = y.isnan() & ~x.isinf() & (~x.isnan() | gaps)
        z = run.transform(torch.where(stands_in, run.transform.mean, y.double()) if stands_in.any() else y)
        if not z.isfinite().all():
            row = int((~z.isfinite()).any(1).nonzero()[0])
            wrong, of = x[row].isinf() if gaps else ~x[row].isfinite(), f", of {where}" if where else ""
            if not wrong.any():
                raise UserError(f"The numbers in row {first + row}{of} are too large for the model; remove the row.")
            column = int(wrong.nonzero()[0])
            place = f"row {first + row}, column {repr(run.columns[column]) if run.columns else column}{of}"
            if x[row, column].isnan():
                raise UserError(f"The number in {place} is NaN; fill gaps with: grbm impute {run.folder} FILE")
            raise UserError(f"The number in {place} is infinite; remove the row.")
        yield x


def _parts_within(run: Run, rows: Table, where: str) -> Iterator[torch.Tensor]:
    """The same, NaN for gaps; raises UserError for numbers beyond bounds too."""
    first = 0
    for x in finite_parts(run, rows, where, gaps=True):
        require_within(run, x, where, first=first)
        first += len(x)
        yield x


def require_within(run: Run, x: torch.Tensor, where: str = "", *, first: int = 0) -> None:
    """Raise UserError for a number of rows x (n, N) at a bound or beyond: ``first`` is the number of the first row."""
    for row, column in run.frame.bounds.breaks(x).nonzero()[:1].tolist():
        name = f"column {run.columns[column]!r}" if run.columns else f"column {column}"
        place = f"row {first + row}, {name}" + (f", of {where}" if where else "")
        raise UserError(
            f"The number {float(x[row, column]):g} in {place} must be {run.frame.bounds.words(column)}; correct it, or "
            f"leave it out."
        )


@torch.no_grad()
def codes(run: Run, rows: Table, where: str = "", *, bits: bool = False, seed: int = 0) -> Iterator[np.ndarray]:
    """Hidden probabilities p(h = 1 | v) of ``rows``, float32 (k, M) at a time, or bits drawn from them, uint8.

    Of a row with gaps (NaN) they are means over the missing values. Raises UserError for infinite numbers, and beyond
    bounds.
    """
    here, rng = on_device(run), generator(seed, "codes")
    for x in _parts_within(run, rows, where):
        probabilities = here.encode(x)
        if bits:
            yield (torch.rand(probabilities.shape, generator=rng) < probabilities).to(torch.uint8).numpy()
        else:
            yield probabilities.numpy()


def write_codes(
    run: Run, rows: Table, path: Path, where: str = "", *, bits: bool = False, packed: bool = False, seed: int = 0
) -> None:
    """Write `codes` to a .npy file, whole or not at all; ``packed`` puts eight bits into a byte, as numpy.packbits."""
    width = -(-run.model.n_hidden // 8) if packed else run.model.n_hidden
    parts = codes(run, rows, where, bits=bits or packed, seed=seed)
    parts = (np.packbits(part, axis=1) for part in parts) if packed else parts
    _write(path, np.uint8 if bits or packed else np.float32, (len(rows), width), parts)


def n_gappy(rows: Table) -> int:
    """Number of rows with gaps (NaN)."""
    return sum(int(rows[first : first + CHUNK].isnan().any(1).sum()) for first in range(0, len(rows), CHUNK))


@torch.no_grad()
def write_contrasts(run: Run, rows: Table, path: Path, where: str = "") -> None:
    """Write p(k | v), which contrast each row has (n, K), to a .npy file; for a machine of several. NaN with gaps."""
    here = on_device(run)
    parts = (here.model.contrast(here.units(x)).cpu().numpy() for x in _parts_within(run, rows, where))
    _write(path, np.float32, (len(rows), here.model.contrasts.n), parts)


def _write(path: Path, dtype: type[np.generic], shape: tuple[int, int], parts: Iterator[np.ndarray]) -> None:
    """Parts of an array one after another to a .npy file, whole or not at all."""
    with replacing(path) as temporary:
        array = np.lib.format.open_memmap(temporary, "w+", dtype, shape)
        first = 0
        for part in parts:
            array[first : first + len(part)] = part
            first += len(part)
        array.flush()


def rows_with_gaps(
    run: Run, path: Path, key: str | None, note: Callable[[str], None], *, may_lack: bool = False
) -> np.ndarray:
    """The array of a file (n, N), float64, NaN where nothing is known; UserError where it does not fit the run."""
    rows, _ = rows_to_encode(run, str(path), note, key, may_lack=may_lack)
    array: np.ndarray = rows[slice(None)].double().numpy()
    require_finite(run, array, str(path))
    return array


def require_finite(run: Run, array: np.ndarray, where: str) -> None:
    """Raise UserError for a value of rows (n, N) that is infinite, or too large for the model; NaN is none."""
    x = torch.from_numpy(array)
    wrong = x.isinf() | run.transform.scaled(run.frame.known(x)).float().isinf()
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        place = f"Row {row} (from 0), column {column} of {where}"
        raise UserError(f"{place} is infinite, or too large; correct it, or write NaN for a gap.")


def impute_rows(
    run: Run, rows: np.ndarray, noise_std: float = 0.0, filling: Filling = Filling()
) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations of what ``rows`` (n, N) would be without gaps, and without noise of deviation ``noise_std``.

    Numbers that are known and free of noise are given back as they are, with deviation 0.
    """
    here = on_device(run)
    n = filling.n_chains * (filling.n_replicas or 1) * len(rows)
    what = f"Filling in {len(rows):,} rows with {filling.n_chains:,} chains each"
    require_memory(12.0 * n * (run.model.n_visible + run.model.n_hidden), what, "use fewer chains, or rows")
    try:
        found = here.impute(torch.from_numpy(rows), noise_std, filling)
    except UserError:
        raise
    except ValueError as error:
        is_noise = noise_std > 0 and (run.model.censoring.n or run.frame.is_scaled.any())
        option = f"--noise-std {noise_std:g}" if is_noise else f"--replicas {filling.n_replicas}"
        raise UserError(f"{option}: {error}") from error
    return found.mean.numpy(), found.std.numpy()
