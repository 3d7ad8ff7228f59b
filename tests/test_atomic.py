"""Atomic writes: complete or absent, whatever happens."""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from pams_mil import atomic
from pams_mil.data.tables import read_table
from pams_mil.errors import OutputError, PamsError

OLD, NEW = b"old " * 1000, b"new " * 100_000

KILLED = """
import os, sys
from pathlib import Path
from pams_mil import atomic
module, name, call = sys.argv[2], sys.argv[3], int(sys.argv[4])
owner = {"os": os, "path": Path, "atomic": atomic}[module]
real, seen = getattr(owner, name), 0
def deadly(*args, **kwargs):
    global seen
    seen += 1
    if seen == call:
        os._exit(9)
    return real(*args, **kwargs)
setattr(owner, name, deadly)
def verify(part):
    if part.read_bytes() != b"new " * 100_000:
        raise SystemExit("the part is not what was written")
with atomic.replacing(sys.argv[1], verify=verify) as part, part.open("wb") as file:
    for _ in range(100):
        file.write(b"new " * 1000)
        file.flush()
os._exit(0)
"""

STAGES = [
    ("path", "mkdir", 1),
    ("atomic", "sweep", 1),
    ("path", "open", 1),
    ("atomic", "_flush", 1),
    ("os", "fsync", 1),
    ("path", "read_bytes", 1),
    ("path", "replace", 1),
    ("atomic", "_flush", 2),
    ("os", "fsync", 2),
    ("os", "close", 2),
]


def run_python(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)


@pytest.mark.parametrize("existing", [False, True], ids=["no file yet", "over an old file"])
@pytest.mark.parametrize(("module", "name", "call"), STAGES, ids=[f"{m}.{n} {c}" for m, n, c in STAGES])
def test_a_kill_at_any_stage_leaves_old_or_new(tmp_path: Path, module: str, name: str, call: int, existing: bool):
    target = tmp_path / "out.bin"
    if existing:
        target.write_bytes(OLD)
    assert run_python(KILLED, target, module, name, call).returncode == 9
    if target.exists():
        assert target.read_bytes() in ((OLD, NEW) if existing else (NEW,))
    else:
        assert not existing
    atomic.write_bytes(target, NEW)  # the rerun completes, and sweeps what the dead writer left
    assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]
    assert target.read_bytes() == NEW


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path):
    target = tmp_path / "out.bin"
    target.write_bytes(OLD)
    code = (
        "import os, sys; from pams_mil import atomic\n"
        "with atomic.replacing(sys.argv[1]) as part:\n"
        "    part.write_bytes(b'half'); os._exit(9)"
    )
    assert run_python(code, target).returncode == 9
    assert target.read_bytes() == OLD
    assert len(list(tmp_path.glob(".*.part"))) == 1


@pytest.mark.parametrize("limit", [1, 4096, 65_537, 399_999])
def test_a_full_disk_leaves_nothing_half_made(tmp_path: Path, limit: int):
    code = (
        "import resource, sys; from pams_mil import atomic, errors\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))\n"
        "try:\n    atomic.write_bytes(sys.argv[1], b'new ' * 100_000)\n"
        "except errors.OutputError as error:\n    print(error)\n"
    )
    target = tmp_path / "out.bin"
    done = run_python(code, target, limit)
    assert f"Could not write {target}: your quota or limit leaves no room for it." in done.stdout
    assert list(tmp_path.iterdir()) == []
    target.write_bytes(OLD)
    assert "earlier file of that name is untouched" in run_python(code, target, limit).stdout
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [OLD]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_parts_of_dead_writers_on_this_host_are_swept(tmp_path: Path):
    host, dead, mine = atomic._host(), dead_process(), os.getpid()
    names = {
        f".a.csv.{host}-{dead}-0123abcd.part": False,
        f".weird\nname.{host}-{dead}-0123abcd.part": False,
        f".huge.{host}-99999999999999999999-0123abcd.part": False,
        f".a.csv.{host}-{mine}-0123abcd.part": True,
        f".a.csv.{host}-1-0123abcd.part": True,
        f".a.csv.00000000-{dead}-0123abcd.part": True,
        f"a.csv.{host}-{dead}-0123abcd.part": True,
        f".a.csv.{host}-{dead}-0123abcd.part.keep": True,
        ".part": True,
        "notes.part": True,
    }
    for name in names:
        (tmp_path / name).write_text("x")
    atomic.write_text(tmp_path / "b.csv", "new")
    assert {path.name for path in tmp_path.iterdir()} == {name for name, kept in names.items() if kept} | {"b.csv"}


def test_a_part_that_cannot_be_removed_is_no_reason_to_fail(tmp_path: Path):
    stuck = tmp_path / f".a.{atomic._host()}-{dead_process()}-0123abcd.part"
    stuck.mkdir()  # unlink fails on a folder, as it does on someone else's file in a shared folder
    atomic.write_text(tmp_path / "b", "new")
    assert (tmp_path / "b").read_text() == "new"


def test_a_folder_that_cannot_be_flushed_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve() == tmp_path:
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.write_text(tmp_path / "b", "new")
    assert (tmp_path / "b").read_text() == "new"


