"""The paper's grids and studies end to end at a tiny size; tables are checked against the predictions files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.cohorts.cohort_writer import write_cohort
from pams_mil.cohorts.digits import Digits
from pams_mil.engine.config.grid_config import label
from pams_mil.engine.grid.grid import run_cell, run_grid
from pams_mil.engine.run.folder import RunFolder
from pams_mil.errors import ConfigError
from pams_mil.experiments import paper, remix_time
from pams_mil.experiments.derived_rows import read_entries, with_untrained
from pams_mil.metrics import accuracy, ascc

TREE = ClassHierarchy.load("digits")


class InThisProcess:
    """Runs cells one after the other, here."""

    def __init__(self):
        self.ran = []

    def run(self, pending, out, owner):
        for cell in pending:
            self.ran.append(cell.key)
            yield run_cell(cell, str(out), owner, 1)


@pytest.fixture(scope="module")
def changes(tmp_path_factory):
    root = tmp_path_factory.mktemp("paper")
    slides = Digits(train=14, val=7, test=14, smallest=7, largest=9)
    write_cohort(root / "digits", slides.slides(), total=len(slides))
    return [
        f"manifest={root / 'digits' / 'manifest.csv'}", f"features={root / 'digits' / 'h5_files'}", "classes=digits",
        "models=[{name: abmil, embedding_features: 8, attention_features: 4}]", "seeds=[0]", "epochs=1",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


def bench(name, changes, out, monkeypatch):
    """What `pams bench paper:NAME --json` prints, and the runs that it started."""
    engine = InThisProcess()
    monkeypatch.setattr("pams_mil.cli.options.WorkerOptions.start", lambda _: engine)
    command = ["bench", f"paper:{name}", *changes, "--out", str(out), "--resamples", "20", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    page = (out / "report.html").read_text()
    printed = json.loads(done.stdout)
    for table in printed["tables"]:
        assert table["caption"] in page.replace("&#39;", "'").replace("&amp;", "&")
        assert all(len(row) == len(table["head"]) for row in table["rows"])
    return printed, engine.ran


def captioned(printed, words):
    (table,) = [table for table in printed["tables"] if words in table["caption"]]
    return table


def test_the_main_table_agrees_with_the_predictions_files(changes, out, monkeypatch):
    printed, ran = bench("main-table", changes, out, monkeypatch)
    grid = paper.paper_grid("main-table", changes)
    first, *rest = map(label, grid.methods)
    assert [row["method"] for row in printed["rows"]] == [first, "CE + MSCE's cost", *rest, "PAMS, bias removed"]
    assert len(ran) == 13
    names = np.array(TREE.names())
    done = run_grid(grid, out, InThisProcess())
    entries = with_untrained(done, read_entries(done))
    for row in printed["rows"]:
        entry = next(e for e in entries if e.method == row["method"])
        (predictions,) = entry.runs.values()
        expected = [
            f(names[predictions.target].tolist(), names[predictions.predicted].tolist(), TREE) for f in (accuracy, ascc)
        ]
        assert [row["levels"]["class"][key]["value"] for key in ("acc", "ascc")] == pytest.approx(expected)
    numbers = captioned(printed, "The paper's own numbers")
    assert any("80.61" in cell for row in numbers["rows"] for cell in row)
    by_penalty = captioned(printed, "under other penalties P")
    assert [row[0] for row in by_penalty["rows"]] == [first, *rest]


def test_tables_of_one_folder_share_their_runs(changes, out, monkeypatch):
    bench("main-table", changes, out, monkeypatch)
    printed, ran = bench("ablation", changes, out, monkeypatch)
    assert len(ran) == 4
    assert not any("--PAMS--" in key for key in ran)
    assert printed["rows"][0]["method"] == "PAMS"
    assert all(row["against_reference"] is not None for row in printed["rows"] if row["method"].startswith("without"))


def test_mixed_cases_split_the_test_slides(changes, out, monkeypatch):
    printed, _ = bench("mixed-cases", [*changes, "subset=tags=mixed"], out, monkeypatch)
    table = captioned(printed, "Slides with tags = mixed")
    assert {row[2] for row in table["rows"]} == {"mixed", "not mixed"}
    assert (out / "radar-1.svg").read_text().startswith("<svg")
    with pytest.raises(ConfigError, match="subset=COLUMN=VALUE"):
        paper.paper_grid("mixed-cases", changes)


def test_sensitivity_never_looks_at_the_test_split(changes, tmp_path, monkeypatch):
    grid = paper.paper_grid("sensitivity", changes)
    assert grid.split == "val"
    small = [*changes, "methods=[{name: pams, label: 'λ = (2, 1), α = 1.6'}, {name: pams, label: other, alpha: 2.0}]"]
    printed, ran = bench("sensitivity", small, tmp_path, monkeypatch)
    assert len(ran) == 2
    for key in ran:
        folder = RunFolder(tmp_path / "cells" / key)
        assert folder.predictions_file("val").exists()
        assert not folder.predictions_file("test").exists()
    assert "Validation scores" in (tmp_path / "report.html").read_text()
    assert {len(row["runs"]) for row in printed["rows"]} == {1}


def test_the_remix_table_has_every_strategy(changes):
    grid = paper.paper_grid("remix", changes)
    assert [method.options.get("remix") for method in grid.methods] == [
        None, "remix", "pseudomix", "randommix", "sfr"
    ]  # fmt: skip


def test_times_of_every_remix():
    study = remix_time.time_study(repeats=1, growth=(20,))
    beside, grown = study.further.tables
    assert [row[0].text for row in beside.cells] == ["ReMix", "PseudoMix", "RandomMix", "SFR"]
    assert beside.cells[0][3].text == "0.233"
    assert all(float(row[1].text) >= 0 for row in grown.cells)


def test_metrics_see_the_direction_of_mistakes():
    table = paper.metrics_study().further.tables[0]
    heads = [head.text for head in table.heads]
    a, b = (dict(zip(heads, (cell.text for cell in row), strict=True)) for row in table.cells)
    assert (a["Accuracy"], a["ECC"], a["EMC"]) == (b["Accuracy"], b["ECC"], b["EMC"])
    assert float(a["AsCC"]) < float(b["AsCC"])
    assert float(a["AsMC"]) < float(b["AsMC"])
    assert float(a["E(Risk)"]) > float(b["E(Risk)"])


def test_cifar10_reads_class_folders_and_what_an_earlier_run_left(tmp_path, monkeypatch):
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for number, name in enumerate(ClassHierarchy.load("cifar10").names()):
            folder = tmp_path / "cifar" / part / name
            folder.mkdir(parents=True)
            for image in range(count):
                pixels = (20 * number + rng.integers(0, 60, (32, 32, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{image}.png")
    there = [f"source={tmp_path / 'cifar'}", "network=small", "training.epochs=1", "seeds=[0]"]
    printed, _ = bench("cifar10", there, tmp_path / "out", monkeypatch)
    assert [row["method"] for row in printed["rows"]] == ["CE", "Weighted CE (1:10)", "CO2", "CDW-CE", "MSCE"]
    assert any("Expected class" in table["caption"] for table in printed["tables"])
    stored = sorted((tmp_path / "out/cifar10/runs").glob("*/predictions.csv"))
    # The layout that long runs have left on disks.
    losses = ["CDWCELoss", "CELoss", "CO2Loss", "MSCELoss", "WeightedCELoss"]
    assert [path.parent.name for path in stored] == [f"{loss}-seed0" for loss in losses]
    settings = json.loads((stored[0].parent / "settings.json").read_text())
    assert list(settings) == ["budget", "quick", "seed", "loss", "classes", "images"]
    assert settings["budget"] == {"epochs": 1, "batch_size": 128, "lr": 0.001, "weight_decay": 0.0005}
    written = {path: path.stat().st_mtime_ns for path in stored}
    bench("cifar10", there, tmp_path / "out", monkeypatch)
    assert {path: path.stat().st_mtime_ns for path in stored} == written
    # Other images under the same settings are another study: nothing of the first may be shown as theirs.
    Image.fromarray(255 - pixels).save(tmp_path / "cifar/train" / name / "0.png")
    bench("cifar10", there, tmp_path / "out", monkeypatch)
    assert all(path.stat().st_mtime_ns > written[path] for path in stored)
    refused = CliRunner().invoke(app, ["bench", "paper:cifar10", *there, "training.patience=5"])
    assert "patience" in refused.output
    assert "source=FOLDER" in CliRunner().invoke(app, ["bench", "paper:cifar10"]).output


def test_every_table_of_the_paper_is_listed_and_its_rows_are_the_papers(changes):
    assert {*paper.GRIDS, *paper.STUDIES} == {
        "main-table", "ablation", "remix", "sensitivity", "mixed-cases", "metrics", "cifar10", "time",
    }  # fmt: skip
    for name in ("main-table", "ablation", "remix"):
        labels = {label(method) for method in paper.paper_grid(name, changes).methods}
        assert {key[2] for key in paper.paper_numbers(name)} | {"PAMS"} == labels | {"PAMS"}
    assert len(paper.paper_grid("sensitivity", changes).methods) == 21
    assert paper.stretch((1, 2, 7), 4) == pytest.approx([1, 1 + 2 / 3, 2 + 5 / 3, 7])
    with pytest.raises(ConfigError, match="Did you mean 'ablation'"):
        paper.paper_name("paper:ablatio")
    with pytest.raises(ConfigError, match="trains on a cohort, found none"):
        paper.paper_grid("ablation")
