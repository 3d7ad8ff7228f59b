"""`pams cv`, and its folds as one model."""

from __future__ import annotations

import html
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from jsonschema import Draft202012Validator
from tests.engine.cohort import make_cohort
from tests.engine.here import Here
from tests.engine.test_ray import OneByOne
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data import Bag
from pams_mil.data.bags.store import FeatureFolder
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.data.tables import read_table
from pams_mil.engine import predict
from pams_mil.engine.grid import engines as local_processes
from pams_mil.engine.grid.folds import folds_of_table
from pams_mil.engine.grid.grid import bag_cache
from pams_mil.errors import ConfigError
from pams_mil.view.opening import Asked, open_session

FOLDS = 3


def pams(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(word) for word in words])


@pytest.fixture(autouse=True, scope="module")
def in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_processes, "LocalEngine", Here)
        yield


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cohort(tmp_path_factory.mktemp("cohort"))


def command(cohort: Path, out: Path, *more: object) -> list[object]:
    return [
        "cv", cohort / "manifest.csv", "--classes", cohort / "classes.yaml", "--features", cohort / "bags",
        "--folds", FOLDS, "--epochs", 1, "--resamples", 20, "--out", out, "accelerator=cpu",
        "model.embedding_features=8", "model.attention_features=4", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "cv"
    done = pams(*command(cohort, out, "--json"))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [fold["slides"] for fold in found["folds"]] == [len(slides_of_fold(out, fold)) for fold in range(FOLDS)]
    assert found["files"][0]["slides"] == 28
    return out


def slides_of_fold(out: Path, fold: int) -> set[str]:
    table = read_table(out / "manifest.csv")
    return {slide for slide, part in zip(table["slide_id"], table[f"fold_{fold}"], strict=True) if part == "test"}


def test_every_slide_is_predicted_by_the_fold_that_tested_it(finished: Path) -> None:
    pooled = read_table(finished / "predictions.csv")
    assert pooled["slide_id"] == read_table(finished / "manifest.csv")["slide_id"]
    for fold in range(FOLDS):
        alone = read_table(finished / f"fold{fold}/predictions/manifest-test.csv")
        assert set(alone["slide_id"]) == slides_of_fold(finished, fold)
        for number, slide in enumerate(alone["slide_id"]):
            row = pooled["slide_id"].index(slide)
            assert pooled["fold"][row] == str(fold)
            same = [name for name in alone if not name.startswith("fold_")]
            assert {"target", "prediction", "p_a", "p_d"} <= set(same)
            assert all(pooled[name][row] == alone[name][number] for name in same)
    assert (finished / "predictions_group.csv").exists()
    assert (finished / "report/report.html").exists()
    assert len(read_table(finished / "folds.csv")["fold"]) == FOLDS


def test_the_same_command_continues_and_another_is_refused(cohort: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_processes, "LocalEngine", lambda *_: Here(most=1))
        stopped = pams(*command(cohort, tmp_path / "cv"))
    assert stopped.exit_code == 130
    assert "Go on with the same command" in stopped.output
    refused = pams("predict", tmp_path / "cv", cohort / "manifest.csv", "--features", cohort / "bags")
    assert refused.exit_code == 2
    assert "not complete: 'fold1', 'fold2' not finished" in refused.output
    other = pams(*command(cohort, tmp_path / "cv", "--lr", 3e-3))
    assert other.exit_code == 2
    assert "training.lr was 0.0001 and is now 0.003" in other.output
    engines: list[Here] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_processes, "LocalEngine", lambda *_: engines.append(Here()) or engines[-1])
        assert pams(*command(cohort, tmp_path / "cv")).exit_code == 0
    assert engines[0].ran == ["fold1", "fold2"]


def test_a_folder_made_of_other_labels_is_refused(cohort: Path, finished: Path, tmp_path: Path) -> None:
    changed = make_cohort(tmp_path / "changed")
    text = (changed / "manifest.csv").read_text()
    (changed / "manifest.csv").write_text(text.replace("train-0,p-train-0,a", "train-0,p-train-0,b"))
    done = pams(*command(changed, finished))
    assert done.exit_code == 2
    assert "the slides, labels or folds (digest)" in done.output