@pytest.mark.parametrize(
    "name",
    [
        "n" * 255,
        "é" * 127,
        "階" * 85,
        "😀" * 63,
        "a b\nc",
        "-rf",
        ".hidden",
        "x.part",
        "100 %",
        "sn\udcffow",
        "'quo\"te'",
    ],
)
def test_every_legal_name_can_be_written(tmp_path: Path, name: str):
    atomic.write_bytes(tmp_path / name, b"data")
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [os.fsencode(name)]


@pytest.mark.parametrize("name", ["n" * 256, "é" * 128, "x" * 300 + "/inner.txt"])
def test_names_that_are_too_long_are_refused_cleanly(tmp_path: Path, name: str):
    with pytest.raises(OutputError, match="File name too long"):
        atomic.write_bytes(tmp_path / name, b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_a_file(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="there is a folder of that name"):
        atomic.write_text(tmp_path / "folder", "x")
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OutputError, match="a folder of that path is a file"):
        atomic.write_text(tmp_path / "file" / "below", "x")
    assert (tmp_path / "file").read_text() == "kept"
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), PamsError("ours"), SystemExit(3)])
def test_an_error_of_the_writer_passes_through_and_leaves_nothing(tmp_path: Path, error: BaseException):
    target = tmp_path / "out"
    target.write_bytes(OLD)

    def fail() -> None:
        with atomic.replacing(target) as part:
            part.write_bytes(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [OLD]


def test_a_failed_verification_leaves_the_old_file(tmp_path: Path):
    target = tmp_path / "out"
    target.write_bytes(OLD)

    def verify(part: Path) -> None:
        raise ValueError(f"{part.stat().st_size} bytes are wrong")

    with pytest.raises(ValueError, match="400000 bytes are wrong"), atomic.replacing(target, verify=verify) as part:
        part.write_bytes(NEW)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [OLD]


def test_a_writer_that_wrote_nothing_is_an_error(tmp_path: Path):
    with pytest.raises(OutputError, match="No such file"), atomic.replacing(tmp_path / "out"):
        pass


def test_many_processes_writing_one_file_leave_one_complete_file(tmp_path: Path):
    code = (
        "import sys; from pams_mil import atomic\n"
        "for _ in range(30): atomic.write_bytes(sys.argv[1], sys.argv[2].encode() * 50_000)"
    )
    target = tmp_path / "out"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(target), letter]) for letter in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert target.read_bytes() in [letter * 50_000 for letter in (b"a", b"b", b"c")]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


CELLS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(
    st.one_of(CELLS, st.from_regex(r"\A'*[=+\-@\t\r].*\Z"), st.sampled_from(["'", "''", "-1", "+.5e3", "-inf", "'-1"]))
)
def test_inert_cells_are_harmless_and_come_back(cell: str):
    written = str(atomic.escape_formula(cell))
    assert atomic.unescape_formula(written) == cell
    if written[:1] in tuple("=+-@\t\r"):
        assert float(written) == float(cell)  # only numbers may keep a leading sign


@given(st.lists(st.tuples(CELLS.filter(bool), CELLS, CELLS), min_size=1, max_size=8))
def test_csv_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    atomic.write_csv(path, ["=id", "a,b", "c\n"], rows)
    table = read_table(path)
    assert list(table) == ["=id", "a,b", "c"]
    assert list(zip(*table.values(), strict=True)) == rows


def test_hostile_text_survives_and_numbers_stay_numbers(tmp_path: Path):
    rows = [
        ["<script>alert('x')</script>", -1.5],
        ['"quoted", comma', 2],
        ["new\nline\r\nand\rreturn", 3],
        ["=cmd()", 4],
    ]
    atomic.write_csv(tmp_path / "t.csv", ["id", "value"], rows)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        raw = list(csv.reader(file))
    assert [row[1] for row in raw[1:]] == ["-1.5", "2", "3", "4"]
    assert raw[-1][0] == "'=cmd()"
    assert read_table(tmp_path / "t.csv")["id"] == [row[0] for row in rows]


def test_strict_json(tmp_path: Path):
    value = {
        "inf": float("inf"), "nan": [float("nan"), np.float32("nan")], "array": np.array([1.5, -np.inf]),
        "n": np.int64(3), "text": "</script>\u2028\"é", 7: (True, None, np.bool_(False)), "zero": np.float64(-0.0),
    }  # fmt: skip
    atomic.write_json(tmp_path / "x.json", value)

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not strict JSON")

    read = json.loads((tmp_path / "x.json").read_bytes(), parse_constant=refuse)
    assert read == {
        "inf": None, "nan": [None, None], "array": [1.5, None], "n": 3,
        "text": "</script>\u2028\"é", "7": [True, None, False], "zero": 0.0,
    }  # fmt: skip


def test_a_folder_is_listed_once_and_not_for_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    swept = []
    monkeypatch.setattr(atomic, "sweep", swept.append)
    for number in range(5):
        atomic.write_text(tmp_path / f"{number}.txt", "x")
    assert swept == [tmp_path]
