"""Tables from files of any kind: arrays, delimited text such as CSV, Parquet, Feather, Hugging Face data sets.

A column of text is left out. A column is of numbers where all its values but the missing ones are numbers; where only
most of them are, the first that is none is an error, with its line.
"""

import csv
import gzip
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import torch

from grbm.core.errors import UserError, needed_by, unreadable
from grbm.core.files import replacing, write_array
from grbm.data.arrays import column_names, open_array
from grbm.data.kinds import TABLES, is_arrow, table_kind
from grbm.data.pictures import open_arrow
from grbm.data.tables import StoredTable, chunks
from grbm.model.censoring import UNCENSORED, Censoring

NO_VALUES = ",#N/A,#NA,-1.#IND,-1.#QNAN,-NaN,-nan,1.#IND,1.#QNAN,<NA>,N/A,NA,NULL,NaN,None,n/a,nan,null"
MISSING = frozenset(NO_VALUES.split(","))  # What means that a value is missing, as in pandas.
# What is no number and looks like one: thousands, a unit.
MARK = re.compile(r"([<>])=?\s*(.+)")  # of a value below or above a limit
LIKE_NUMBER = re.compile(r"[<>≤≥~]?=?\s*[-+]?\s*[$€£]?\s*\d[\d.,'’\s]*\s*[%$€£]?")
TRUTH = {"true": 1.0, "false": 0.0}
UNNAMED = "unnamed"  # The name of a column without one, before its number.
SAMPLE = 200  # Lines from which delimiter, names and the decimal mark are found.
CHUNK = 20_000  # Lines at a time.
LARGE = 1 << 20  # Bytes of a file that pandas reads first, many times as fast.
SHOWN = 12  # Names of columns in a sentence.


class Reading(NamedTuple):
    """How a file becomes a table, where that is not found in the file."""

    key: str | None = None  # of several arrays, the name of one
    columns: tuple[str, ...] = ()  # names, or numbers from 0, of the columns to take; empty: all that hold numbers
    drop: tuple[str, ...] = ()  # of those to leave out
    missing: tuple[str, ...] = ()  # other texts that mean missing


class NamedTable(NamedTuple):
    """A table, the names of its columns, and what was left out."""

    rows: StoredTable  # NaN where a value is missing
    columns: tuple[str, ...] = ()  # empty where the file has no names
    left_out: tuple[tuple[str, str], ...] = ()  # names of columns, and why
    gaps: bool = False  # whether values may be missing, and rows with gaps are left out of learning
    limits: Censoring = UNCENSORED  # of columns with marks such as <0.5; values beyond lie at them

    def complete(self) -> "NamedTable":
        """The same table without rows that have gaps. Raises UserError where fewer than half of the rows remain."""
        if not self.gaps:
            return self
        is_missing = np.concatenate([np.isnan(x) for _, x in chunks(self.rows)])
        keep = np.logical_not(is_missing.any(1, keepdims=False))
        if 2 * keep.sum() < len(keep):
            worst = np.argsort(-is_missing.sum(0), kind="stable")[:SHOWN]
            counts = ", ".join(f"{self.name(k)} {is_missing[:, k].sum():,}" for k in worst if is_missing[:, k].any())
            raise UserError(
                f"Only {keep.sum():,} of {len(keep):,} rows have no gaps. Values are missing in: {counts}. Leave out "
                f"columns with many gaps (grbm train --drop NAME), or fill gaps first."
            )
        return self._replace(rows=self.rows.take(torch.from_numpy(keep.nonzero()[0])))

    def describe(self, where: str) -> Iterator[str]:
        """Sentences on what is taken of the file ``where``: columns that were left out, and rows with gaps."""
        if self.left_out:
            named = [f"{name} ({why})" for name, why in self.left_out]
            taken = [self.name(k) for k in range(self.rows.n_columns)]
            yield f"{where}: {len(taken)} columns are learned, {shown(taken)}; left out: {shown(named)}."
        if self.gaps and not self.columns:
            yield f"{where} has no line of names, so its first line counts as numbers; columns are numbered from 0."
        for end, side, sign in zip(self.limits, ("below", "above"), (1, -1), strict=True):
            for k in end.isfinite().nonzero()[:, 0].tolist():
                n = int((sign * self.rows[:][:, k] <= sign * end[k]).sum())
                yield f"{where}, {self.name(k)}: {n:,} values lie {side} a limit, and all count as {side} {end[k]:g}."
        if n := len(self.rows) - (left := len(self.complete().rows)):
            yield f"{where}: {n:,} of {len(self.rows):,} rows have gaps and are left out of learning; {left:,} remain."

    def name(self, column: int) -> str:
        """The name of a column, or its number."""
        return self.columns[column] if self.columns else f"column {column}"

    def picked(self, names: Sequence[str], where: str) -> "NamedTable":
        """The columns of these ``names``, in this order. Raises UserError for a name that the table does not have."""
        if not names or self.columns in ((), tuple(names)):
            return self
        if absent := [name for name in names if name not in self.columns]:
            raise UserError(f"{where} has no column {absent[0]!r} of numbers; it has {shown(self.columns)}.")
        index, read = np.array([self.columns.index(name) for name in names]), self.rows.read
        rows = StoredTable(lambda numbers: read(numbers)[:, index], self.rows.index, len(index))
        limits = self.limits.mapped(lambda limit: limit[index])
        return self._replace(rows=rows, columns=tuple(names), limits=limits)


