"""Tables of text: every spelling of a table that people have, and nothing guessed."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import h5py
import pytest

from pams_mil.data.tables import parse_number, read_chunks, read_table
from pams_mil.errors import MissingExtraError, TableError

TABLE = {"id": ["007", "8"], "label": ["N", "IC"]}


@pytest.mark.parametrize(
    "text",
    [
        "id,label\n007,N\n8,IC\n",
        "id,label\r\n007,N\r\n8,IC\r\n",
        "id,label\r007,N\r8,IC\r",
        "id,label\n007,N\n8,IC",
        "\ufeffid,label\n007,N\n8,IC\n",
        '\ufeff"id","label"\n"007","N"\n"8","IC"\n',
        "id;label\n007;N\n8;IC\n",
        "id\tlabel\n007\tN\n8\tIC\n",
        " id , label \n007,N\n8,IC\n",
        "id,label\n\n007,N\n\n\n8,IC\n\n",
    ],
    ids=[
        "plain",
        "CRLF",
        "CR",
        "no last newline",
        "BOM",
        "BOM and quotes",
        "semicolons",
        "tabs",
        "spaces",
        "blank lines",
    ],
)
def test_one_table_in_many_spellings(tmp_path: Path, text: str):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    assert read_table(path) == TABLE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('id,note\n1,"a, b"\n', {"id": ["1"], "note": ["a, b"]}),
        ('id,note\n1,"two\nlines"\n', {"id": ["1"], "note": ["two\nlines"]}),
        ('id,note\n1,"two\r\nlines"\n', {"id": ["1"], "note": ["two\r\nlines"]}),
        ('id,note\n1,"say ""hi"""\n', {"id": ["1"], "note": ['say "hi"']}),
        ('id,"a;b;c;d"\n1,2\n', {"id": ["1"], "a;b;c;d": ["2"]}),
        ('"i\nd",x\n1,2\n', {"i\nd": ["1"], "x": ["2"]}),
        ("id,x\n1, spaced \n", {"id": ["1"], "x": [" spaced "]}),
        ("only\na\nb\n", {"only": ["a", "b"]}),
        (",id\n0,a\n", {"": ["0"], "id": ["a"]}),
        ("id,x\n1,'=cmd()\n", {"id": ["1"], "x": ["=cmd()"]}),
        ("id,x\n1,'tis\n", {"id": ["1"], "x": ["'tis"]}),
        ("id,x\n1,1e400\n", {"id": ["1"], "x": ["1e400"]}),
        ("é,階\n1,😀\n", {"é": ["1"], "階": ["😀"]}),
        ("id,x\n", {"id": [], "x": []}),
    ],
)
def test_cells_are_kept_as_written(tmp_path: Path, text: str, expected: dict[str, list[str]]):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    assert read_table(path) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "no header line"),
        (b"\n \n", "no header line"),
        (b",,\n1,2,3\n", "no header line"),
        (b"a,a,b\n1,2,3\n", "the column 'a' more than once"),
        (b"a, a\n1,2\n", "the column 'a' more than once"),
        (b"a,b\n1\n", "row with 1 cells where the header has 2"),
        (b"a,b\n1,2,3\n", "row with 3 cells where the header has 2"),
        (b"a,b\n1,2\n3,4\n5\n", r"row with 1 cells.*starts with '5'"),
        (b'a,b\n1,"2\n', "unexpected end of data, near line"),
        (b'a,b\n1,"2"x\n', "not a readable table"),
        (b"a,b\n1,\xff\n", "not UTF-8 text"),
        (b"a,b\n1,2\0\n", "NUL characters"),
        (b'a,b\n1,"' + b"x" * 200_000 + b'"\n', "field larger than field limit"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(TableError, match=message) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n")
    path.chmod(0)
    with pytest.raises(TableError, match="cannot be read: Permission denied"):
        read_table(path)


def test_a_read_error_is_a_table_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TableError, match="cannot be read: Permission denied"):
        read_table(path)


