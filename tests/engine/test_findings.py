"""Several findings per slide, from a table with sets to weights that know them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from sklearn.metrics import roc_auc_score
from tests.engine.cohort import TINY_MODELS, settings
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.data.bags.dataset import BagDataset
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.data.tables import read_table
from pams_mil.engine import configure
from pams_mil.engine.inference_loop import infer
from pams_mil.engine.prediction.predict import load, predict
from pams_mil.engine.prediction.tiles import measure
from pams_mil.engine.training.train import train
from pams_mil.engine.training.training_bags import TrainingBags
from pams_mil.errors import PamsError, ParameterError
from pams_mil.evaluate.predictions.findings import called_sets
from pams_mil.evaluate.predictions.join import join_files
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import write_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models.core.batch import BagBatch
from pams_mil.remix.pairing import Pairing
from pams_mil.remix.strategy import create_remix

NAMES = "abcd"
CLASSES = "name: tiny\nclasses:\n  Low: [a, b]\n  High: [c, d]\nfindings: several\nnothing: a\n"
MODELS = {
    **TINY_MODELS,
    "clam_mb": {"name": "clam_mb", "embedding_features": 8, "attention_features": 4},
    "priority": {"name": "priority", "embedding_features": 8, "attention_features": 4},
    "smooth_max": {"name": "priority", "pooling": "smooth_max", "embedding_features": 8},
    "mean_pool": {"name": "mean_pool", "embedding_features": 8},
}


def label_of(present: np.ndarray) -> str:
    return "; ".join(NAMES[k + 1] for k in np.flatnonzero(present)) or "a"


def make_cohort(folder: Path, *, seed: int = 0, count: int = 150) -> Path:
    """Bags whose features 1 to 3 are shifted in one instance for each finding that is present."""
    random = np.random.default_rng(seed)
    records = []
    for number in range(count):
        present = random.random(3) < 0.4
        features = random.standard_normal((int(random.integers(5, 10)), 8)).astype(np.float32)
        for k in np.flatnonzero(present):
            features[k, k + 1] += 6.0
        slide, split = f"s{number}", "train" if number % 3 else "val" if number % 2 else "test"
        write_bag(folder / "bags" / f"{slide}.h5", Bag(features, info=BagInfo(encoder="tiny", tile_px=8)))
        records.append(SlideRecord(slide, f"p{number}", label_of(present), split))
    Manifest(tuple(records)).write(folder / "manifest.csv")
    (folder / "classes.yaml").write_text(CLASSES)
    return folder


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cohort(tmp_path_factory.mktemp("several"))


@pytest.mark.parametrize("method", ["pams", "msce", "ce"])
def test_findings_are_learned_beside_the_most_urgent_one(cohort: Path, tmp_path: Path, method: str) -> None:
    run = train(settings(cohort, method=method, epochs=30, lr=5e-3), tmp_path / "run")
    loaded, manifest = load(run.path), Manifest.read(cohort / "manifest.csv").select("test")
    hierarchy = ClassHierarchy.load(cohort / "classes.yaml")
    bags = BagDataset(manifest, hierarchy, cohort / "bags")
    said = [answer.outcome[0].findings[0] for answer in infer([loaded.learner], bags)]
    present = hierarchy.finding_matrix(record.label for record in manifest)
    p = torch.stack(said).numpy()
    assert np.mean([roc_auc_score(present[:, k], p[:, k]) for k in range(3)]) > 0.85


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_has_a_head_for_findings(cohort: Path, tmp_path: Path, model: str) -> None:
    run = train(settings(cohort, method="pams", model=MODELS[model], epochs=1), tmp_path / "run")
    log = (run.path / "metrics.csv").read_text().splitlines()[0]
    assert "findings" in log
    assert "findings_align" in log
    assert load(run.path).learner.model.findings is not None


def test_a_remixed_bag_has_all_rows_and_findings_of_both(cohort: Path) -> None:
    manifest = Manifest.read(cohort / "manifest.csv").select("train")
    hierarchy = ClassHierarchy.load(cohort / "classes.yaml")
    bags = BagDataset(manifest, hierarchy, cohort / "bags")
    label = {record.slide_id: record.label for record in manifest}
    count = {source.name: len(bags[row].features) for row, source in enumerate(bags.sources)}
    for rule in ("keep_label", "urgent_label", "any"):  # also where the partner may be the more urgent one
        pairing = Pairing(hierarchy, [source.name for source in bags.sources], bags.targets, rule=rule, probability=1.0)
        steps = TrainingBags(bags, seed=0, remix=create_remix("sfr"), pairing=pairing, unite=True)
        mixtures = [bag for bag in map(steps.__getitem__, steps.epoch_keys(0)) if "remixed" in bag.counts]
        assert len(mixtures) > 50
        for bag in mixtures:
            pair = bag.name.split(" remixed with ")
            assert len(bag.features) == sum(count[slide] for slide in pair)
            union = hierarchy.finding_matrix(label[slide] for slide in pair).any(axis=0)
            assert bag.findings == tuple(np.flatnonzero(union))
            assert (bag.target, bag.weight) == (hierarchy.index(label_of(union)), 1.0)


def test_methods_without_a_form_for_sets_are_refused_before_training(cohort: Path, tmp_path: Path) -> None:
    with pytest.raises((ParameterError, PamsError), match="no form for several findings"):
        train(settings(cohort, method="hxe"), tmp_path / "run")
    grid = {**GRID, "methods": ["ce", "hxe"], **data_of(cohort)}
    (tmp_path / "grid.yaml").write_text(json.dumps(grid))
    done = pams("bench", tmp_path / "grid.yaml", "--out", tmp_path / "bench", "--workers", 1)
    assert done.exit_code == 2, done.output
    assert "The method Hxe has no form for several findings per slide." in " ".join(done.output.split())
    assert not (tmp_path / "bench/cells").exists()  # not after an hour of the others


GRID = {"models": [MODELS["mean_pool"]], "seeds": [0], "training": {"epochs": 1}}


def data_of(cohort: Path) -> dict[str, object]:
    data = {"manifest": str(cohort / "manifest.csv"), "features": str(cohort / "bags")}
    return {"classes": str(cohort / "classes.yaml"), "data": data}


def test_benchmarks_take_sets(cohort: Path, tmp_path: Path) -> None:
    grid = {**GRID, "methods": ["ce", "msce"], **data_of(cohort)}
    (tmp_path / "grid.yaml").write_text(json.dumps(grid))
    done = pams("bench", tmp_path / "grid.yaml", "--out", tmp_path / "bench", "--workers", 1, "--resamples", 20)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "bench/report.html").read_text()
    for method in ("ce", "msce"):
        assert f"Findings of {method} on mean_pool at κ = 1" in page


def test_labels_that_cannot_be_meant_are_refused(cohort: Path, tmp_path: Path) -> None:
    text = (cohort / "manifest.csv").read_text().replace(",b,", ",a; b,", 1)
    assert ",a; b," in text
    (tmp_path / "manifest.csv").write_text(text)
    (tmp_path / "classes.yaml").write_text(CLASSES)
    (tmp_path / "bags").symlink_to(cohort / "bags")
    with pytest.raises(PamsError, match="together with a finding"):
        train(settings(tmp_path, method="ce"), tmp_path / "run")


def pams(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def run_folder(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(settings(cohort, method="pams", epochs=10, lr=5e-3), tmp_path_factory.mktemp("run") / "run").path


def test_predictions_name_sets_and_are_read_back(run_folder: Path, cohort: Path, tmp_path: Path) -> None:
    predicted = predict([run_folder], cohort / "manifest.csv", split="test", features=cohort / "bags")
    predicted.write(tmp_path)
    table = read_table(tmp_path / "predictions.csv")
    assert {"target", "prediction", "findings", "p_a", "f_b", "f_d"} <= set(table)
    assert "f_a" not in table
    assert any(";" in label for label in table["target"])
    hierarchy = ClassHierarchy.load(cohort / "classes.yaml")
    for call, sets in zip(table["prediction"], table["findings"], strict=True):
        assert call in [part.strip() for part in sets.split(";")]
    read, memory = read_predictions(tmp_path / "predictions.csv", hierarchy), predicted.labeled("run")
    np.testing.assert_array_equal(read.finding_targets, memory.finding_targets)
    np.testing.assert_allclose(read.finding_probabilities, memory.finding_probabilities)
    np.testing.assert_array_equal(read.target, memory.target)
    write_predictions(tmp_path / "again.csv", read)
    again = read_predictions(tmp_path / "again.csv", hierarchy)
    np.testing.assert_array_equal(read.finding_targets, again.finding_targets)
    np.testing.assert_array_equal(read.finding_probabilities, again.finding_probabilities)


def test_every_verb_takes_a_run_with_findings(run_folder: Path, cohort: Path, tmp_path: Path) -> None:
    done = pams("evaluate", run_folder, "--out", tmp_path / "report", "--resamples", 50)
    assert done.exit_code == 0, done.output
    assert "Findings of" in done.output
    assert "<h2>Findings</h2>" in (tmp_path / "report/report.html").read_text()
    scores = json.loads((tmp_path / "report/scores.json").read_text())["files"][0]["findings"]
    assert [finding["name"] for finding in scores["findings"]] == ["b", "c", "d"]
    checked = pams(
        "check", cohort / "manifest.csv", "--classes", cohort / "classes.yaml", "--features", cohort / "bags"
    )
    assert checked.exit_code == 0, checked.output
    split = pams("split", cohort / "manifest.csv", "--classes", cohort / "classes.yaml", "--folds", 3,
                 "--out", tmp_path / "splits")  # fmt: skip
    assert split.exit_code == 0, split.output
    certified = pams("certify", run_folder, "--alpha", 0.4, "--calibration", "test", "--out", tmp_path / "certified")
    assert certified.exit_code == 0, certified.output
    exported = pams("export", run_folder, "--out", tmp_path / "exported")
    assert exported.exit_code == 0, exported.output
    card = next((tmp_path / "exported").rglob("*.md")).read_text()
    assert "a set of findings for every slide" in card
    assert "`a` means that none was found" in card


def test_foreign_tables_have_one_probability_per_finding(cohort: Path, tmp_path: Path) -> None:
    hierarchy = ClassHierarchy.load(cohort / "classes.yaml")
    lines = ["slide_id,patient_id,target,p_b,p_c,p_d"]
    draw = np.random.default_rng(0)
    for number in range(40):
        present = draw.random(3) < 0.4
        p = np.clip(0.7 * present + 0.3 * draw.random(3), 0, 1)
        lines.append(f"s{number},p{number},{label_of(present)},{','.join(map(repr, p.tolist()))}")
    (tmp_path / "model.csv").write_text("\n".join(lines))
    for weights in ({}, {"b": 3.0, "d": 0.5}):
        read = read_predictions(tmp_path / "model.csv", replace(hierarchy, weights=weights))
        p, w = read.finding_probabilities, read.hierarchy.finding_weights
        for kappa in (0.2, 1.0, 5.0, 40.0):
            np.testing.assert_array_equal(called_sets(read, kappa), p >= 1 / (1 + kappa * w))
    done = pams("audit", tmp_path / "model.csv", "--classes", cohort / "classes.yaml", "--resamples", 50)
    assert done.exit_code == 0, done.output
    (tmp_path / "bad.csv").write_text("\n".join([lines[0], "s0,p0,b,1.2,0,0"]))
    with pytest.raises(PamsError, match=r"from 0 to 1, found 1\.2 in column 'p_b'"):
        read_predictions(tmp_path / "bad.csv", hierarchy)
    (tmp_path / "both.csv").write_text("\n".join([lines[0], "s0,p0,a; b,0.2,0,0"]))
    with pytest.raises(PamsError, match="together with a finding"):
        read_predictions(tmp_path / "both.csv", hierarchy)


def test_certified_sets_are_predicted_and_monitored(run_folder: Path, cohort: Path, tmp_path: Path) -> None:
    made = pams("certify", run_folder, "--findings", 0.4, "--calibration", "test", "--out", tmp_path)
    assert made.exit_code == 0, made.output
    assert "At most 40 % of the findings of a patient are missed" in " ".join(made.output.split())
    other = make_cohort(tmp_path / "new", seed=5, count=60)
    table = read_table(other / "manifest.csv")
    for slide in table["slide_id"]:
        (other / f"bags/{slide}.h5").rename(other / f"bags/new_{slide}.h5")
    rows = zip(table["slide_id"], table["patient_id"], table["label"], strict=True)
    lines = [f"new_{slide},new_{patient},{label}" for slide, patient, label in rows]
    (other / "manifest.csv").write_text("\n".join(["slide_id,patient_id,label", *lines]))
    done = pams(
        "predict", run_folder, other / "manifest.csv", "--features", other / "bags", "--certificate",
        tmp_path / "certificate.json", "--out", tmp_path / "predicted",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = read_table(tmp_path / "predicted/predictions.csv")
    for call, cell in zip(found["certified"], found["certified_findings"], strict=True):
        assert call in cell.split("; ")
    watched = pams("monitor", tmp_path / "certificate.json", tmp_path / "predicted/predictions.csv", "--json")
    assert watched.exit_code == 0, watched.output
    assert json.loads(watched.output)["bounds"][0]["findings"] is True
    headline = pams("certify", run_folder, "--alpha", 0.4, "--calibration", "test", "--out", tmp_path / "headline")
    assert headline.exit_code == 0, headline.output
    again = pams("monitor", tmp_path / "headline/certificate.json", tmp_path / "predicted/predictions.csv", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.output)["bounds"][0]["n"] == 60  # sets as labels count by their most urgent finding


def test_tiles_say_what_speaks_for_each_finding(run_folder: Path) -> None:
    """Attention pooling and a linear head: the evidence of all tiles is the bag's own log-odds."""
    learner = load(run_folder).learner
    features = torch.from_numpy(np.random.default_rng(3).standard_normal((9, 8)).astype(np.float32))
    whole = learner.predict(BagBatch.single(features, "s"), attention=True)
    layers = [layer for layer in measure(learner, features, list(whole.attention), "s") if layer.kind == "finding"]
    assert [layer.name for layer in layers] == ["finding class b", "finding class c", "finding class d"]
    odds = torch.log(whole.findings[0] / (1 - whole.findings[0]))
    np.testing.assert_allclose([layer.values.sum() for layer in layers], odds.numpy(), atol=1e-4)
    assert {layer.scale for layer in layers} == {"sign"}