def shown(names: Sequence[str]) -> str:
    """Names in a sentence, the first of many."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


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
    table = NamedTable(rows, column_names(path, rows.n_columns))
    if not (how.columns or how.drop):
        return table
    names = table.columns or tuple(str(k) for k in range(rows.n_columns))
    table = table._replace(columns=names)
    return table.picked([names[k] for k in _wanted(names, how, path)], str(path))


def _wanted(names: Sequence[str], how: Reading, path: Path) -> list[int]:
    """Numbers of the columns that are taken. Raises UserError for one that is not there, and where none is left."""

    def number(asked: str) -> int:
        if asked in names:
            return names.index(asked)
        if asked.isdecimal() and int(asked) < len(names):
            return int(asked)
        raise UserError(f"{path} has no column {asked!r}; it has {shown(names)}.")

    chosen = [number(name) for name in how.columns] or list(range(len(names)))
    dropped = {number(name) for name in how.drop}
    if not (left := [k for k in dict.fromkeys(chosen) if k not in dropped]):
        raise UserError(f"No column of {path} is left; leave out fewer.")
    return left


class _Dialect(NamedTuple):
    """How a text file is written."""

    mark: str  # between values; a space stands for any white space
    has_names: bool
    decimal: str  # "." or ","
    encoding: str
    missing: frozenset[str]  # what means that a value is missing

    def number(self, cell: str) -> float:
        """The number in a cell, NaN where it is missing. Raises ValueError for text."""
        cell = cell.strip()
        if cell in self.missing:
            return math.nan
        if (mark := MARK.fullmatch(cell)) is not None:
            cell = mark[2]
        if cell.lower() in TRUTH:
            return TRUTH[cell.lower()]
        if "_" in cell:  # which Python reads as 1_000
            raise ValueError(cell)
        return float(cell.replace(",", ".") if self.decimal == "," and "." not in cell else cell)

    def numbers(self, cells: Sequence[str]) -> list[float]:
        """The numbers in cells, as `number`, in a fraction of the time where none is missing."""
        if self.decimal == "." and "_" not in "".join(cells):
            with suppress(ValueError):
                return list(map(float, cells))
        return [self.number(cell) for cell in cells]

    def is_number(self, cell: str) -> bool | None:
        """Whether a cell holds a number; None where it is missing."""
        with suppress(ValueError):
            return None if math.isnan(self.number(cell)) else True
        return False


def _text(path: Path, how: Reading) -> NamedTable:
    """A table in delimited text."""
    dialect, sample = _dialect(path, MISSING | set(how.missing))
    if not sample:
        raise UserError(f"{path} is empty; give a file with a table.")
    head, n = sample[0], len(sample[0])
    names = _distinct(head) if dialect.has_names else [str(k) for k in range(n)]
    wanted = _wanted(names, how, path)
    texts = {
        k: example for k in wanted if (example := _example(dialect, [row[k : k + 1] for row in sample])) is not None
    }
    numeric = [k for k in wanted if k not in texts]
    try:
        numbers = _by_pandas(path, dialect, n, numeric) if path.stat().st_size > LARGE else None
        low, high = np.full(len(numeric), -np.inf), np.full(len(numeric), np.inf)
        if numbers is None:
            numbers, low, high = _numbers(path, dialect, names, numeric)
    except OSError as error:
        raise unreadable(path, error) from error
    except (EOFError, zlib.error, csv.Error) as error:
        raise UserError(f"{path} is no whole table in text ({error}); give a CSV file.") from error
    if not len(numbers):
        raise UserError(f"{path} has a line of names and no rows; give a file with a table.")
    left_out = {names[k]: f"text such as {example[:40]!r}" for k, example in texts.items()}
    for k, x in zip(numeric, numbers.T, strict=True):
        if np.isnan(x).all():
            left_out[names[k]] = "empty"
        elif (
            not how.columns
            and names[k].startswith(UNNAMED)
            and any(np.array_equal(x, np.arange(first, first + len(x))) for first in (0, 1))
        ):
            left_out[names[k]] = "it numbers the rows"
    if asked := [name for name, _ in left_out.items() if how.columns]:
        raise UserError(f"Column {asked[0]!r} of {path} holds no numbers ({left_out[asked[0]]}); leave it out.")
    kept = [place for place, k in enumerate(numeric) if names[k] not in left_out]
    if not kept:
        raise UserError(f"{path} has no column of numbers: {shown([f'{n} ({w})' for n, w in left_out.items()])}.")
    columns = tuple(names[numeric[place]] for place in kept) if dialect.has_names else ()
    low, high = low[kept], high[kept]
    if not (low < high).all():
        name = names[numeric[kept[int(np.argmin(low < high))]]]
        raise UserError(f"Column {name!r} of {path} has values below and above limits that exclude each other.")
    table = _in_memory(numbers[:, kept].clip(low, high), columns, left_out)
    if np.isinf(low).all() and np.isinf(high).all():
        return table
    return table._replace(limits=Censoring(torch.from_numpy(low), torch.from_numpy(high)))


def _example(dialect: _Dialect, cells: list[list[str]]) -> str | None:
    """An example of a column of text, by its first cells; None for one of numbers, or of what looks like them."""
    cells = cells[1:] if dialect.has_names else cells
    found = [cell[0].strip() for cell in cells if cell and dialect.is_number(cell[0]) is False]
    n_numbers = sum(bool(cell and dialect.is_number(cell[0])) for cell in cells)
    text = [cell for cell in found if not LIKE_NUMBER.fullmatch(cell)]
    return text[0] if len(text) > n_numbers + len(found) - len(text) else None


def _numbers(
    path: Path, dialect: _Dialect, names: list[str], columns: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of some ``columns`` (n, k), and their limits by marks (k,): the highest lower, the lowest higher one.

    Raises UserError for a cell that holds no number, with its line.
    """
    records, parts = _records(path, dialect), [np.empty((0, len(columns)))]
    low, high = np.full(len(columns), -np.inf), np.full(len(columns), np.inf)
    if dialect.has_names:
        next(records)
    while block := list(islice(records, CHUNK)):
        part = np.empty((len(block), len(columns)))
        for place, k in enumerate(columns):
            cells = [record[k] for _, record in block]
            try:
                part[:, place] = dialect.numbers(cells)
            except ValueError:
                row = [dialect.is_number(cell) for cell in cells].index(False)
                raise _no_number(path, block[row][0], names[k], cells[row].strip(), dialect) from None
            for row in (row for row, cell in enumerate(cells) if MARK.fullmatch(cell.strip())):
                x, is_below = part[row, place], "<" in cells[row]
                if is_below:
                    low[place] = np.fmax(low[place], x)
                else:
                    high[place] = np.fmin(high[place], x)
        parts.append(part)
    return np.concatenate(parts), low, high


