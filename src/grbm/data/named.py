"""Tables from files of any kind: arrays, delimited text, Parquet, Feather, Hugging Face data sets."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from grbm.core.errors import UserError, needed_by
from grbm.core.files import replacing, write_array
from grbm.data.arrays import column_names, open_array
from grbm.data.delimited import Reading, dialect_of, distinct, read_text, shown, texts
from grbm.data.kinds import TABLES, is_arrow, table_kind
from grbm.data.pictures import open_arrow
from grbm.data.tables import StoredTable, chunks
from grbm.data.weighting import checked
from grbm.model.censoring import UNCENSORED, Censoring

SHOWN = 12  # Columns in a sentence on gaps.
WRITTEN = (".csv", ".tsv", ".parquet", ".npz", ".npy")  # Suffixes of tables that are written.


class NamedTable(NamedTuple):
    """A table, the names of its columns, and what was left out."""

    rows: StoredTable  # NaN where a value is missing
    columns: tuple[str, ...] = ()  # empty where the file has no names
    left_out: tuple[tuple[str, str], ...] = ()  # names of columns, and why
    gaps: bool = False  # whether values may be missing
    limits: Censoring = UNCENSORED  # of columns with marks such as <0.5; values beyond lie at them
    places: tuple[int, ...] = ()  # numbers of the columns in a text file
    remarks: tuple[str, ...] = ()  # what a person should know of how the file was read

    def parted(self) -> tuple[StoredTable, StoredTable]:
        """Rows without gaps, and rows of which some values are missing; rows without any are in neither."""
        if not self.gaps:
            return self.rows, self.rows.take(torch.empty(0, dtype=torch.int64))
        found = [(np.isnan(x).any(1), np.isnan(x).all(1)) for _, x in chunks(self.rows)]
        some, every = (torch.from_numpy(np.concatenate(part)) for part in zip(*found, strict=True))
        return self.rows.take((~some).nonzero()[:, 0]), self.rows.take((some & ~every).nonzero()[:, 0])

    def refuse_few(self, n_complete: int, fewest: int) -> None:
        """Raise UserError, which counts the gaps, where so few rows have none, and at least ``fewest`` must."""
        is_missing = np.concatenate([np.isnan(x) for _, x in chunks(self.rows)])
        worst = np.argsort(-is_missing.sum(0), kind="stable")[:SHOWN]
        counts = ", ".join(f"{self.name(k)} {is_missing[:, k].sum():,}" for k in worst if is_missing[:, k].any())
        raise UserError(
            f"Only {n_complete:,} of {len(self.rows):,} rows have no gaps, and training needs {fewest}; or half of all "
            f"rows, if it leaves out those with gaps. Values are missing in: {counts}. Leave out columns with many "
            f"gaps (grbm train --drop NAME), or fill gaps first."
        )

    def describe(self, where: str, *, fills: bool = True) -> Iterator[str]:
        """Sentences on what is taken of the file ``where``: columns that were left out, and rows with gaps.

        These are learned from where training ``fills`` gaps, else left out.
        """
        if self.left_out:
            named = [f"{name} ({why})" for name, why in self.left_out]
            taken = [self.name(k) for k in range(self.rows.n_columns)]
            yield f"{where}: {len(taken)} columns are learned, {shown(taken)}; left out: {shown(named)}."
        for text in self.remarks:
            yield f"{where}: {text}."
        for end, side, sign in zip(self.limits, ("below", "above"), (1, -1), strict=True):
            for k in end.isfinite().nonzero()[:, 0].tolist():
                n = int((sign * self.rows[:][:, k] <= sign * end[k]).sum())
                yield f"{where}, {self.name(k)}: {n:,} values lie {side} a limit, and all count as {side} {end[k]:g}."
        n, complete, gappy = len(self.rows), *(len(part) for part in self.parted())
        if gappy and fills:
            yield f"{where}: {gappy:,} of {n:,} rows have gaps. Training fills gaps by draws from the model."
        elif gappy:
            yield f"{where}: {gappy:,} of {n:,} rows have gaps and are left out of learning; {complete:,} remain."
        if empty := n - complete - gappy:
            yield f"{where}: {empty:,} of {n:,} rows have no values and are left out."

    def name(self, column: int) -> str:
        """The name of a column, or its number."""
        return self.columns[column] if self.columns else f"column {column}"

    def fits(self, names: Sequence[str], n_columns: int) -> bool:
        """Whether all ``names`` are among its columns, or it has none and so many columns."""
        return set(names) <= set(self.columns) if self.columns and names else self.rows.n_columns == n_columns

    def picked(self, names: Sequence[str], where: str, *, may_lack: bool = False) -> "NamedTable":
        """The columns of these ``names``, in this order; NaN in those that the table lacks, where it ``may_lack`` some.

        Raises UserError for a name that the table does not have, or, where it may lack some, if it has none.
        """
        if not names or self.columns in ((), tuple(names)):
            return self
        absent = [name for name in names if name not in self.columns]
        if absent and not (may_lack and len(absent) < len(names)):
            raise UserError(f"{where} has no column {absent[0]!r} of numbers; it has {shown(self.columns)}.")
        index = np.array([self.columns.index(name) if name in self.columns else -1 for name in names])
        lacks, read = index < 0, self.rows.read
        rows = StoredTable(
            lambda numbers: np.where(lacks, np.nan, read(numbers)[:, index]), self.rows.index, len(index)
        )
        low, high = self.limits.mapped(lambda limit: limit[index] if len(limit) > 1 else limit.expand(len(index)))
        missing = torch.from_numpy(lacks)
        limits = Censoring(low.masked_fill(missing, -torch.inf), high.masked_fill(missing, torch.inf))
        limits = UNCENSORED if self.limits is UNCENSORED else limits
        places = tuple(self.places[k] for k in index) if self.places and not absent else ()
        return self._replace(rows=rows, columns=tuple(names), limits=limits, places=places, gaps=self.gaps or may_lack)


def open_table(path: Path, how: Reading = Reading()) -> NamedTable:
    """The table of numbers in a file.

    Raises
    ------
    UserError
        For a file that is none of those that can be read, or damaged; for a value that is no number, with its line; and
        for a column that is not there.
    """
    if is_arrow(path):
        return NamedTable(open_arrow(path, how.key))
    match table_kind(path):
        case "text":
            return _text(path, how)
        case "parquet" | "feather" as kind:
            return _frame(path, how, kind)
    rows = open_array(path, how.key)
    names = column_names(path, rows.n_columns)
    if len(set(names)) < len(names):
        raise UserError(f"{path} gives two columns the same name; give each a name of its own.")
    table = NamedTable(rows, names)
    if not (how.columns or how.drop):
        return table
    table = table._replace(columns=names or tuple(str(k) for k in range(rows.n_columns)))
    return table.picked([table.columns[k] for k in how.chosen(table.columns, path)], str(path))


def names_of(path: Path, how: Reading) -> list[str]:
    """Names of all columns of a file; their numbers from 0 where it has no names."""
    match table_kind(path):
        case "text":
            dialect, sample = dialect_of(path, how)
            n, names = len(sample[0]) if sample else 0, distinct(sample[0]) if sample and dialect.has_names else []
        case "parquet" | "feather" as kind:
            names = distinct(str(name) for name in _read_frame(path, kind).columns)
            n = len(names)
        case _:
            n = open_array(path, how.key).n_columns
            names = list(column_names(path, n))
    return names or [str(k) for k in range(n)]


def weights_in(path: Path, how: Reading, name: str) -> torch.Tensor | None:
    """Weights (n,) of the rows of a file by the column ``name``, float64; None where it has no such column."""
    if name not in names_of(path, how):
        return None
    column = open_table(path, how._replace(columns=(name,), drop=(), needed=(name,))).rows[:][:, 0].numpy()
    return checked(column, len(column), f"Weights (column {name!r} of {path})")


def open_weighted(path: Path, how: Reading, weights: str | None) -> tuple[NamedTable, torch.Tensor | None]:
    """The table of numbers in a file, less its column of ``weights``, and these (n,), float64; rows of weight 0 go.

    The weights are of all rows in the file. Raises UserError as `open_table`, and for weights that are none.
    """
    if weights is None:
        return open_table(path, how), None
    if weights in how.drop:
        raise UserError(f"Column {weights!r} of {path} cannot be left out and hold the weights.")
    columns = (*how.columns, weights) if how.columns and weights not in how.columns else how.columns
    table = open_table(path, how._replace(columns=columns, needed=(weights,)))
    names = table.columns or tuple(str(k) for k in range(table.rows.n_columns))
    if weights not in names:
        why = dict(table.left_out).get(weights)
        raise UserError(
            f"{path} has no column {weights!r} of numbers{f' ({why})' if why else ''} for weights; it has "
            f"{shown(names)}."
        )
    table = table._replace(columns=names)
    of_rows = table.picked((weights,), str(path)).rows[:][:, 0]
    found = checked(of_rows.numpy(), len(of_rows), f"Weights (column {weights!r} of {path})")
    if not (rest := [name for name in names if name != weights]):
        raise UserError(f"{path} has no column but that of weights, {weights!r}.")
    if int((found > 0).sum()) < 2:
        raise UserError(f"Column {weights!r} of {path} gives one row alone a weight; training needs 2 rows or more.")
    table = table.picked(rest, str(path))
    return table._replace(rows=table.rows.take((found > 0).nonzero()[:, 0])), found


def _text(path: Path, how: Reading) -> NamedTable:
    """A table in delimited text."""
    found = read_text(path, how)
    has_names = found.dialect.has_names or len(found.places) < len(found.names)  # else numbers of all are names enough
    columns = tuple(found.names[k] for k in found.places) if has_names else ()
    left_out, places = tuple(found.left_out.items()), tuple(found.places)
    table = NamedTable(found.rows, columns, left_out, gaps=True, places=places, remarks=tuple(found.remarks))
    if np.isinf(found.low).all() and np.isinf(found.high).all():
        return table
    return table._replace(limits=Censoring(torch.from_numpy(found.low), torch.from_numpy(found.high)))


def _in_memory(numbers: np.ndarray, columns: tuple[str, ...], left_out: dict[str, str]) -> NamedTable:
    rows = StoredTable(lambda index: numbers[index], torch.arange(len(numbers)), numbers.shape[1])
    return NamedTable(rows, columns, tuple(left_out.items()), gaps=True)


def _frame(path: Path, how: Reading, kind: str) -> NamedTable:
    """A table in a Parquet or Feather file, by pandas."""
    import pandas

    frame = _read_frame(path, kind)
    names = distinct(str(name) for name in frame.columns)
    left_out: dict[str, str] = {}
    numbers = []
    for k in how.chosen(names, path):
        column = frame.iloc[:, k]
        if pandas.api.types.is_numeric_dtype(column.dtype) and not pandas.api.types.is_complex_dtype(column.dtype):
            numbers.append((names[k], column.to_numpy("float64", na_value=np.nan)))
            if np.isnan(numbers[-1][1]).all() and not how.may_be_empty:
                left_out[numbers.pop()[0]] = "empty"
        elif how.columns:
            raise UserError(f"Column {names[k]!r} of {path} holds no numbers ({column.dtype}); leave it out.")
        else:
            left_out[names[k]] = str(column.dtype)
    if not numbers or not len(frame):
        raise UserError(f"{path} has no numbers; its columns are {shown(names)}.")
    return _in_memory(np.stack([x for _, x in numbers], 1), tuple(name for name, _ in numbers), left_out)


def _read_frame(path: Path, kind: str) -> Any:
    """A Parquet or Feather file as a pandas.DataFrame, a named index among its columns."""
    with needed_by(f"Reading {TABLES[kind]}", "parquet", "pandas pyarrow"):
        import pandas
        import pyarrow  # noqa: F401
    try:
        frame = getattr(pandas, f"read_{kind}")(path)
        return frame.reset_index(drop=all(name is None for name in frame.index.names))
    except Exception as error:  # whatever the libraries raise, it is about this file
        raise UserError(f"{path} could not be read as {TABLES[kind]} ({str(error).splitlines()[0]}).") from error


def row_names(path: Path, name: str, how: Reading) -> list[str] | None:
    """The column of a table in text, Parquet or Feather that names its rows; None where it has no such column."""
    kind = table_kind(path)
    if kind is None or name not in (names := names_of(path, how)):
        return None
    if kind == "text":
        return texts(path, names.index(name), how)
    column = _read_frame(path, kind).iloc[:, names.index(name)]
    return ["" if is_missing else str(x) for x, is_missing in zip(column, column.isna(), strict=True)]


def write_table(
    path: Path, numbers: np.ndarray, names: Sequence[str], index: tuple[str, Sequence[str]] | None = None
) -> None:
    """Write numbers (n, N) with names of their columns, as the suffix of the file says.

    ``index`` is the name of a first column and its texts, which arrays do not hold.
    """
    names = list(names) or [f"column {k}" for k in range(numbers.shape[1])]
    match path.suffix.lower():
        case ".npy":
            write_array(path, numbers)
        case ".npz":
            with replacing(path) as temporary:
                np.savez(temporary, x=numbers, columns=np.array(names))
        case ".csv" | ".tsv" as suffix:
            with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t", lineterminator="\n")
                writer.writerow(names if index is None else [index[0], *names])
                rows = numbers.tolist()
                writer.writerows(
                    rows if index is None else ([text, *row] for text, row in zip(index[1], rows, strict=True))
                )
        case ".parquet":
            with needed_by("Writing a Parquet file", "parquet", "pandas pyarrow"):
                import pandas
                import pyarrow  # noqa: F401
            with replacing(path) as temporary:
                frame = pandas.DataFrame(numbers, columns=names)
                if index is not None:
                    frame.insert(0, index[0], list(index[1]), allow_duplicates=True)
                frame.to_parquet(temporary)
