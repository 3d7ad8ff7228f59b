"""`pams split`: shares, the table of all folds, and advice about classes that a part lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.tables import read_table


def pams(*words: object, columns: int = 300) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [str(word) for word in words])


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """40 patients with two slides of one class each; IC is rare: two patients."""
    names = ["N", "PB", "UDH", "FEA", "ADH", "DCIS"]
    of = [names[number % 6] for number in range(38)] + ["IC", "IC"]
    rows = [f"s{number}{side},p{number},{label}" for number, label in enumerate(of) for side in "ab"]
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,patient_id,label\n" + "\n".join(rows) + "\n")
    return path


def parts(path: Path, column: str) -> dict[str, set[str]]:
    table = read_table(path)
    found: dict[str, set[str]] = {}
    for patient, part in zip(table["patient_id"], table[column], strict=True):
        found.setdefault(part, set()).add(patient)
    return found


def test_validation_share_of_every_fold(labels: Path, tmp_path: Path) -> None:
    plain = pams("split", labels, "--classes", "bracs", "--folds", 4, "--out", tmp_path / "plain")
    done = pams(
        "split", labels, "--classes", "bracs", "--folds", 4, "--val-share", 0.1, "--calib-share", 0.2,
        "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert (plain.exit_code, done.exit_code) == (0, 0), done.output
    counted = json.loads(done.stdout)["counts"]
    for fold in range(4):
        made = parts(tmp_path / "out/manifest.csv", f"fold_{fold}")
        assert made["test"] == parts(tmp_path / "plain/manifest.csv", f"fold_{fold}")["test"]
        assert abs(len(made["val"]) - 4) <= 2  # a tenth of 40 patients, each class to within one
        assert abs(len(made["calib"]) - 8) <= 2
        assert sum(map(len, made.values())) == 40  # no patient in two parts
        slides = {part: sum(by_class.values()) for part, by_class in counted[fold].items()}
        assert slides == {part: 2 * len(made[part]) for part in slides}


@pytest.mark.parametrize("share", [0.0, 1.0, 0.8])
def test_impossible_shares_are_refused(labels: Path, tmp_path: Path, share: float) -> None:
    done = pams("split", labels, "--classes", "bracs", "--folds", 4, "--val-share", share, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "share" in done.output
    assert not (tmp_path / "out").exists()


def test_the_table_has_all_folds_and_the_advice_names_the_class(labels: Path, tmp_path: Path) -> None:
    done = pams("split", labels, "--classes", "bracs", "--folds", 4, "--out", tmp_path / "out")
    assert "'IC' (2 patients) is not in train of fold 0 and not in val of folds 1, 2" in done.output
    assert "What to do" in done.output
    head = next(line for line in done.output.splitlines() if line.strip().startswith("class"))
    assert all(f"fold {fold}" in head for fold in range(4))
    row = next(line.split() for line in done.output.splitlines() if line.strip().startswith("IC "))
    assert row[:3] == ["IC", "2", "4"]
    assert all(sum(int(count) for count in cell.split("/")) == 4 for cell in row[3:])


def test_a_narrow_terminal_gets_several_whole_tables(labels: Path, tmp_path: Path) -> None:
    done = pams("split", labels, "--classes", "bracs", "--folds", 8, "--out", tmp_path / "out", columns=60)
    lines = done.output.splitlines()
    heads = [line for line in lines if line.strip().startswith("class")]
    assert len(heads) >= 2
    assert all(sum(f"fold {fold}" in head for head in heads) == 1 for fold in range(8))
    assert not any("…" in line for line in lines)


def test_a_split_is_replaced_with_force_alone(labels: Path, tmp_path: Path) -> None:
    words = ("split", labels, "--classes", "bracs", "--folds", 4, "--out", tmp_path / "out")
    assert pams(*words).exit_code == 0
    before = (tmp_path / "out/manifest.csv").read_bytes()
    again = pams(*words, "--seed", 1)
    assert again.exit_code == 2
    assert "already holds a split" in again.output
    assert (tmp_path / "out/manifest.csv").read_bytes() == before
    assert pams(*words, "--seed", 1, "--force").exit_code == 0
    assert (tmp_path / "out/manifest.csv").read_bytes() != before
