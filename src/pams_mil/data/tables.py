"""Tables as columns of text: CSV and TSV (also gzipped), parquet and xlsx, in chunks, so that any size can be read.

Every cell is text, exactly as written: ids with leading zeros survive, nothing is guessed to be a number.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from pams_mil.atomic import unescape_formula
from pams_mil.errors import TableError, listing, needs_extra

Columns = dict[str, list[str]]
OnFraction = Callable[[float], None]
"""Called with the fraction read so far, from 0 to 1."""

CHUNK_ROWS = 1 << 16
_PACKED = {
    b"PK\x03\x04": "a zip archive, not a text table. Unpack it, or give it the ending .xlsx if it is a sheet of Excel.",
    b"\x89HDF": "an HDF5 file, such as the features of one slide, not a table. Give the table here (a CSV with one row "
    "per slide), and the folder of feature files with --features.",
    b"PAR1": "a parquet file, not a text table. Give it the ending .parquet.",
}
_DELIMITERS = (",", ";", "\t")
_GZIP = b"\x1f\x8b"
_MOST_LINE = 1 << 24  # characters; a small compressed file may hold a line that fits no memory
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_QUOTED = re.compile(r'"(?:[^"]|"")*"?')


def read_chunks(path: Path | str, *, rows: int = CHUNK_ROWS, progress: OnFraction | None = None) -> Iterator[Columns]:
    """The table piece by piece; each piece maps every column to its cells. At least one piece, maybe of no rows."""
    path = Path(path)
    _check_file(path)
    readers = {".parquet": _parquet_rows, ".xlsx": _xlsx_rows}
    reader = readers.get(path.suffix.lower(), _text_rows)
    records = reader(path, progress or (lambda fraction: None))
    header = _header(next(records, []), path)
    piece = list(islice(records, rows))
    yield _columns(header, piece, path)
    while piece := list(islice(records, rows)):
        yield _columns(header, piece, path)


def read_table(path: Path | str, *, progress: OnFraction | None = None) -> Columns:
    """The whole table at once; for manifests and the like."""
    table: Columns = {}
    for piece in read_chunks(path, progress=progress):
        for name, cells in piece.items():
            table.setdefault(name, []).extend(cells)
    return table


def parse_number(cell: str) -> float:
    """A number as a table has it, also with a decimal comma, as German and French spreadsheets write it.

    >>> parse_number("0,658"), parse_number("1e-3")
    (0.658, 0.001)
    """
    try:
        return float(cell)
    except ValueError:
        if not _DECIMAL_COMMA.fullmatch(cell.strip()):
            raise
        return float(cell.replace(",", "."))


def table_name(path: Path | str) -> str:
    """The name of a file without its suffixes.

    >>> table_name("runs/model a.csv"), table_name("b.tsv.gz"), table_name("v1.2.csv")
    ('model a', 'b', 'v1.2')
    """
    name = Path(path).name
    unpacked = name[:-3] if name.lower().endswith(".gz") else name
    return Path(unpacked).stem


def _check_file(path: Path) -> None:
    try:
        if not path.exists():
            raise TableError(f"There is no file {path}.")
        if not path.is_file():
            raise TableError(f"{path} is not a file; expected a CSV, TSV, parquet or xlsx table.")
        with path.open("rb") as file:
            start = file.read(4)
        if not start:
            raise TableError(f"{path} is empty; expected a header line and rows.")
        packed = next((kind for sign, kind in _PACKED.items() if start.startswith(sign)), None)
        if packed is not None and path.suffix.lower() not in (".parquet", ".xlsx"):
            raise TableError(f"{path} is {packed}")
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error


def _header(cells: list[str], path: Path) -> list[str]:
    header = [unescape_formula(cell.strip()) for cell in cells]
    if not any(header):
        raise TableError(f"{path} has no header line with column names.")
    repeated = sorted(name for name, times in Counter(header).items() if times > 1)
    if repeated:
        raise TableError(f"{path} has the column {listing(repeated)} more than once; column names must differ.")
    return header


def _columns(header: list[str], piece: list[list[str]], path: Path) -> Columns:
    try:
        cells = zip(*piece, strict=True) if piece else ([] for _ in header)
        columns = {name: list(column) for name, column in zip(header, cells, strict=True)}
    except ValueError as error:
        odd = next(row for row in piece if len(row) != len(header))
        raise TableError(
            f"{path} has a row with {len(odd)} cells where the header has {len(header)} columns; "
            f"the row starts with {listing(odd[:3])}. Is a comma unquoted?"
        ) from error
    # What was written with an apostrophe against formulas is given back; most columns have none and are not copied.
    for name, column in columns.items():
        if any(cell[:1] == "'" for cell in column):
            columns[name] = [unescape_formula(cell) for cell in column]
    return columns


def _text_rows(path: Path, progress: OnFraction) -> Iterator[list[str]]:
    size = path.stat().st_size
    with path.open("rb") as raw, _opened(raw) as file:
        try:
            first = file.readline(_MOST_LINE)
            # A plain file's lines are no longer than the file; those of a packed one may be, and are read in bounds.
            rest = file if file.buffer is raw else iter(lambda: file.readline(_MOST_LINE), "")
            # The separator that splits the header into most columns; a comma when in doubt.
            delimiter = max(_DELIMITERS, key=_QUOTED.sub("", first).count)
            reader = csv.reader(_lines(first, rest, path), delimiter=delimiter, strict=True)
            for number, row in enumerate(reader):
                if row:
                    yield row
                if number % 4096 == 0:
                    # bytes of the file itself, also where it is packed
                    progress(raw.tell() / size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TableError(f"{path} is a damaged or cut short gzip file: {error}. Copy it again.") from error
        except UnicodeDecodeError as error:
            raise TableError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8.") from error
        except csv.Error as error:
            raise TableError(f"{path} is not a readable table: {error}, near line {reader.line_num}.") from error
    progress(1.0)


def _opened(raw: BinaryIO) -> io.TextIOWrapper:
    """The text of a file, unpacked where it starts like gzip, whatever its name."""
    packed = raw.read(2) == _GZIP
    raw.seek(0)
    content = gzip.GzipFile(fileobj=raw) if packed else raw
    return io.TextIOWrapper(content, encoding="utf-8-sig", newline="")


def _lines(first: str, rest: Iterable[str], path: Path) -> Iterator[str]:
    for line in chain([first], rest):
        if len(line) == _MOST_LINE:
            raise TableError(f"{path} has a line of more than {_MOST_LINE:,} characters, so it is not a table.")
        if "\0" in line:
            raise TableError(f"{path} holds NUL characters, so it is not plain UTF-8 text; was it saved as UTF-16?")
        yield line


def _parquet_rows(path: Path, progress: OnFraction) -> Iterator[list[str]]:
    with needs_extra("Reading parquet", package="pyarrow", extra="tables"):
        import pyarrow  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield list(file.schema_arrow.names)
            total, done = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(batch_size=CHUNK_ROWS):
                columns = [[_text(value) for value in column.to_pylist()] for column in batch.columns]
                yield from (list(row) for row in zip(*columns, strict=True))
                done += batch.num_rows
                progress(done / total)
    except (pyarrow.ArrowException, OSError) as error:
        raise TableError(f"{path} is not a readable parquet file: {error}") from error


def _xlsx_rows(path: Path, progress: OnFraction) -> Iterator[list[str]]:
    with needs_extra("Reading xlsx", package="openpyxl", extra="tables"):
        import openpyxl  # noqa: PLC0415
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        with closing(book):
            yield from _filled_rows(book.worksheets[0].iter_rows(values_only=True))
    except Exception as error:  # openpyxl raises whatever its zip and XML layers raise
        raise TableError(f"{path} is not a readable xlsx file: {error}") from error
    progress(1.0)


def _filled_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[str]]:
    """Rows of a sheet as wide as its header: sheets have no fixed width, and blank cells may trail or be missing."""
    width = 0
    for row in rows:
        cells = [_text(value) for value in row]
        while len(cells) > width and not cells[-1]:
            cells.pop()
        width = width or len(cells)
        if any(cells):
            yield cells + [""] * (width - len(cells))


def _text(value: Any) -> str:
    """A cell as text; numbers in their shortest exact spelling, nothing as nothing."""
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