def _by_pandas(path: Path, dialect: _Dialect, width: int, columns: list[int]) -> np.ndarray | None:
    """Read what `_numbers` reads, by pandas; None where it would fill up or cut lines of other lengths."""
    import pandas

    separator = r"\s+" if dialect.mark == " " else dialect.mark
    exactly = {} if int(pandas.__version__.split(".")[0]) > 2 else {"float_precision": "round_trip"}
    with _bytes(path) as file:
        try:
            frame = pandas.read_csv(
                file,
                sep=separator,
                header=0 if dialect.has_names else None,
                names=list(range(width)),
                decimal=dialect.decimal,
                na_values=sorted(dialect.missing),
                keep_default_na=False,
                skipinitialspace=True,
                encoding=dialect.encoding,
                encoding_errors="replace",
                **exactly,
            )
        except (ValueError, pandas.errors.ParserError, pandas.errors.EmptyDataError):
            return None
    kinds = {dtype.kind for dtype in frame[columns].dtypes}
    if not isinstance(frame.index, pandas.RangeIndex) or frame[width - 1].isna().any() or not kinds <= set("iufb"):
        return None
    return frame[columns].to_numpy(np.float64)


def _in_memory(numbers: np.ndarray, columns: tuple[str, ...], left_out: dict[str, str]) -> NamedTable:
    rows = StoredTable(lambda index: numbers[index], torch.arange(len(numbers)), numbers.shape[1])
    return NamedTable(rows, columns, tuple(left_out.items()), gaps=True)