def test_prediction_is_the_mean_of_the_folds(cohort: Path, finished: Path, tmp_path: Path) -> None:
    done = pams("predict", finished, cohort / "manifest.csv", "--features", cohort / "bags", "--json")
    assert done.exit_code == 0, done.output
    assert "28 of 28 slides are of patients that the model has seen" in done.stderr
    found = json.loads(done.stdout)
    assert found["files"][0] == str(finished / "predictions/manifest-all.csv")
    alone = [
        predict([finished / f"fold{fold}"], cohort / "manifest.csv", features=cohort / "bags") for fold in range(FOLDS)
    ]
    for level, name in enumerate(alone[0].hierarchy.level_names):
        together = [list(slide["probabilities"][name].values()) for slide in found["slides"]]
        np.testing.assert_allclose(together, np.mean([one.probabilities[level] for one in alone], 0), atol=1e-12)


def test_evaluate_scores_and_compares_cross_validations(cohort: Path, finished: Path, tmp_path: Path) -> None:
    other = pams(*command(cohort, tmp_path / "ce", "--method", "ce"))
    assert other.exit_code == 0, other.output
    done = pams("evaluate", tmp_path / "ce", finished, "--resamples", 20, "--json", "--out", tmp_path / "report")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [model["slides"] for model in found["files"]] == [28, 28]
    page = (tmp_path / "report" / "report.html").read_text()
    assert f'"view":"pams view {finished}"' in page  # its slides lead to the viewer
    before = (tmp_path / "ce/report/scores.json").read_text()
    assert pams("evaluate", tmp_path / "ce", finished, "--resamples", 0).exit_code == 0
    assert (tmp_path / "ce/report/scores.json").read_text() == before  # which the model card shows
    assert (tmp_path / "ce/reports/predictions-compared/report.html").exists()
    assert pams("audit", finished / "predictions.csv", "--classes", cohort / "classes.yaml", "--resamples", 0, "--out",
                tmp_path / "audit").exit_code == 0  # fmt: skip
    assert f'"view":"pams view {finished}"' in (tmp_path / "audit" / "report.html").read_text()
    wrong = pams("evaluate", finished, "--split", "val")
    assert wrong.exit_code == 2
    external = pams(
        "evaluate", finished, "--manifest", cohort / "manifest.csv", "--features", cohort / "bags", "--json",
        "--resamples", 0, "--out", tmp_path / "external",
    )  # fmt: skip
    assert external.exit_code == 2
    assert "8 of 8 patients trained the model" in external.output


def test_the_folds_of_a_table_are_used_and_a_slide_tested_twice_is_averaged(
    cohort: Path, finished: Path, tmp_path: Path
) -> None:
    table = read_table(finished / "manifest.csv")
    for fold in range(FOLDS):
        table[f"fold_{fold}"][0] = "test"  # as 'pams split --hold-out-tag' does
    table["p_53"] = ["7"] * len(table["slide_id"])  # a column that is no probability
    text = "\n".join(",".join(row) for row in [list(table), *zip(*table.values(), strict=True)])
    (tmp_path / "labels.csv").write_text(text)
    split = folds_of_table(Manifest.read(tmp_path / "labels.csv"))
    assert split is not None
    assert [fold[0] for fold in split.folds] == ["test"] * FOLDS
    words = [str(word) for word in command(cohort, tmp_path / "cv")]
    words[1] = str(tmp_path / "labels.csv")
    del words[words.index("--folds") : words.index("--folds") + 2]
    done = pams(*words)
    assert done.exit_code == 0, done.output
    assert "The table's own 3 folds are used" in done.output
    assert "1 slide is tested in several folds" in done.output
    pooled = read_table(tmp_path / "cv/predictions.csv")
    alone = [read_table(tmp_path / f"cv/fold{fold}/predictions/manifest-test.csv") for fold in range(FOLDS)]
    mean = np.mean([float(one["p_a"][one["slide_id"].index(table["slide_id"][0])]) for one in alone])
    assert float(pooled["p_a"][0]) == pytest.approx(mean)
    assert pooled["p_53"][0] == "7"
    assert pooled["fold"][0] == "0 1 2"


