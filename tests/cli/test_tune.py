"""`pams tune` end to end on a cohort that trains in a blink, in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator
from tests.docs.console_blocks import ROOT
from tests.engine.cohort import make_cohort
from tests.engine.here import Here, Hours
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.engine.grid import engines as local_processes
from pams_mil.engine.grid import grid as benchmark
from pams_mil.engine.tuning import choice
from pams_mil.engine.tuning import tune as tuning
from pams_mil.errors import ConfigError
from pams_mil.notebook import read_tuning

FOLDS = 3
SPACE = """
training: {epochs: 1, lr: 1e-2, patience: null, select: last, average: 1}
try:
  - {pooling: [abmil, mean_pool], drop: [0, 0.5]}
  - {pooling: abmil, loss: pams}
"""


def pams(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(word) for word in words])


@pytest.fixture(autouse=True, scope="module")
def in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_processes, "LocalEngine", Here)
        patch.setattr(choice, "BEST", 4)  # of the five recipes below, so that one of them is not in the mean
        yield


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_cohort(tmp_path_factory.mktemp("cohort"))
    (folder / "space.yaml").write_text(SPACE)
    return folder


def command(cohort: Path, out: Path, *more: object) -> list[object]:
    options = {
        "--classes": cohort / "classes.yaml", "--features": cohort / "bags", "--folds": FOLDS, "--seeds": 2,
        "--space": cohort / "space.yaml", "--resamples": 20, "--budget": 60, "--out": out,
    }  # fmt: skip
    usual = [word for option in options.items() if option[0] not in more for word in option]
    return ["tune", cohort / "manifest.csv", *usual, "accelerator=cpu", "model.embedding_features=8", *more]


@pytest.fixture(scope="module")
def finished(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("out") / "tuned"
    done = pams(*command(cohort, out, "--json"))
    assert done.exit_code == 0, done.output
    assert "8 slides of the split test are held out" in done.stderr
    assert (
        "Plan from rung 1: 5 recipes on 2 of 3 folds x 1 seed, then 3 recipes on 3 of 3 folds x 1 seed" in done.stderr
    )
    schema = json.loads((ROOT / "docs/reference/schemas/tune.schema.json").read_text("utf-8"))
    Draft202012Validator(schema).validate(json.loads(done.stdout))
    return out, json.loads(done.stdout)


def test_rungs_climb_and_the_reference_is_in_all(finished: tuple[Path, dict]) -> None:
    out, found = finished
    shapes = [(len(rung["recipes"]), rung["folds"], rung["seeds"]) for rung in found["rungs"]]
    assert shapes == [(5, 2, [0]), (3, 3, [0]), (3, 3, [0, 1])]
    assert all(rung["recipes"][0] == "abmil-ce" and rung["complete"] for rung in found["rungs"])
    assert found["choice"]["recipe"] in found["rungs"][-1]["recipes"]
    assert found["choice"]["ended"] == ""
    assert found["time"]["runs"] == 5 * 2 + 3 + 3 * 3
    record = json.loads((out / "tune.json").read_text())
    assert record["choice"] == found["choice"]
    assert len(found["choice"]["each_seed"]) == 2


def test_it_shows_itself_in_a_notebook_and_at_the_prompt(finished: tuple[Path, dict], tmp_path: Path) -> None:
    out, found = finished
    tuning = read_tuning(out)
    assert (tuning.recipe, tuning.run) == (found["choice"]["recipe"], Path(found["folder"]))
    lines = repr(tuning).splitlines()
    assert lines[1] == found["choice"]["why"]
    assert lines[2].startswith("The mean of ")
    assert {line.split("  ")[0] for line in lines[5:]} == set(found["asked"]["in_words"])
    html = tuning._repr_html_()
    assert "data:image/svg+xml;base64," in html
    assert html.count("<tr>") == 1 + len(found["asked"]["in_words"])
    with pytest.raises(ConfigError, match="holds no tuning"):
        read_tuning(tmp_path)
    (tmp_path / "tune.json").write_text('{"choice": {}}')
    with pytest.raises(ConfigError, match="has not chosen yet"):
        read_tuning(tmp_path)
    for text in ("[]", "null", "[" * 100_000):
        (tmp_path / "tune.json").write_text(text)
        with pytest.raises(ConfigError, match=r"changed by hand|is not JSON"):
            read_tuning(tmp_path)


def test_the_choice_is_a_cross_validation_like_any_other(cohort: Path, finished: tuple[Path, dict], tmp_path) -> None:
    out, found = finished
    folder = Path(found["recipe_folder"])
    assert folder == out / "recipes" / found["choice"]["recipe"]
    assert len(read_table(folder / "predictions.csv")["slide_id"]) == 20  # train and val; test is held out
    lost = pams("predict", out, cohort / "manifest.csv", "--features", cohort / "bags")
    assert lost.exit_code == 2
    assert f"is a tuning; the mean of its best recipes is {out / 'mean'}" in lost.output
    scored = pams("evaluate", out / "recipes/abmil-ce", folder, "--resamples", 0, "--out", tmp_path / "report")
    assert scored.exit_code == 0, scored.output
    new = pams("predict", folder, cohort / "manifest.csv", "--features", cohort / "bags", "--split", "test", "--json",
               "--out", tmp_path / "predicted")  # fmt: skip
    assert new.exit_code == 0, new.output
    assert len(json.loads(new.stdout)["runs"]) == 2 * FOLDS
    held_out = read_table(folder / "held_out.csv")
    said = {slide["slide_id"]: slide["prediction"] for slide in json.loads(new.stdout)["slides"]}
    assert dict(zip(held_out["slide_id"], held_out["prediction"], strict=True)) == said
    assert len(said) == 8
    assert {found["out_of_fold"]["files"][0]["slides"], found["held_out"]["files"][0]["slides"]} == {20, 8}


def test_it_ends_in_the_mean_of_the_best_five_by_validation(
    cohort: Path, finished: tuple[Path, dict], tmp_path
) -> None:
    out, found = finished
    names, mean = found["choice"]["mean_of"], Path(found["folder"])
    last = [score["recipe"] for score in found["rungs"][-1]["scores"]]
    first = [score["recipe"] for score in found["rungs"][0]["scores"]]
    # Three of the last rung, and the better one of those that were dropped before.
    assert names == [*last, *(name for name in first if name not in last)][:4]
    assert mean == out / "mean"
    tables = [read_table(out / "recipes" / name / "predictions.csv") for name in names]
    pooled = read_table(mean / "predictions.csv")
    for column in ("p_a", "p_d"):
        by_hand = [sum(float(table[column][row]) for table in tables) / 4 for row in range(20)]
        assert [float(cell) for cell in pooled[column]] == pytest.approx(by_hand)
    by_fold = found["choice"]["by_fold"]
    own = read_table(out / "out_of_fold/mean.csv")
    assert own["slide_id"] == pooled["slide_id"]
    for row, fold in enumerate(own["fold"]):
        runs = [out / "recipes" / name / f"fold{fold}{seed}" for name in by_fold[int(fold)]["mean_of"]
                for seed in ("", "-seed1")]  # fmt: skip
        members = (read_table(run / "predictions/manifest-test.csv") for run in runs)
        said = [float(table["p_a"][table["slide_id"].index(own["slide_id"][row])]) for table in members]
        assert float(own["p_a"][row]) == pytest.approx(sum(said) / 8)
    for where, slides in (("held_out", 8), ("out_of_fold", 20)):
        models = [file["name"] for file in found[where]["files"]]
        same = where == "held_out" or all(one["recipe"] == found["choice"]["recipe"] for one in by_fold)
        chosen = found["choice"]["recipe"] if same else "chosen fold by fold"
        assert models == list(dict.fromkeys(["abmil-ce", chosen, "mean of the best 4"]))
        assert found[where]["files"][-1]["slides"] == slides
    new = pams("predict", mean, cohort / "manifest.csv", "--features", cohort / "bags", "--split", "test", "--json",
               "--out", tmp_path / "predicted")  # fmt: skip
    assert new.exit_code == 0, new.output
    assert len(json.loads(new.stdout)["runs"]) == 4 * 2 * FOLDS
    held_out = read_table(mean / "held_out.csv")
    said = {slide["slide_id"]: slide["prediction"] for slide in json.loads(new.stdout)["slides"]}
    assert dict(zip(held_out["slide_id"], held_out["prediction"], strict=True)) == said
    refused = pams("certify", mean, "--calibration", "val", "--alpha", "0.5", "--out", tmp_path / "certified")
    assert refused.exit_code == 2
    assert "chose" in refused.output
    exported = pams("export", mean, "--out", tmp_path / "exported", "--no-onnx")
    assert exported.exit_code == 0, exported.output
    assert (tmp_path / "exported/members" / names[0] / "fold0/model.safetensors").is_file()
    assert "mean of the best 4" in (out / "report.html").read_text()


def test_the_page_says_what_was_tried_and_where_it_was_dropped(finished: tuple[Path, dict]) -> None:
    out, found = finished
    page = (out / "report.html").read_text()
    for name in found["asked"]["recipes"]:
        assert name in page
    assert found["choice"]["why"].replace("'", "&#39;") in page
    assert page.count("dropped after rung 1") == 2
    assert "report_held_out/report.html" in page
    assert (out / "report/report.html").exists()
    assert (out / "report_held_out/report.html").exists()


def test_patients_that_chose_the_recipe_are_said_to_have_and_cannot_certify(finished: tuple[Path, dict]) -> None:
    out, found = finished
    fold = out / "recipes" / found["choice"]["recipe"] / "fold0"
    refused = pams("certify", fold, "--calibration", "test", "--alpha", "0.5")
    assert refused.exit_code == 2
    assert "chose its recipe" in refused.output
    scored = pams("evaluate", fold, "--resamples", 0)
    assert scored.exit_code == 0, scored.output
    assert "chose its recipe" in " ".join(scored.output.split())


def test_weights_of_dropped_recipes_are_gone_and_their_predictions_stay(finished: tuple[Path, dict]) -> None:
    out, found = finished
    dropped = set(found["rungs"][0]["recipes"]) - set(found["rungs"][1]["recipes"])
    assert len(dropped) == 2
    dropped -= set(found["choice"]["mean_of"])
    assert len(dropped) == 1
    for name in dropped:
        assert not list((out / "recipes" / name).glob("fold*/*.safetensors"))
        assert len(list((out / "recipes" / name).glob("fold*/predictions/manifest-val.csv"))) == 2
        tested = {path.parent.parent.name for path in (out / "recipes" / name).glob("fold*/predictions/*-test.csv")}
        wanted = {f"fold{k}{seed}" for k, one in enumerate(found["choice"]["by_fold"]) for seed in ("", "-seed1")
                  if name in one["mean_of"]}  # fmt: skip
        assert tested == wanted  # by the folds that would have it in their mean, and by no other


def test_a_stopped_tuning_goes_on_and_ends_with_the_same_choice(
    cohort: Path, finished: tuple[Path, dict], tmp_path: Path
) -> None:
    out, ran = tmp_path / "tuned", []
    for most in (2, 5, None):
        engine = Here(most=most)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_processes, "LocalEngine", lambda *_, engine=engine: engine)
            done = pams(*command(cohort, out, "--json", "--seeds", 1))
        ran += engine.ran
        if most is not None:
            assert done.exit_code == 130
            assert "Go on with the same command" in done.output
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rungs"] == finished[1]["rungs"][:2]  # those with one seed, of a tuning that nobody stopped
    trained = [key for key in ran if "/" in key]
    assert len(trained) == len(set(trained)) >= 13  # nothing was trained twice; some for a fold alone
    again = pams(*command(cohort, out, "--json", "--seeds", 1))
    assert json.loads(again.stdout)["choice"] == found["choice"]


def test_labels_of_held_out_slides_have_no_way_into_the_choice(finished: tuple[Path, dict], tmp_path: Path) -> None:
    other = make_cohort(tmp_path / "scrambled")
    (other / "space.yaml").write_text(SPACE)
    table = (other / "manifest.csv").read_text().splitlines()
    swap = {"a": "d", "b": "c", "c": "b", "d": "a"}
    rows = [line.split(",") for line in table]
    label = rows[0].index("label")
    for row in rows[1:]:
        if row[0].startswith("test-"):
            row[label] = swap[row[label]]
    (other / "manifest.csv").write_text("\n".join(",".join(row) for row in rows) + "\n")
    done = pams(*command(other, tmp_path / "tuned", "--json", "--seeds", 1))
    assert done.exit_code == 0, done.output
    found, before = json.loads(done.stdout), finished[1]
    assert found["rungs"] == before["rungs"][:2]
    assert found["held_out"]["files"][0]["levels"] != before["held_out"]["files"][0]["levels"]


def test_no_test_part_is_predicted_before_the_choice_is_written(cohort: Path, tmp_path: Path, monkeypatch) -> None:
    order = []
    real, chosen = benchmark.predict_own, tuning.Tuning._choose

    def predict(runs, data, *, split, **options):
        order.append(split)
        return real(runs, data, split=split, **options)

    def choose(self, ended):
        order.append("chosen")
        return chosen(self, ended)

    monkeypatch.setattr(benchmark, "predict_own", predict)
    monkeypatch.setattr(tuning.Tuning, "_choose", choose)
    (tmp_path / "space.yaml").write_text("training: {epochs: 1, select: last}\ntry:\n  - {pooling: mean_pool}\n")
    words = command(cohort, tmp_path / "tuned", "--seeds", 1)
    words[words.index("--space") + 1] = tmp_path / "space.yaml"
    done = pams(*words)
    assert done.exit_code == 0, done.output
    at = order.index("chosen")
    assert set(order[:at]) == {"val"}
    assert set(order[at + 1 :]) == {"test"}


def test_another_tuning_in_the_folder_is_refused_and_another_budget_is_not(
    cohort: Path, finished: tuple[Path, dict]
) -> None:
    out, _ = finished
    other = pams(*command(cohort, out, "epochs=3"))
    assert other.exit_code == 2
    assert "holds another tuning: recipes.abmil-ce.training.epochs was 1 and is now 3" in other.output
    assert pams(*command(cohort, out, "--budget", 90)).exit_code == 0


def in_hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    clock = [0.0]
    engine = Hours(clock)
    timed = tuning.TimedEngine
    monkeypatch.setattr(tuning, "TimedEngine", lambda *args, **kwargs: timed(*args, clock=lambda: clock[0], **kwargs))
    monkeypatch.setattr(local_processes, "LocalEngine", lambda *_: engine)
    return engine


def test_a_short_budget_tries_fewer_recipes_and_says_so(cohort: Path, tmp_path: Path, monkeypatch) -> None:
    in_hours(monkeypatch)
    short = pams(*command(cohort, tmp_path / "tuned", "--budget", 6 * 60))
    assert short.exit_code == 2
    assert "Give at least --budget" in short.output
    done = pams(*command(cohort, tmp_path / "tuned", "--budget", 11 * 60))
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "tuned/tune.json").read_text())
    assert [len(rung["recipes"]) for rung in record["rungs"]] == [2, 2]
    assert "Not tried, because the budget is too short: the last 3 recipes of the space" in done.output
    assert record["choice"]["ended"] == "The budget of 660 minutes does not reach for rung 3"
    assert "measured alike before" in done.output
    more = pams(*command(cohort, tmp_path / "tuned", "--budget", 40 * 60))
    assert more.exit_code == 0, more.output
    record = json.loads((tmp_path / "tuned/tune.json").read_text())
    assert [rung["seeds"] for rung in record["rungs"]] == [[0], [0], [0, 1]]
    assert record["choice"]["ended"] == ""


def test_where_runs_turn_out_faster_the_first_rung_takes_more_recipes(
    cohort: Path, tmp_path: Path, monkeypatch
) -> None:
    in_hours(monkeypatch).slow = 4  # the pilots
    done = pams(*command(cohort, tmp_path / "tuned", "--budget", 11 * 60, "--seeds", 1))
    assert done.exit_code == 0, done.output
    assert "the last 3 recipes of the space" in done.output
    assert "Runs are faster than planned: " in done.output
    first, second = json.loads((tmp_path / "tuned/tune.json").read_text())["rungs"]
    assert len(first["scores"]) == len(first["recipes"]) == 5
    assert len(second["recipes"]) == 3


def test_a_budget_that_ends_within_a_rung_chooses_among_recipes_measured_alike(
    cohort: Path, tmp_path: Path, monkeypatch
) -> None:
    in_hours(monkeypatch)
    monkeypatch.setattr(tuning, "MARGIN", -3.0)  # a plan that hopes for four times the time there is
    done = pams(*command(cohort, tmp_path / "tuned", "--budget", 8 * 60))
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "tuned/tune.json").read_text())
    rung = record["rungs"][0]
    assert not rung["complete"]
    scored = [score["recipe"] for score in rung["scores"]]
    assert "abmil-ce" in scored
    assert 2 <= len(scored) < len(rung["recipes"])
    assert "ended within rung 1" in record["choice"]["ended"]
    assert record["choice"]["recipe"] in scored
    assert (
        len(read_table(tmp_path / "tuned/recipes" / record["choice"]["recipe"] / "predictions.csv")["slide_id"]) == 20
    )


def test_a_recipe_that_fails_is_out_and_the_others_go_on(cohort: Path, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        "training: {epochs: 1, select: last}\ntry:\n  - {pooling: mean_pool}\nrecipes:\n  bad: {training: {lr: 1e30}}\n"
    )
    words = command(cohort, tmp_path / "tuned", "--seeds", 1, "--json")
    words[words.index("--space") + 1] = tmp_path / "space.yaml"
    done = pams(*words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["rungs"][0]["failed"]) == ["bad"]
    assert "not finite" in found["rungs"][0]["failed"]["bad"]
    assert found["rungs"][1]["recipes"] == ["abmil-ce", "mean_pool-ce"]


def test_the_space_can_be_seen_and_what_is_missing_is_said(cohort: Path) -> None:
    listed = pams("tune", "--list", "--space", cohort / "space.yaml")
    assert listed.exit_code == 0
    assert "abmil-pams: abmil, MSCE, levels aligned, SFR on 50 % of the bags, 1 epoch, lr 0.01" in listed.stdout
    assert "5 recipes; unless one says otherwise, with epochs 1" in listed.stdout
    assert "clam_mb-ce-sfr0.5" in pams("tune", "--list").stdout
    nothing = pams("tune")
    assert nothing.exit_code == 2
    assert "Expected a table of labels and --classes" in nothing.output


def test_a_cohort_of_sets_is_tuned(tmp_path: Path) -> None:
    """Chosen by the most urgent finding; what is chosen keeps the findings of its members, and can be certified."""
    from tests.engine.test_findings import make_cohort as make_sets

    cohort, out = make_sets(tmp_path / "cohort", count=60), tmp_path / "tuned"
    (cohort / "space.yaml").write_text(
        SPACE.partition("try:")[0] + "try:\n  - {pooling: mean_pool, loss: [ce, pams]}\n"
    )
    done = pams(*command(cohort, out, "--seeds", 1, "--json"))
    assert done.exit_code == 0, done.output
    tuned = json.loads(done.stdout)
    assert {"mean_pool-ce", "mean_pool-pams"} <= set(tuned["asked"]["in_words"])
    chosen = read_table(Path(tuned["recipe_folder"]) / "predictions.csv")
    assert {"findings", "f_b", "f_c", "f_d"} <= set(chosen)
    done = pams("predict", tuned["folder"], cohort / "manifest.csv", "--features", cohort / "bags", "--split", "test",
                "--out", tmp_path / "predicted")  # fmt: skip
    assert done.exit_code == 0, done.output
    table = read_table(tmp_path / "predicted/predictions.csv")
    assert {"findings", "f_b", "f_c", "f_d"} <= set(table)
    assert any(";" in cell for cell in table["target"])
    done = pams("certify", tmp_path / "predicted/predictions.csv", "--classes", cohort / "classes.yaml",
                "--findings", 0.5, "--out", tmp_path / "certified")  # fmt: skip
    assert done.exit_code == 0, done.output