def _no_number(path: Path, line: int, name: str, cell: str, dialect: _Dialect) -> UserError:
    """Error for a value that is no number in a column of numbers."""
    where = f"{path}, line {line}, column {name!r}: {cell[:60]!r} is not a number"
    if "," in cell and dialect.decimal == ".":
        where += ": a comma may stand for thousands or for the decimal point"
    missing, leave = f"grbm train --na {cell[:60]!r} reads it as missing", f"--drop {name!r} leaves the column out"
    return UserError(f"{where}. Correct it; or {missing}, and {leave}.")


def _distinct(cells: Iterable[str]) -> list[str]:
    """Names from the first line, each different: the second "a" is "a.1", as in pandas."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for k, cell in enumerate(cells):
        name = cell.strip() or f"{UNNAMED} {k}"
        names.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def _dialect(path: Path, missing: frozenset[str]) -> tuple[_Dialect, list[list[str]]]:
    """Find how a text file is written, from its first lines, and return their cells too."""
    with _bytes(path) as file:
        begin = file.read(4)
        encoding = "utf-16" if begin[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        content = begin + file.read(1 << 20)
    if encoding == "utf-8-sig":
        try:
            content[: content.rfind(b"\n") + 1 or None].decode("utf-8")
        except UnicodeDecodeError:
            encoding = "cp1252"
    if b"\0" in content and encoding != "utf-16":
        raise UserError(f"{path} is no text; give a CSV file, or an array (.npy).")
    lines = content.decode(encoding, "replace").splitlines(keepends=True)
    lines = lines[: SAMPLE + 1][: -1 if len(lines) > SAMPLE or (len(lines) > 1 and len(content) > 1 << 20) else None]
    mark = _mark(lines)
    point = _Dialect(mark, False, ".", encoding, missing)
    comma = point._replace(decimal=",")
    records = list(islice(_split(lines, mark), SAMPLE))
    cells = [cell.strip() for record in records for cell in record]
    with_comma = [cell for cell in cells if "," in cell and comma.is_number(cell)]
    has_point = any("." in cell and point.is_number(cell) for cell in cells)
    # Three digits after each comma may as well be thousands, which no number says.
    is_comma = mark != "," and not has_point and any(len(x.partition(",")[2]) != 3 for x in with_comma)
    found = comma if is_comma else point
    has_names = _has_names([[found.is_number(cell) for cell in record] for record in records])
    return found._replace(has_names=has_names), records


def _has_names(kinds: list[list[bool | None]]) -> bool:
    """Whether the first record names the columns: it has no number, or text above numbers."""
    if not kinds:
        return False
    first, rest = kinds[0], kinds[1:]
    above = (kind is False and any(len(each) > k and each[k] for each in rest) for k, kind in enumerate(first))
    return any(above) or not any(first)


def _mark(lines: list[str]) -> str:
    """The delimiter that splits all lines into as many values, more than one; a space for white space, or none."""
    counted = {}
    for mark in "\t;|,":
        lengths = Counter(len(record) for record in _split(lines, mark))
        length, n = max(lengths.items(), key=lambda item: (item[1], item[0]), default=(1, 0))
        counted[mark] = (n / max(1, lengths.total())) if length > 1 else 0.0
    best = max(counted, key=lambda mark: counted[mark])  # the first of those that are as good
    spaces = Counter(len(line.split()) for line in _lines(lines, " ") if line.strip())
    if counted[best] == 0 and len(spaces) == 1 and max(spaces) > 1:
        return " "
    return best if counted[best] else ","


def _split(lines: Iterable[str], mark: str) -> Iterator[list[str]]:
    """Records of lines, but for empty ones."""
    return (
        record for record in csv.reader(_lines(lines, mark), delimiter=mark) if any(cell.strip() for cell in record)
    )


def _lines(lines: Iterable[str], mark: str) -> Iterator[str]:
    """Lines without the # that some programs write before the names, and with single spaces where these delimit."""
    for k, line in enumerate(lines):
        line = line.removeprefix("#") if k == 0 else line
        yield line if mark != " " else " ".join(line.split()) + "\n"