def test_several_seeds_are_averaged_within_a_fold_and_predict_together(cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "cv"
    done = pams(*command(cohort, out, "--seeds", 2, "--seed", 3, "--json"))
    assert done.exit_code == 0, done.output
    assert "tested in several folds" not in done.output
    assert {run.name for run in out.glob("fold*-seed*")} == {f"fold{fold}-seed4" for fold in range(FOLDS)}
    pooled, groups = read_table(out / "predictions.csv"), read_table(out / "predictions_group.csv")
    for fold in range(FOLDS):
        alone = [
            read_table(out / run / "predictions/manifest-test.csv") for run in (f"fold{fold}", f"fold{fold}-seed4")
        ]
        for number, slide in enumerate(alone[0]["slide_id"]):
            row = pooled["slide_id"].index(slide)
            means = {name: np.mean([float(one[f"p_{name}"][number]) for one in alone]) for name in "abcd"}
            assert {name: float(pooled[f"p_{name}"][row]) for name in "abcd"} == pytest.approx(means)
            assert pooled["prediction"][row] == max(means, key=means.__getitem__)
            assert groups["prediction"][row] == ("Low" if pooled["prediction"][row] in "ab" else "High")
            own = max(("Low", "High"), key=lambda group: float(groups[f"p_{group}"][row]))
            assert groups["own_prediction"][row] == own
            expected = "" if own == groups["prediction"][row] else f"group: {own}"
            assert pooled["disagrees"][row] == expected
    assert [fold["slides"] for fold in json.loads(done.stdout)["folds"]] == [
        len(slides_of_fold(out, fold)) for fold in range(FOLDS)
    ]
    new = pams("predict", out, cohort / "manifest.csv", "--features", cohort / "bags", "--json")
    assert len(json.loads(new.stdout)["runs"]) == 2 * FOLDS
    fewer = pams(*command(cohort, out, "--seed", 3))
    assert fewer.exit_code == 2
    assert "seeds was [3, 4] and is now None" in fewer.output


def test_numbered_folds_of_a_table_are_its_folds(tmp_path):
    rows = [f"s{number},p{number},N,{number % 3 + 1},{'test' if number < 3 else ''}" for number in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join(["slide_id,patient_id,label,fold,split", *rows]) + "\n")
    split = folds_of_table(Manifest.read(tmp_path / "labels.csv"))
    assert split.folds == (
        ("test", "val", "train") * 2, ("train", "test", "val") * 2, ("val", "train", "test") * 2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def committee(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "committee"
    done = pams(*committee_command(cohort, out, "--json"))
    assert done.exit_code == 0, done.output
    return out


def committee_command(cohort: Path, out: Path, *more: object) -> list[object]:
    return [
        "cv", cohort / "manifest.csv", "--classes", cohort / "classes.yaml", "--features", cohort / "bags", "--folds",
        FOLDS, "--epochs", 1, "--resamples", 20, "--out", out, "--members", 3, "--reference", 2, "accelerator=cpu",
        *more,
    ]  # fmt: skip


def test_the_report_compares_with_single_and_averaged_networks_and_says_what_members_add(committee: Path) -> None:
    scores = json.loads((committee / "report/scores.json").read_text())
    plain = "AB-MIL with cross-entropy"
    assert [one["name"] for one in scores["files"]] == ["committee of 3", plain, f"{plain}, 2 averaged"]
    assert [(one["candidate"], one["reference"], one["seeds"]) for one in scores["comparisons"]] == [
        ("committee of 3", plain, {"reference": 2, "candidate": 1}),
        ("committee of 3", f"{plain}, 2 averaged", {"reference": 1, "candidate": 1}),
    ]
    schema = json.loads((Path(__file__).parents[2] / "docs/reference/schemas/cv.schema.json").read_text())
    Draft202012Validator(schema["properties"]["committee"]).validate(scores["committee"])
    names = ["mean-hidden", "attention-hidden", "class-attention-sfr"]
    assert [member["name"] for member in scores["committee"]["members"]] == names
    assert "70 % of the instances dropped" in scores["committee"]["members"][0]["recipe"]
    page = (committee / "report/report.html").read_text()
    for sentence in scores["committee"]["sentences"]:
        assert sentence in html.unescape(page)
    assert "Against AB-MIL with cross-entropy (2 networks trained alike, each by itself): " in page


def test_a_committee_is_the_mean_of_its_members(committee: Path) -> None:
    members = sorted((committee / "members").iterdir())
    assert [member.name for member in members] == ["attention-hidden", "class-attention-sfr", "mean-hidden"]
    tables = [read_table(member / "predictions.csv") for member in members]
    pooled = read_table(committee / "predictions.csv")
    for name in (column for column in pooled if column.startswith("p_")):
        mean = np.mean([[float(cell) for cell in table[name]] for table in tables], axis=0)
        np.testing.assert_allclose([float(cell) for cell in pooled[name]], mean, rtol=1e-12)
    assert len(list((committee / "reference").glob("fold*"))) == 2 * FOLDS


def test_a_committee_is_one_model_and_its_members_are_cross_validations(
    committee: Path, cohort: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.csv"
    new.write_text("slide_id\n" + "\n".join(read_table(cohort / "manifest.csv")["slide_id"][:3]) + "\n")
    alone = {}
    for model in (committee, *sorted((committee / "members").iterdir())):
        done = pams("predict", model, new, "--features", cohort / "bags", "--out", tmp_path / model.name)
        assert done.exit_code == 0, done.output
        file = next((tmp_path / model.name).rglob("*predictions*.csv"))
        alone[model.name] = np.array([float(cell) for cell in read_table(file)["p_a"]])
    mean = np.mean([alone[name] for name in alone if name != "committee"], axis=0)
    np.testing.assert_allclose(alone["committee"], mean, atol=1e-6)
    (committee / "report/report.html").unlink()
    assert pams("evaluate", committee, "--resamples", 20).exit_code == 0
    assert "What the committee is worth" in (committee / "report/report.html").read_text()


def test_a_committee_is_viewed_with_its_out_of_fold_calls(committee: Path, cohort: Path, tmp_path: Path) -> None:
    session = open_session(Asked([committee], reviews=tmp_path / "reviews"))
    assert len(session._cases.slide_ids) == 28
    assert len(session._heat.runs) == 3 * FOLDS
    with pytest.raises(ConfigError, match="about the mean of all runs"):
        open_session(Asked([committee], reviews=tmp_path / "reviews", certificate=tmp_path / "certificate.json"))
    new = open_session(
        Asked([committee], manifest=cohort / "manifest.csv", features=cohort / "bags", reviews=tmp_path / "new")
    )
    assert len(new._cases.slide_ids) == 28


def test_a_committee_goes_on_where_it_was_stopped_and_refuses_another(committee: Path, cohort: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in committee.rglob("last.safetensors")}
    assert len(before) == 5 * FOLDS
    done = pams(*committee_command(cohort, committee))
    assert done.exit_code == 0, done.output
    assert {file: file.stat().st_mtime_ns for file in before} == before
    other = pams(*committee_command(cohort, committee, "lr=0.5"))
    assert other.exit_code == 2
    assert "lr" in other.output
    words = [99 if word == 3 and before == "--members" else word for before, word in
             itertools.pairwise([None, *committee_command(cohort, committee.parent / "many")])]  # fmt: skip
    many = pams(*words)
    assert many.exit_code == 2
    assert "8 members, not 99" in many.output


def test_ray_trains_the_same_committee(
    committee: Path, cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = OneByOne()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    words = committee_command(cohort, tmp_path / "cv", "--engine", "ray", "--gpus", 0.5)
    words[words.index("--members") + 1], words[words.index("--reference") + 1] = 2, 0
    done = pams(*words)
    assert done.exit_code == 0, done.output
    assert len(cluster.tasks) == 2 * FOLDS
    assert dict(cluster.said)["options"]["num_gpus"] == 0.5
    for name in ("mean-hidden", "attention-hidden"):
        tables = [read_table(folder / f"members/{name}/predictions.csv") for folder in (committee, tmp_path / "cv")]
        assert tables[0]["p_a"] == tables[1]["p_a"]


def test_members_and_folds_read_a_feature_file_once(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = FeatureFolder.read

    def count(self: FeatureFolder, record: SlideRecord, *, verify: bool = True) -> Bag:
        if sys._getframe(1).f_code.co_filename.endswith("dataset.py"):  # not the checks of a run, which read one bag
            reads.append(record.slide_id)
        return read(self, record, verify=verify)

    monkeypatch.setattr(FeatureFolder, "read", count)
    bag_cache.cache_clear()
    words = committee_command(cohort, tmp_path / "cv")
    words[words.index("--members") + 1], words[words.index("--reference") + 1] = 2, 0
    assert pams(*words).exit_code == 0
    assert sorted(reads) == sorted(read_table(cohort / "manifest.csv")["slide_id"])


def test_options_of_a_committee_are_never_ignored(cohort: Path, tmp_path: Path) -> None:
    alone = pams(*command(cohort, tmp_path / "cv", "--members", 3))
    assert alone.exit_code == 2
    assert "go with a committee" in " ".join(alone.output.split())
    seeds = pams(*committee_command(cohort, tmp_path / "cv", "--seeds", 2))
    assert seeds.exit_code == 2
    assert "--seeds goes with --method" in " ".join(seeds.output.split())