@pytest.mark.parametrize(("rows", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (9, [5])])
def test_chunks_hold_the_rows_in_order(tmp_path: Path, rows: int, sizes: list[int]):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{n},x{n}\n" for n in range(5)))
    pieces = list(read_chunks(path, rows=rows))
    assert [len(piece["a"]) for piece in pieces] == sizes
    assert [cell for piece in pieces for cell in piece["b"]] == [f"x{n}" for n in range(5)]


def test_a_ragged_row_in_a_later_chunk(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3,4\n5\n")
    pieces = read_chunks(path, rows=2)
    next(pieces)
    with pytest.raises(TableError, match="row with 1 cells"):
        next(pieces)


def test_progress_grows_to_one(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 20_000)
    seen: list[float] = []
    read_table(path, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 3


def test_parquet(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pa.table({
        "id": ["007", None], "n": [1, 2], "p": [0.1, 1.0], "day": [datetime.date(2024, 1, 2), None],
        "kind": pa.array(["x", "y"]).dictionary_encode(),
    })  # fmt: skip
    path = tmp_path / "t.PARQUET"
    pyarrow.parquet.write_table(table, path)
    assert read_table(path) == {
        "id": ["007", ""], "n": ["1", "2"], "p": ["0.1", "1.0"], "day": ["2024-01-02", ""], "kind": ["x", "y"],
    }  # fmt: skip


def test_parquet_in_chunks_and_without_rows(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    seen: list[float] = []
    pyarrow.parquet.write_table(pa.table({"a": [str(n) for n in range(7)]}), path, row_group_size=3)
    assert [piece["a"] for piece in read_chunks(path, rows=4, progress=seen.append)] == [list("0123"), list("456")]
    assert seen[-1] == 1.0
    pyarrow.parquet.write_table(pa.table({"a": pa.array([], pa.string())}), path)
    assert read_table(path) == {"a": []}


def test_xlsx(tmp_path: Path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet["D9"].number_format = "0.00"  # a formatted but empty cell widens the sheet
    for row, cells in enumerate(
        [["id", "label", "p"], ["007", "N", 0.1], [8, None, 1], [None] * 3, ["9", "IC", None]], 1
    ):
        for column, cell in enumerate(cells, 1):
            sheet.cell(row, column, cell)
    book.create_sheet("other")["A1"] = "ignored"
    book.save(tmp_path / "t.xlsx")
    assert read_table(tmp_path / "t.xlsx") == {
        "id": ["007", "8", "9"], "label": ["N", "", "IC"], "p": ["0.1", "1", ""],
    }  # fmt: skip


def test_an_xlsx_row_wider_than_the_header(tmp_path: Path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["a", "b"])
    book.active.append([1, 2, 3])
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(TableError, match="row with 3 cells where the header has 2"):
        read_table(tmp_path / "t.xlsx")


@pytest.mark.parametrize(("name", "package"), [("t.parquet", "pyarrow"), ("t.xlsx", "openpyxl")])
def test_a_missing_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str):
    (tmp_path / name).write_bytes(b"something")
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"needs the package '{package}'.*pip install 'pams-mil\[tables\]'"):
        read_table(tmp_path / name)


def test_a_feature_file_given_as_a_table_says_what_to_do(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "slide.h5", "w") as file:
        file["features"] = [[1.0]]
    with pytest.raises(TableError, match=r"is an HDF5 file.*folder of feature files with --features"):
        read_table(tmp_path / "slide.h5")


def test_numbers_with_a_decimal_comma() -> None:
    assert [parse_number(cell) for cell in ("0,658", ",5", "-1,5e-3", "0.25", " 1 ")] == [
        0.658,
        0.5,
        -0.0015,
        0.25,
        1,
    ]
    for cell in ("1,234,567", "1.234,5", "a,5", "", "0,"):
        with pytest.raises(ValueError, match="could not convert"):
            parse_number(cell)
