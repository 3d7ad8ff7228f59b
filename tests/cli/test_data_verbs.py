"""The verbs check, split, pack, unpack and cohort make, as a user types them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from tests.data import writers
from tests.data.cohorts import feature_folder
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data import Manifest, Pack, read_bag


def pams(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    feature_folder(tmp_path)
    return tmp_path


def test_check_a_sound_cohort(root: Path) -> None:
    done = pams("check", root / "manifest.csv", "--classes", "bracs", "--features", root / "h5_files")
    assert done.exit_code == 0, done.output
    assert "6 slides of 3 patients" in done.output
    assert "layout: clam (6)" in done.output
    assert "Usable" in done.output


def test_check_lists_all_problems_and_exits_1(root: Path) -> None:
    (root / "h5_files" / "s0.h5").unlink()
    features, coords = writers.numbers(50)
    features[3] = np.inf
    writers.clam(root / "h5_files" / "s1.h5", features, coords)
    done = pams("check", root / "manifest.csv", "--classes", "bracs", "--features", root / "h5_files")
    assert done.exit_code == 1
    assert "missing bag" in done.output
    assert "not finite" in done.output
    as_json = pams("check", root / "manifest.csv", "--classes", "bracs", "--features", root / "h5_files", "--json")
    assert as_json.exit_code == 1
    found = json.loads(as_json.stdout)
    assert found["usable"] is False
    assert {problem["kind"] for problem in found["problems"] if problem["level"] == "error"} == {
        "missing bag",
        "unusable bag",
    }
    assert found["bags"]["readable"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--classes", "bracs"), "--no-features"),
        (("--classes", "nothing", "--no-features"), "neither a preset nor a file"),
        (("--classes", "bracs", "--no-features", "--fold", "3"), "no column 'fold_3'"),
        (("--classes", "bracs", "--features", "nowhere"), "no feature folder"),
    ],
)
def test_wrong_use_exits_2(root: Path, words: tuple[str, ...], message: str) -> None:
    done = pams("check", root / "manifest.csv", *words)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_missing_patients_are_said_in_every_report(tmp_path: Path) -> None:
    table = tmp_path / "m.csv"
    table.write_text("slide_id,label\n" + "".join(f"s{n},{'N' if n % 2 else 'IC'}\n" for n in range(30)))
    assert pams("check", table, "--classes", "bracs", "--no-features").exit_code == 2
    done = pams("check", table, "--classes", "bracs", "--no-features", "--patients-are-slides")
    assert done.exit_code == 0
    assert "names no patients" in done.output
    done = pams("split", table, "--classes", "bracs", "--out", tmp_path / "s", "--patients-are-slides")
    assert done.exit_code == 0
    assert "names no patients" in done.output


def test_split_writes_folds_that_check_and_train_can_read(tmp_path: Path) -> None:
    table = tmp_path / "m.csv"
    rows = "".join(
        f"s{n},p{n // 2},{('N', 'UDH', 'IC')[n // 2 % 3]},{'mixed' if n % 13 == 0 else ''}\n" for n in range(120)
    )
    table.write_text("slide_id,patient_id,label,tags\n" + rows)
    words = ("split", table, "--classes", "bracs", "--folds", "5", "--seed", "7", "--hold-out-tag", "mixed")
    done = pams(*words, "--out", tmp_path / "a")
    assert done.exit_code == 0, done.output
    assert "10 slides are held out" in done.output
    pams(*words, "--out", tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    for fold in range(5):
        manifest = Manifest.read(tmp_path / "a" / "manifest.csv", fold=fold)
        assert all(record.split == "test" for record in manifest if record.has_tag("mixed"))
        check = pams("check", tmp_path / "a" / "manifest.csv", "--classes", "bracs", "--no-features", "--fold", fold)
        assert check.exit_code == 0
    done = pams("split", table, "--classes", "bracs", "--fractions", "0.5,0.25,0.25", "--out", tmp_path / "c")
    assert done.exit_code == 0
    assert {record.split for record in Manifest.read(tmp_path / "c" / "manifest.csv")} == {"train", "val", "test"}
    assert pams("split", table, "--classes", "bracs", "--fractions", "a,b", "--out", tmp_path / "d").exit_code == 2


def test_pack_and_unpack(root: Path) -> None:
    done = pams("pack", root / "manifest.csv", "--features", root / "h5_files", "--out", root / "c.pack")
    assert done.exit_code == 0, done.output
    assert "6 bags packed" in done.output
    again = pams("pack", root / "manifest.csv", "--features", root / "h5_files", "--out", root / "c.pack")
    assert "there already" in again.output
    check = pams("check", root / "manifest.csv", "--classes", "bracs", "--features", root / "c.pack")
    assert check.exit_code == 0
    done = pams("unpack", root / "c.pack", "--out", root / "back")
    assert done.exit_code == 0
    for slide in Pack(root / "c.pack"):
        first, second = (read_bag(folder / f"{slide}.h5") for folder in (root / "h5_files", root / "back" / "h5_files"))
        np.testing.assert_array_equal(first.features, second.features)
        np.testing.assert_array_equal(first.coords_px0, second.coords_px0)
    assert pams("unpack", root / "h5_files", "--out", root / "x").exit_code == 2


@pytest.mark.parametrize(
    ("kind", "options", "classes"),
    [
        ("digits", ("train=14", "val=7", "test=7", "noise=0.1"), "digits"),
        ("synthetic", ("classes=bracs", "scale=0.02", "width=8"), "bracs"),
    ],
)
def test_cohort_make(tmp_path: Path, kind: str, options: tuple[str, ...], classes: str) -> None:
    words = [word for option in options for word in ("--set", option)]
    done = pams("cohort", "make", kind, tmp_path / "c", *words)
    assert done.exit_code == 0, done.output
    check = pams("check", tmp_path / "c/manifest.csv", "--classes", classes, "--features", tmp_path / "c/h5_files")
    assert check.exit_code == 0, check.output
    assert (tmp_path / "c" / "instance_labels.csv").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("digitz",), "Did you mean 'digits'"),
        (("digits", "--set", "nois=1"), "Did you mean 'noise'"),
        (("digits", "--set", "train=many"), "must be a number"),
        (("cifar10",), "--source"),
    ],
)
def test_cohort_make_refuses(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = pams("cohort", "make", words[0], tmp_path / "c", *words[1:])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_check_and_split_import_no_torch(root: Path) -> None:
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom pams_mil.cli.main import app\n"
        f"root = {str(root)!r}\n"
        "for words in (['check', root + '/manifest.csv', '--classes', 'bracs', '--features', root + '/h5_files'],\n"
        "              ['split', root + '/manifest.csv', '--classes', 'bracs', '--out', root + '/s']):\n"
        "    done = CliRunner().invoke(app, words)\n"
        "    assert done.exit_code == 0, done.output\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


def test_commands_to_copy_are_quoted(tmp_path: Path) -> None:
    """A folder may have a space in its name; the shell must not split it."""
    out = tmp_path / "my cohort"
    shown = pams("cohort", "make", "digits", out, "--set", "train=10", "--set", "val=10", "--set", "test=10").output
    line = next(line for line in shown.splitlines() if line.startswith("Next: pams check "))
    assert shlex.split(line)[3:6] == [str(out / "manifest.csv"), "--features", str(out / "h5_files")]
    config = tmp_path / "my run.yaml"
    assert f"pams train '{config}'" in pams("init", config).output.replace("\n", "")
    assert f"pams train '{config}'" in config.read_text()
