"""Tables in delimited text, such as CSV: how a file is written, and the numbers in it.

A column of text is left out. A column is of numbers where all its values but the missing ones are numbers; where only
most of them are, the first that is none is an error, with its line.
"""

import csv
import gzip
import io
import math
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from grbm.core.errors import UserError, unreadable
from grbm.core.files import replacing
from grbm.data.arrays import Gathered
from grbm.data.tables import StoredTable

NO_VALUES = ",#N/A,#NA,-1.#IND,-1.#QNAN,-NaN,-nan,1.#IND,1.#QNAN,<NA>,N/A,NA,NULL,NaN,None,n/a,nan,null"
MISSING = frozenset(NO_VALUES.split(","))  # What means that a value is missing, as in pandas.
MARK = re.compile(r"([<>])=?\s*(.+)")  # Of a value below or above a limit.
# What is no number and looks like one: thousands, a unit; dates do not.
DATE = r"\d{1,4}[./]\d{1,2}[./]\d{1,4}"
LIKE_NUMBER = re.compile(rf"(?!{DATE}$)[<>≤≥~]?=?\s*[-+−]?\s*[$€£]?\s*\d[\d.,'’\s]*\s*[%$€£]?")
TRUTH = {"true": 1.0, "false": 0.0}
UNNAMED = "unnamed"  # The name of a column without one, before its number.
SAMPLE = 200  # Lines from which delimiter, names and the decimal mark are found.
FIRST = 1 << 20  # Bytes that are read for them, and more where the first line is longer.
CHUNK = 20_000  # Lines at a time.
PART = 4_000_000  # Numbers at a time, of a file that pandas reads.
LARGE = 1 << 20  # Bytes of a file that pandas reads first, many times as fast.
LONGEST = 1 << 30  # Characters of a cell.


class Reading(NamedTuple):
    """Options of reading a table, for what the file does not show."""

    key: str | None = None  # of several arrays, the name of one
    columns: tuple[str, ...] = ()  # names, or numbers from 0, of the columns to take; empty: all that hold numbers
    drop: tuple[str, ...] = ()  # of those to leave out
    missing: tuple[str, ...] = ()  # other texts that mean missing
    decimal: str | None = None  # "." or ","
    header: bool | None = None  # whether the first line names the columns
    needed: tuple[str, ...] = ()  # names of columns without which a table is of no use, such as that of weights
    may_be_empty: bool = False  # whether ``columns`` are those of a run, which may hold no value at all here

    def chosen(self, names: Sequence[str], where: object) -> list[int]:
        """Numbers of the columns that are taken. Raises UserError for one that is not there, or where none is left."""

        def number(asked: str) -> int:
            if asked in names:
                return names.index(asked)
            if asked.isdecimal() and int(asked) < len(names):
                return int(asked)
            raise UserError(f"{where} has no column {asked!r}; it has {shown(names)}.")

        chosen = [number(name) for name in self.columns] or list(range(len(names)))
        dropped = {number(name) for name in self.drop}
        if not (left := [k for k in dict.fromkeys(chosen) if k not in dropped]):
            raise UserError(f"No column of {where} is left; leave out fewer.")
        return left


class Dialect(NamedTuple):
    """Conventions of a text file."""

    mark: str  # between values; a space stands for any white space
    has_names: bool
    decimal: str  # "." or ","
    encoding: str
    line_end: str
    missing: frozenset[str]  # texts that mean that a value is missing
    also: frozenset[float] = frozenset()  # and numbers, where these texts are numbers

    def number(self, cell: str) -> float:
        """The number in a cell, NaN where it is missing. Raises ValueError for text."""
        text = cell.strip()
        if text in self.missing:
            return math.nan
        if text.lower() in TRUTH:
            return TRUTH[text.lower()]
        mark = MARK.fullmatch(text)
        digits = text if mark is None else mark[2]
        if self.decimal == ",":
            digits = digits.replace(",", ".") if "." not in digits else "a point"
        x = float(digits)
        is_odd = "_" in digits or (math.isinf(x) and any(map(str.isdigit, digits)))  # 1_000, and beyond float64
        if is_odd or (mark is not None and not math.isfinite(x)):
            raise ValueError(cell)
        return math.nan if x in self.also else x

    def numbers(self, cells: Sequence[str]) -> list[float]:
        """The numbers in cells, as `number`, in a fraction of the time where all are plain."""
        if self.decimal == "." and not self.also and "_" not in "".join(cells):
            with suppress(ValueError):
                found = list(map(float, cells))
                if math.inf not in found and -math.inf not in found:
                    return found
        return [self.number(cell) for cell in cells]

    def is_number(self, cell: str) -> bool | None:
        """Whether a cell holds a number; None where it is missing."""
        with suppress(ValueError):
            return None if math.isnan(self.number(cell)) else True
        return False


