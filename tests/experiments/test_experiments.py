"""Every experiment end to end at a tiny size; its tables are checked against the predictions files."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pams_mil import ClassHierarchy, discover
from pams_mil.cohorts.cohort_writer import write_cohort
from pams_mil.cohorts.digits import Digits
from pams_mil.engine.grid.benchmark_cell import run_cell
from pams_mil.engine.run.folder import RunFolder
from pams_mil.errors import ConfigError
from pams_mil.evaluate.prediction_layouts import Source, read_predictions
from pams_mil.experiments.arms import ablation_arms, cluster_arms, loss_weight_arms, main_arms, remix_arms, stretch
from pams_mil.experiments.entries import read_entries, together
from pams_mil.experiments.experiments_page import names, write_section
from pams_mil.experiments.printed import printed
from pams_mil.experiments.sensitivity import validation_scores
from pams_mil.experiments.study import Setting, Table, run_arms
from pams_mil.experiments.untrained_arms import with_untrained
from pams_mil.metrics import accuracy, ascc
from pams_mil.report.bench import Entry

TREE = ClassHierarchy.load("digits")


class InThisProcess:
    """Runs cells one after the other, here."""

    def run(self, pending, out, owner):
        for cell in pending:
            yield run_cell(cell, str(out), owner, 1)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    root = tmp_path_factory.mktemp("experiments")
    made = Digits(train=14, val=7, test=14, smallest=7, largest=9)
    write_cohort(root / "digits", made.slides(), total=len(made))
    return Setting(
        out=root / "out",
        classes="digits",
        engine=InThisProcess(),
        manifest=root / "digits" / "manifest.csv",
        features=root / "digits" / "h5_files",
        models=({"name": "abmil", "embedding_features": 8, "attention_features": 4},),
        seeds=(0,),
        training={"epochs": 1, "patience": None},
        resamples=20,
        quick=True,
        tag=("tags", "mixed"),
    )


def run(name, setting):
    section = discover.load("experiments", name.replace("-", "_"))(setting)
    report = write_section(section, setting.out)
    page = report.read_text()
    assert section.title in page
    for figure, _ in section.figures:
        drawn = setting.out / name / f"{figure}.svg"
        assert b"<svg" in drawn.read_bytes()
        if drawn.with_suffix(".png").exists():
            drawn = drawn.with_suffix(".png")
            assert drawn.read_bytes().startswith(b"\x89PNG")
        assert base64.b64encode(drawn.read_bytes()).decode() in page
    for file in section.files:
        assert (setting.out / name / file).stat().st_size > 0
    for table in section.tables:
        assert all(len(row) == len(table.head) for row in table.rows)
    return section


def test_the_main_table_agrees_with_the_predictions_files(setting):
    section = run("main-table", setting)
    bench = json.loads((setting.out / "main-table" / "bench.json").read_text())
    arms = main_arms(TREE)
    first, *rest = (arm.label for arm in arms)
    assert [row["method"] for row in bench["rows"]] == [first, "CE + MSCE's cost", *rest, "PAMS, bias removed"]
    names = np.array(TREE.names())
    done = run_arms(setting, arms)
    entries = with_untrained(done, read_entries(done))
    for row in bench["rows"]:
        entry = next(e for e in entries if e.method == row["method"])
        (predictions,) = entry.runs.values()
        expected = [
            f(names[predictions.target].tolist(), names[predictions.predicted].tolist(), TREE) for f in (accuracy, ascc)
        ]
        assert [row["levels"]["class"][key]["mean"] for key in ("acc", "ascc")] == pytest.approx(expected)
    assert "The paper's own numbers" in section.tables[-1].caption
    assert any("80.61" in cell for table_row in section.tables[-1].rows for cell in table_row)


def test_runs_are_shared_and_not_repeated(setting):
    run_arms(setting, main_arms(TREE)[-1:])  # PAMS

    class Forbidden:
        def run(self, pending, out, owner):
            raise AssertionError([cell.key for cell in pending])

    done = run_arms(replace(setting, engine=Forbidden()), ablation_arms()[:1])
    assert len(done.finished) == 1


@pytest.mark.parametrize("name", ["remix-table", "sensitivity", "time-complexity"])
def test_experiment_runs_to_its_section(setting, name):
    section = run(name, setting)
    assert section.tables
    assert not any("failed" in line for line in section.lines)


def test_ablation_differences_are_from_the_full_model_of_the_same_run(setting):
    section = run("ablation", setting)
    assert not any("failed" in line for line in section.lines)
    bench = json.loads((setting.out / "ablation" / "bench.json").read_text())
    scores = {row["method"]: row["levels"]["class"]["acc"]["mean"] for row in bench["rows"]}
    for _, arm, difference, *_ in section.tables[0].rows:
        assert float(difference.split()[0]) == pytest.approx(100 * (scores[arm] - scores["PAMS"]), abs=0.051)


def test_mixed_cases_split_the_test_slides(setting):
    section = run("mixed-cases", setting)
    assert {row[2] for row in section.tables[0].rows} == {"mixed", "not mixed"}
    with pytest.raises(ConfigError, match="--tag"):
        run("mixed-cases", replace(setting, tag=None))


def test_metric_analysis_needs_no_cohort(setting):
    section = run("metric-analysis", replace(setting, manifest=None))
    a, b = (dict(zip(section.tables[0].head, row, strict=True)) for row in section.tables[0].rows)
    assert (a["Accuracy"], a["ECC"], a["EMC"]) == (b["Accuracy"], b["ECC"], b["EMC"])
    assert float(a["AsCC"]) < float(b["AsCC"])
    assert float(a["AsMC"]) < float(b["AsMC"])
    assert float(a["E(Risk)"]) > float(b["E(Risk)"])


def test_cifar10_reads_a_folder_of_class_folders(setting, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for number, label in enumerate(ClassHierarchy.load("cifar10").names()):
            folder = tmp_path / "cifar" / part / label
            folder.mkdir(parents=True)
            for image in range(count):
                pixels = (20 * number + rng.integers(0, 60, (32, 32, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{image}.png")
    there = replace(
        setting, out=tmp_path / "out", manifest=tmp_path / "cifar", classes="cifar10", training={"epochs": 1}
    )
    section = run("cifar10", there)
    assert [row[1] for row in section.tables[0].rows] == ["CE", "Weighted CE (1:10)", "CO2", "CDW-CE", "MSCE"]
    stored = list((tmp_path / "out" / "cifar10" / "runs").glob("*/predictions.csv"))
    assert len(stored) == 5
    assert len(read_predictions(stored[0], ClassHierarchy.load("cifar10"))) == 20
    written = {path: path.stat().st_mtime_ns for path in stored}
    run("cifar10", there)
    assert {path: path.stat().st_mtime_ns for path in stored} == written
    # Other images under the same settings are another study: nothing of the first may be shown as theirs.
    Image.fromarray(255 - pixels).save(tmp_path / "cifar/train" / label / "0.png")
    run("cifar10", there)
    assert all(path.stat().st_mtime_ns > written[path] for path in stored)
    with pytest.raises(ConfigError, match=r"cifar10: .*'patience'"):
        run("cifar10", replace(there, training={"patience": 5}))


def test_validation_without_any_mistake_has_no_asmc(tmp_path):
    """A score that is not finite is an empty cell of metrics.csv."""
    for key, asmc in (("a", ""), ("b", "0.5"), ("c", "")):
        (tmp_path / key).mkdir()
        (tmp_path / key / "metrics.csv").write_text(f"epoch,val_acc,val_ascc,val_asmc\n1,1.0,1.0,{asmc}\n")
        RunFolder(tmp_path / key).set_status("finished", best_epoch=1)
    cells = [SimpleNamespace(key=key, model="m", method=method) for key, method in (("a", "x"), ("b", "x"), ("c", "y"))]
    scores = validation_scores(SimpleNamespace(finished=cells, out=tmp_path))
    assert scores["m", "x"] == [1.0, 1.0, 0.5]
    assert scores["m", "y"] == pytest.approx([1.0, 1.0, np.nan], nan_ok=True)


def test_every_experiment_is_listed():
    assert set(names()) == {
        "main-table", "ablation", "remix-table", "sensitivity", "mixed-cases", "metric-analysis", "cifar10",
        "time-complexity",
    }  # fmt: skip


def test_arms_are_the_papers():
    assert len(main_arms(TREE)) == 13
    assert {arm.printed for arm in main_arms(TREE)} == {key[2] for key in printed("main_table")}
    assert {arm.printed for arm in ablation_arms()} - {""} == {key[2] for key in printed("ablation")}
    assert {arm.printed for arm in remix_arms()} == {key[2] for key in printed("remix_table")}
    for arms in (loss_weight_arms(), cluster_arms(), main_arms(TREE)):
        assert len({arm.label for arm in arms}) == len(arms)
    assert stretch((1, 2, 7), 4) == pytest.approx([1, 1 + 2 / 3, 2 + 5 / 3, 7])


def test_folds_of_a_seed_are_put_together_only_when_disjoint(setting):
    done = run_arms(setting, main_arms(TREE)[:1])
    path = done.out / done.finished[0].key / "predictions.csv"
    whole = read_predictions(path, TREE, Source(tags=("tags",)))
    halves = [whole.take(np.arange(0, 7)), whole.take(np.arange(7, 14))]
    joined = together("seed 0", halves)
    assert joined is not None
    assert list(joined.slide_ids) == list(whole.slide_ids)
    assert np.array_equal(joined.predicted, whole.predicted)
    assert list(joined.tags["tags"]) == list(whole.tags["tags"])
    assert together("seed 0", [halves[0], whole]) is None
    assert isinstance(read_entries(done)[0], Entry)


def test_a_wide_table_in_a_narrow_terminal_shows_whole_columns(monkeypatch):
    from rich.console import Console

    from pams_mil.cli import experiment

    narrow = Console(width=40, record=True)
    monkeypatch.setattr(experiment, "output", narrow)
    numbers = ("51.3 ± 1.8", "79.2 ± 1.4", "69.3 ± 1.2")
    experiment._show(
        Table("Scores", ("model", "method", "Accuracy", "AUC", "AsCC"), (("AB-MIL", "Cross-entropy", *numbers),))
    )
    shown = narrow.export_text()
    assert "AB-MIL" not in shown  # the same in every row
    assert "51.3±1.8" in shown
    assert "No room here for: AsCC." in shown
    assert "…" not in shown