def test_audits_join_seeds_whose_files_have_one_name(run_folder: Path, cohort: Path, tmp_path: Path) -> None:
    """Every run calls its file predictions.csv: none of them may stand for the others."""
    predicted = predict([run_folder], cohort / "manifest.csv", split="test", features=cohort / "bags")
    for seed in range(3):
        predicted.write(tmp_path / f"seed{seed}")
    done = pams("audit", f"model={tmp_path}/seed*/predictions.csv", "--classes", cohort / "classes.yaml",
                "--resamples", 20, "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    read = read_predictions(tmp_path / "seed0/predictions.csv", ClassHierarchy.load(cohort / "classes.yaml"))
    joined = join_files("model", [read] * 3)
    assert joined.num_seeds == 3
    assert joined.finding_probabilities.shape == (3 * len(read), 3)
    assert joined.finding_targets.shape == (3 * len(read), 3)
    slides = {
        finding["name"]: finding["slides"] for finding in json.loads(done.stdout)["files"][0]["findings"]["findings"]
    }
    assert slides["b"] == int(read.finding_targets[:, 0].sum())  # not once per seed


RECORDED = {  # with the code from before slides could have several findings
    "pams": [
        0.1803002, 0.2638752, 0.2335388, 0.3222858, 0.1939663, 0.2810212, 0.2253962, 0.2996164, 0.2083923, 0.2671388,
        0.2284012, 0.2960677, 0.1986218, 0.2987091, 0.2185373, 0.2841317, 0.215735, 0.3556593, 0.1956164, 0.2329894,
    ],
    "ce": [
        0.2132616, 0.2813696, 0.2155367, 0.2898321, 0.2323759, 0.2926114, 0.2078399, 0.2671728, 0.2371675, 0.2775455,
        0.2139578, 0.2713293, 0.2362848, 0.3119942, 0.1994908, 0.2522302, 0.2687356, 0.3802611, 0.1616593, 0.189344,
    ],
}  # fmt: skip


@pytest.mark.parametrize("method", sorted(RECORDED))
def test_a_cohort_of_single_labels_trains_as_before(tmp_path: Path, method: str) -> None:
    random, records = np.random.default_rng(0), []
    for number in range(30):
        features = random.standard_normal((6, 8)).astype(np.float32)
        features[0, number % 4] += 4
        write_bag(tmp_path / f"bags/s{number}.h5", Bag(features, info=BagInfo(encoder="tiny", tile_px=8)))
        split = "train" if number % 3 else "val" if number % 2 else "test"
        records.append(SlideRecord(f"s{number}", f"p{number}", NAMES[number % 4], split))
    Manifest(tuple(records)).write(tmp_path / "manifest.csv")
    (tmp_path / "classes.yaml").write_text(CLASSES.partition("findings")[0])
    config = configure(
        tmp_path / "manifest.csv", classes=tmp_path / "classes.yaml", features=tmp_path / "bags", method=method,
        model={"name": "abmil", "embedding_features": 8, "attention_features": 4}, epochs=2, lr=5e-3, seed=1,
        compute={"accelerator": "cpu"}, patience=None,
    )  # fmt: skip
    run = train(config, tmp_path / "run")
    predicted = predict([run.path], tmp_path / "manifest.csv", split="test", features=tmp_path / "bags")
    np.testing.assert_allclose(predicted.probabilities[-1].ravel(), RECORDED[method], atol=2e-6)
    assert predicted.sample.finding_probabilities is None


def test_a_run_of_single_labels_cannot_predict_sets(tmp_path: Path, cohort: Path) -> None:
    (tmp_path / "classes.yaml").write_text(CLASSES.partition("findings")[0])
    table = (cohort / "manifest.csv").read_text()
    single = "\n".join(line for line in table.splitlines() if ";" not in line)
    (tmp_path / "manifest.csv").write_text(single + "\n")
    (tmp_path / "bags").symlink_to(cohort / "bags")
    run = train(settings(tmp_path, method="ce", epochs=1), tmp_path / "run")
    done = pams("predict", run.path, cohort / "manifest.csv", "--features", cohort / "bags", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "names several findings, but the classes of 'tiny' are one per slide" in " ".join(done.output.split())
    bounded = pams("certify", run.path, "--findings", 0.3, "--calibration", "test")
    assert bounded.exit_code == 2
    assert "there are no sets of findings to bound" in " ".join(bounded.output.split())