class TextTable(NamedTuple):
    """Numbers of some columns of a text file."""

    rows: StoredTable  # (n, k), NaN where a value is missing
    places: list[int]  # numbers of the columns in the file
    names: list[str]  # of all columns of the file; their numbers where it has no names
    left_out: dict[str, str]  # names of columns, and why
    low: np.ndarray  # (k,), limits by marks: the highest of the lower ones
    high: np.ndarray  # and the lowest of the higher ones
    dialect: Dialect
    remarks: list[str]  # what a person should know of how it was read


def shown(names: Sequence[str], most: int = 12) -> str:
    """Names in a sentence, the first of many."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def distinct(cells: Iterable[str]) -> list[str]:
    """Names that are all different: the second "a" is "a.1", as in pandas."""
    given = [cell.strip() or f"{UNNAMED} {k}" for k, cell in enumerate(cells)]
    taken, names, repeats = set(given), list[str](), Counter[str]()
    for name in given:
        new = name
        while repeats[name] and new in taken:
            new = f"{name}.{repeats[name]}"
            repeats[name] += 1
        repeats[name] += not repeats[name]
        taken.add(new)
        names.append(new)
    return names


def read_text(path: Path, how: Reading) -> TextTable:
    """The numbers in a text file.

    Raises
    ------
    UserError
        For a file that is damaged or no table, a value that is no number, and columns that are not there.
    """
    try:
        return _read(path, how)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); fetch it again.") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _read(path: Path, how: Reading) -> TextTable:
    dialect, sample = dialect_of(path, how)
    if not sample:
        raise UserError(f"{path} is empty; give a file with a table.")
    names = distinct(sample[0]) if dialect.has_names else [str(k) for k in range(len(sample[0]))]
    wanted = how.chosen(names, path)
    rest = sample[1:] if dialect.has_names else sample
    examples = {k: _example(dialect, [row[k] for row in rest if len(row) > k]) for k in wanted}
    numeric = [k for k in wanted if examples[k] is None]
    low, high = np.full(len(numeric), -np.inf), np.full(len(numeric), np.inf)
    found = None
    if path.stat().st_size > LARGE:
        with suppress(_NotAlike):
            found = _gather(_by_pandas(path, dialect, len(names), numeric), path, len(numeric))
    found = found or _gather(_numbers(path, dialect, names, numeric, how, (low, high)), path, len(numeric))
    if not found.rows.shape[0]:
        raise UserError(f"{path} has a line of names and no rows; give a file with a table.")
    left_out = {names[k]: f"text such as {text[:40]!r}" for k, text in examples.items() if text is not None}
    for k, is_empty, counts in zip(numeric, found.is_empty, found.counts, strict=True):
        if is_empty and not how.may_be_empty:
            left_out[names[k]] = "empty"
        elif counts and not how.columns and names[k].lower().startswith(UNNAMED):
            left_out[names[k]] = "it numbers the rows"
    if how.columns and left_out:
        name, why = next(iter(left_out.items()))
        raise UserError(f"Column {name!r} of {path} holds no numbers ({why}); leave it out.")
    kept = [place for place, k in enumerate(numeric) if names[k] not in left_out]
    if not kept:
        raise UserError(f"{path} has no column of numbers: {shown([f'{n} ({w})' for n, w in left_out.items()])}.")
    low, high, places = low[kept], high[kept], [numeric[place] for place in kept]
    if not (low < high).all():
        name = names[places[int(np.argmin(low < high))]]
        raise UserError(f"Column {name!r} of {path} has values below and above limits that exclude each other.")
    read, is_limited = found.rows.read, np.isfinite(low).any() or np.isfinite(high).any()

    def rows(index: np.ndarray) -> np.ndarray:
        numbers = np.ascontiguousarray(read(index)[:, kept])  # else sums over rows would be taken in another order
        return numbers.clip(low, high) if is_limited else numbers

    remarks = list(_remarks(dialect, sample, how))
    return TextTable(
        StoredTable(rows, found.rows.index, len(kept)), places, names, left_out, low, high, dialect, remarks
    )


class _Found(NamedTuple):
    """Numbers of some columns, and what each column holds as a whole."""

    rows: StoredTable  # (n, k)
    is_empty: np.ndarray  # (k,), whether all are missing
    counts: np.ndarray  # (k,), whether they are those of the rows, from 0 or from 1


def _gather(parts: Iterable[np.ndarray], path: Path, n_columns: int) -> _Found:
    """Parts of a table (·, k), one below the other."""
    gathered = Gathered(n_columns, str(path))
    is_empty, counts = np.ones(n_columns, bool), np.ones((2, n_columns), bool)
    for part in parts:
        row = gathered.n_rows + np.arange(len(part))[:, None]
        is_empty &= np.isnan(part).all(0)
        counts &= [(part == row + first).all(0) for first in (0, 1)]
        gathered.add(part)
    return _Found(gathered.rows(), is_empty, counts[0] | counts[1])


def _remarks(dialect: Dialect, sample: list[list[str]], how: Reading) -> Iterator[str]:
    """Say what was decided where a person may see it otherwise."""
    if dialect.decimal == "," and how.decimal is None:
        example = next(cell.strip() for row in sample for cell in row if "," in cell and dialect.is_number(cell))
        yield f"commas are decimal points, as in {example!r} (else: grbm train --decimal .)"
    numbers = [cell.strip() for cell in sample[0] if dialect.is_number(cell)]
    if how.header is None and not dialect.has_names:
        yield "the first line counts as numbers, and columns are numbered from 0 (else: grbm train --header True)"
    elif how.header is None and numbers:
        yield f"the first line, with {shown(numbers, 3)}, counts as names (else: grbm train --header False)"


def _example(dialect: Dialect, cells: list[str]) -> str | None:
    """An example of a column of text, by its first cells; None for one of numbers, or of what looks like them."""
    kinds = [dialect.is_number(cell) for cell in cells]
    wrong = [cell.strip() for cell, kind in zip(cells, kinds, strict=True) if kind is False]
    texts = [cell for cell in wrong if not LIKE_NUMBER.fullmatch(cell)]
    return texts[0] if len(texts) > kinds.count(True) + len(wrong) - len(texts) else None


def _numbers(
    path: Path, dialect: Dialect, names: list[str], columns: list[int], how: Reading,
    limits: tuple[np.ndarray, np.ndarray],
) -> Iterator[np.ndarray]:  # fmt: skip
    """Numbers of some ``columns``, by parts (·, k); their ``limits`` by marks (k,) become the highest and lowest ones.

    Raises UserError for a cell that holds no number, with its line.
    """
    lines, (low, high) = records(path, dialect), limits
    if dialect.has_names:
        next(lines)
    while block := list(islice(lines, CHUNK)):
        part = np.empty((len(block), len(columns)))
        for place, k in enumerate(columns):
            cells = [record[k] for _, record in block]
            try:
                part[:, place] = dialect.numbers(cells)
            except ValueError:
                row = [dialect.is_number(cell) for cell in cells].index(False)
                where = path, block[row][0], names[k], cells[row].strip()
                raise _no_number(*where, dialect, how) from None
            for row in (row for row, cell in enumerate(cells) if MARK.fullmatch(cell.strip())):
                if "<" in cells[row]:
                    low[place] = np.fmax(low[place], part[row, place])
                else:
                    high[place] = np.fmin(high[place], part[row, place])
        yield part


class _NotAlike(Exception):
    """Raised for a file that pandas would read otherwise."""


def _by_pandas(path: Path, dialect: Dialect, width: int, columns: list[int]) -> Iterator[np.ndarray]:
    """Read what `_numbers` reads, by pandas. Raises _NotAlike where it would fill up, cut or join lines."""
    import pandas

    exactly = {} if int(pandas.__version__.split(".")[0]) > 2 else {"float_precision": "round_trip"}
    n_rows = 0
    with _bytes(path) as file:
        try:
            frames = pandas.read_csv(
                file,
                sep=r"\s+" if dialect.mark == " " else dialect.mark,
                header=0 if dialect.has_names else None,
                names=list(range(width)),
                decimal=dialect.decimal,
                na_values=sorted(dialect.missing),
                keep_default_na=False,
                skipinitialspace=True,
                encoding=dialect.encoding,
                encoding_errors="surrogateescape",
                low_memory=False,
                chunksize=max(1, PART // width),
                **exactly,
            )
            for frame in frames:
                kinds = {dtype.kind for dtype in frame[columns].dtypes}
                is_whole = isinstance(frame.index, pandas.RangeIndex) and not frame[width - 1].isna().any()
                numbers = frame[columns].to_numpy(np.float64, copy=True) if kinds <= set("iufb") else None
                if not is_whole or numbers is None or np.isinf(numbers).any():
                    raise _NotAlike
                numbers[np.isin(numbers, list(dialect.also))] = np.nan
                n_rows += len(numbers)
                yield numbers
        except (ValueError, pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
            raise _NotAlike from error
    with _bytes(path) as file, io.TextIOWrapper(file, dialect.encoding, "surrogateescape", newline="") as text:
        n_lines = sum(not line.isspace() for line in text)
    if n_lines - dialect.has_names != n_rows:
        raise _NotAlike


def _no_number(path: Path, line: int, name: str, cell: str, dialect: Dialect, how: Reading) -> UserError:
    """Error for a value that is no number in a column of numbers."""
    where = f"{path}, line {line}, column {name!r}: {cell[:60]!r} is not a number"
    if "," in cell and dialect.decimal == ".":
        where += ": a comma may stand for thousands, or for a decimal point"
        where += "" if how.may_be_empty else " (grbm train --decimal ,)"
    if how.may_be_empty:
        return UserError(f"{where}. Correct it, or leave it empty if the value is unknown.")
    if name in how.needed:
        return UserError(f"{where}, and each row needs one in this column: correct it.")
    missing = shlex.quote(f"--na={cell[:60].splitlines()[0]}")
    leave = f"grbm train --drop {shlex.quote(name)} leaves the column out"
    return UserError(f"{where}. Correct it; or {leave}, and {missing} takes such values as missing.")


def dialect_of(path: Path, how: Reading) -> tuple[Dialect, list[list[str]]]:
    """Find how a text file is written, from its first lines, and return their cells too."""
    with _bytes(path) as file:
        content = file.read(FIRST)
        while not {10, 13} & set(content) and (more := file.read(FIRST)):
            content += more
        is_whole = not file.read(1)
    encoding = "utf-8-sig" if content.startswith(b"\xef\xbb\xbf") else "utf-8"
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    else:
        try:
            content[: None if is_whole else content.rfind(b"\n") + 1 or None].decode("utf-8")
        except UnicodeDecodeError:
            encoding = "cp1252"
        if b"\0" in content:
            raise UserError(f"{path} is no text; give a CSV file, or an array (.npy).")
    found = list(islice(io.StringIO(content.decode(encoding, "surrogateescape"), newline=""), SAMPLE + 1))
    lines = found[:SAMPLE] if is_whole or len(found) > SAMPLE or len(found) < 2 else found[:-1]
    mark, line_end = _mark(lines), "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    missing = MISSING | set(how.missing)
    also = {x for x in map(_float, how.missing) if math.isfinite(x)}
    point = Dialect(mark, False, how.decimal or ".", encoding, line_end, missing, frozenset(also))
    sample = list(_split(lines, mark))
    found_dialect = point
    if how.decimal is None and mark != ",":
        comma, cells = point._replace(decimal=","), [cell.strip() for record in sample for cell in record]
        with_comma = [cell for cell in cells if "," in cell and comma.is_number(cell)]
        # Three digits after each comma may as well be thousands, but behind a zero.
        is_sure = any(len(x.partition(",")[2]) != 3 or x.lstrip("+-").startswith("0,") for x in with_comma)
        if is_sure and not any("." in cell and point.is_number(cell) for cell in cells):
            found_dialect = comma
    kinds = [[found_dialect.is_number(cell) for cell in record] for record in sample]
    return found_dialect._replace(has_names=_has_names(kinds) if how.header is None else how.header), sample


def _float(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    return math.nan


def _has_names(kinds: list[list[bool | None]]) -> bool:
    """Whether the first record names the columns: it has no number, or text above numbers."""
    if not kinds:
        return False
    first, rest = kinds[0], kinds[1:]
    above = (kind is False and any(len(each) > k and each[k] for each in rest) for k, kind in enumerate(first))
    return any(above) or not any(first)


def _mark(lines: list[str]) -> str:
    """The delimiter that splits all lines into as many values, more than one; a space for white space, or none."""
    counted = {",": 0.0}
    for mark in (mark for mark in "\t;|," if lines and mark in lines[0]):
        lengths = Counter(len(record) for record in _split(lines, mark, strict=False))
        length, n = max(lengths.items(), key=lambda item: (item[1], item[0]), default=(1, 0))
        counted[mark] = (n / max(1, lengths.total())) if length > 1 else 0.0
    best = max((mark for mark in "\t;|," if mark in counted), key=lambda mark: counted[mark])  # the first of equals
    spaces = Counter(len(line.split()) for line in _lines(lines, " ") if line.strip())
    return " " if counted[best] == 0 and len(spaces) == 1 and max(spaces) > 1 else best


def _reader(lines: Iterable[str], mark: str, *, strict: bool = True) -> Any:
    csv.field_size_limit(LONGEST)
    return csv.reader(_lines(lines, mark), delimiter=mark, skipinitialspace=True, strict=strict)


def _split(lines: Iterable[str], mark: str, *, strict: bool = True) -> Iterator[list[str]]:
    """Records of some lines, but for empty ones, as far as their quotes are whole."""
    with suppress(csv.Error):
        yield from (record for record in _reader(lines, mark, strict=strict) if "".join(record).strip())


def _lines(lines: Iterable[str], mark: str) -> Iterator[str]:
    """Lines without the # that some programs write before the names, and with single spaces where these delimit."""
    for k, line in enumerate(lines):
        line = line.removeprefix("#") if k == 0 else line
        yield line if mark != " " else " ".join(line.split()) + "\n"