def _records(path: Path, dialect: _Dialect) -> Iterator[tuple[int, list[str]]]:
    """Records with the numbers of their last lines. Raises UserError for one of another length than the first."""
    with _bytes(path) as file, io.TextIOWrapper(file, dialect.encoding, "replace", newline="") as text:
        reader, width = csv.reader(_lines(text, dialect.mark), delimiter=dialect.mark), None
        for record in reader:
            if not any(cell.strip() for cell in record):
                continue
            width = width or len(record)
            if len(record) > width and not any(cell.strip() for cell in record[width:]):
                record = record[:width]  # a delimiter at the end of each line
            if len(record) != width:
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(record)} values, where the first line has {width}; correct "
                    f"the line, or remove it."
                )
            yield reader.line_num, record


def _bytes(path: Path) -> IO[bytes]:
    """The content of a file, unpacked where it is packed by gzip."""
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    opened: IO[bytes] = cast(IO[bytes], gzip.open(path, "rb")) if is_packed else path.open("rb")  # noqa: SIM115
    return opened


def _frame(path: Path, how: Reading, kind: str) -> NamedTable:
    """A table in a Parquet or Feather file, by pandas."""
    with needed_by(f"Reading {TABLES[kind]}", "parquet", "pandas pyarrow"):
        import pandas
        import pyarrow  # noqa: F401
    try:
        frame = getattr(pandas, f"read_{kind}")(path)
    except Exception as error:  # whatever the libraries raise, it is about this file
        raise UserError(f"{path} could not be read as {TABLES[kind]} ({str(error).splitlines()[0]}).") from error
    names = _distinct(str(name) for name in frame.columns)
    left_out: dict[str, str] = {}
    numbers = []
    for k in _wanted(names, how, path):
        column = frame.iloc[:, k]
        if pandas.api.types.is_numeric_dtype(column.dtype) and not pandas.api.types.is_complex_dtype(column.dtype):
            numbers.append((names[k], column.to_numpy("float64", na_value=np.nan)))
        elif how.columns:
            raise UserError(f"Column {names[k]!r} of {path} holds no numbers ({column.dtype}); leave it out.")
        else:
            left_out[names[k]] = str(column.dtype)
    if not numbers or not len(frame):
        raise UserError(f"{path} has no numbers; its columns are {shown(names)}.")
    return _in_memory(np.stack([x for _, x in numbers], 1), tuple(name for name, _ in numbers), left_out)


WRITTEN = (".csv", ".tsv", ".parquet", ".npz", ".npy")  # Suffixes of tables that are written.


def write_table(path: Path, numbers: np.ndarray, names: Sequence[str]) -> None:
    """Write numbers (n, N) with names of their columns, as the suffix of the file says."""
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
                writer.writerow(names)
                writer.writerows([format(x, ".9g") for x in row] for row in numbers.tolist())
        case ".parquet":
            with needed_by("Writing a Parquet file", "parquet", "pandas pyarrow"):
                import pandas
                import pyarrow  # noqa: F401
            with replacing(path) as temporary:
                pandas.DataFrame(numbers, columns=names).to_parquet(temporary)


def fill_text(path: Path, target: Path, filled: np.ndarray, columns: Sequence[str], how: Reading = Reading()) -> None:
    """Write the text table ``path`` again to ``target``, with missing values of some columns filled in.

    Parameters
    ----------
    filled : ndarray
        (n, N), of ``columns`` by name, or of all that hold numbers where the file has no names.
    """
    dialect, _ = _dialect(path, MISSING | set(how.missing))
    records = _records(path, dialect)
    with replacing(target) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=dialect.mark, lineterminator="\n")
        places = list(range(filled.shape[1]))
        if dialect.has_names:
            _, head = next(records)
            names = _distinct(head)
            places = [names.index(name) for name in columns]
            writer.writerow(head)
        for row, (_, record) in zip(filled, records, strict=True):
            for k, x in zip(places, row.tolist(), strict=True):
                if record[k].strip() in dialect.missing:
                    record[k] = format(x, ".9g").replace(".", dialect.decimal)
            writer.writerow(record)