def records(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Records with the numbers of their last lines; empty lines are passed over.

    Raises UserError for a record of another length than the first, and for quotes that are not whole.
    """
    with _bytes(path) as file, io.TextIOWrapper(file, dialect.encoding, "surrogateescape", newline="") as text:
        reader, width = _reader(text, dialect.mark), 0
        while True:
            try:
                record = next(reader, None)
            except csv.Error as error:
                raise UserError(
                    f"{path}, line {reader.line_num}: quotes are not whole ({error}); correct the line."
                ) from error
            if record is None:
                return
            if not record or (not "".join(record).strip() and len(record) != width):
                continue
            width = width or len(record)
            if len(record) > width and not "".join(record[width:]).strip():
                record = record[:width]  # a delimiter at the end of each line
            if len(record) != width:
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(record)} values, where the first line has {width}; correct "
                    f"or remove one of them."
                )
            yield reader.line_num, record


def _bytes(path: Path) -> IO[bytes]:
    """The content of a file, unpacked where it is packed by gzip."""
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    opened: IO[bytes] = cast(IO[bytes], gzip.open(path, "rb")) if is_packed else path.open("rb")  # noqa: SIM115
    return opened


def texts(path: Path, column: int, how: Reading) -> list[str]:
    """The cells of a column of a text file, without blanks around them."""
    dialect, _ = dialect_of(path, how)
    lines = records(path, dialect)
    if dialect.has_names:
        next(lines)
    return [record[column].strip() for _, record in lines]


def _brief(x: float, step: float) -> str:
    """The number x to six digits, or to within ``step``.

    One of twelve digits stays: it is a step, or a limit. So does one that would become round: it may lie just inside a
    bound, such as 0.9999999 below 1.
    """
    digits = max(6, math.ceil(math.log10(abs(x) / step))) if x and step else 6
    rounded, most, least = (float(f"{x:.{n}g}") for n in (min(digits, 17), 12, 3))
    return repr(x if x == most or rounded == least else rounded)


def fill_text(path: Path, target: Path, filled: np.ndarray, places: Sequence[int], how: Reading) -> int:
    """Write a text file again to ``target``, its missing values in some columns filled in; return how many.

    They have six digits, and as many more as a hundred-thousandth of the column's deviation asks for.

    Parameters
    ----------
    filled : ndarray
        (n, k), a row for each record.
    places : sequence of int
        Numbers of these columns in the file.
    """
    dialect, _ = dialect_of(path, how)
    lines, n, fine = records(path, dialect), 0, (1e-5 * filled.std(0)).tolist()
    mark = "\t" if target.suffix.lower() == ".tsv" else "," if dialect.mark == " " else dialect.mark
    with (
        replacing(target) as temporary,
        temporary.open("w", encoding=dialect.encoding, errors="surrogateescape", newline="") as file,
    ):
        writer = csv.writer(file, delimiter=mark, lineterminator=dialect.line_end)
        if dialect.has_names:
            writer.writerow(next(lines)[1])
        for row, (_, record) in zip(filled.tolist(), lines, strict=True):
            for k, x, step in zip(places, row, fine, strict=True):
                if dialect.is_number(record[k]) is None:
                    record[k] = _brief(x, step).replace(".", dialect.decimal)
                    n += 1
            writer.writerow(record)
    return n
