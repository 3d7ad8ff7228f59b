"""One spec for every result: written everywhere, compared everywhere, differences named value by value."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.engine.cohort import make_cohort, run, settings
from tests.engine.test_grid import Here, grid_of

from pams_mil.data.tables import read_table
from pams_mil.engine import open_run
from pams_mil.engine.grid.grid import run_grid
from pams_mil.engine.prediction.export import export
from pams_mil.engine.prediction.predict import load
from pams_mil.engine.prediction.scored_runs import predict_to_score
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.spec import RunSpec, differences, refuse_changes, stored_spec
from pams_mil.engine.run.trained_slides import SeenSlide, TrainedSlides
from pams_mil.errors import BagError, CheckpointError, ExposureError, ManifestError, RunError
from pams_mil.evaluate.audit import audit


@pytest.fixture
def own(tmp_path):
    """A cohort that the test may change."""
    return make_cohort(tmp_path / "cohort")


def change_table(cohort, old, new):
    table = cohort / "manifest.csv"
    text = table.read_text()
    assert old in text
    table.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def done(cohort, tmp_path_factory):
    return run(settings(cohort, epochs=1), tmp_path_factory.mktemp("done") / "run")


def test_every_output_carries_the_same_spec_and_the_same_weights(cohort, done, tmp_path):
    facts = json.loads((done / "run.json").read_text())["spec"]
    loaded = load(done)
    assert loaded.spec.to_json() == facts
    assert loaded.spec.origin == {"width": 8, "encoder": "tiny", "tile_px": 8}
    assert facts["features"]["files"].keys() == {"train", "val"}
    assert facts["cohort"]["train"]["slides"] == 12
    assert checkpoint.load(done / "last.safetensors").state["spec"] == facts
    export(done, tmp_path / "export", onnx=False)
    exported = json.loads((tmp_path / "export/config.json").read_text())
    assert (exported["spec"], exported["weights"]) == (facts, loaded.weights)
    assert load(tmp_path / "export").origin == {**loaded.origin, "run": "export"}
    found = predict_to_score([loaded])
    found.write(tmp_path)
    beside = json.loads((tmp_path / "predictions.json").read_text())
    assert beside["made_by"] == [loaded.origin]
    assert beside["files"].keys() >= {"predictions.csv", "predictions_group.csv"}
    scores = audit([found.labeled("run")], resamples=0).to_json()
    assert scores["files"][0]["made_by"] == [loaded.origin]


def test_names_of_patients_stay_in_the_run_folder(done, tmp_path):
    export(done, tmp_path / "export", onnx=False)
    for file in (done / "last.safetensors", done / "best.safetensors", *(tmp_path / "export").iterdir()):
        assert b"p-train-0" not in file.read_bytes(), file
    assert "p-train-0" in (done / "cohort.csv").read_text()


def test_run_says_which_patients_trained_it_and_which_chose_its_epoch(done):
    seen = open_run(done).slides()
    assert seen.patients("train") == tuple(f"p-train-{number}" for number in range(12))
    assert seen.patients("val") == tuple(f"p-val-{number}" for number in range(8))
    assert seen.patients("test") == ()


def test_altered_list_of_slides_is_refused(done, tmp_path):
    copy = shutil.copytree(done, tmp_path / "copy")
    (copy / "cohort.csv").write_text((copy / "cohort.csv").read_text().replace("p-train-3", "p-train-4"))
    with pytest.raises(RunError, match="was changed after it was written"):
        open_run(copy).slides()
    (copy / "cohort.csv").unlink()
    with pytest.raises(RunError, match="cannot be read"):
        open_run(copy).slides()


cells = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)


@given(st.lists(st.tuples(cells, cells, cells, cells, st.sampled_from(["train", "val"])), min_size=1, max_size=6))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_list_of_slides_survives_the_disk(tmp_path, rows):
    slides = TrainedSlides(tuple(SeenSlide(*row) for row in dict.fromkeys(rows)))
    slides.write(tmp_path)
    assert TrainedSlides.read(tmp_path, slides.summary()) == slides


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("p-train-0,a,train", "p-train-0,b,train", r"the label of slide 'train-0' = 'a', but now .* 'b'"),
        ("train-0,p-train-0,", "train-0,p-other,", r"the patient of slide 'train-0' = 'p-train-0', .*'p-other'"),
        ("p-train-0,a,train", "p-train-0,a,val", r"the part of slide 'train-0' = 'train', but now it is 'val'"),
        ("p-train-0,a,train", "p-train-0,a,", r"slide 'train-0' = 'in train', but now it is 'not there'"),
        ("val-7,p-val-7,d,val", "new,p-new,d,val", r"slide 'val-7' = 'in val', but now it is 'not there'; slide 'new'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_resume_names_what_changed_in_the_cohort(own, tmp_path, old, new, message, with_checkpoint):
    """Also before the first checkpoint, where nothing but `run.json` says what was started."""
    config = settings(own, epochs=1)
    out = run(config, tmp_path / "run")
    if not with_checkpoint:
        (out / "last.safetensors").unlink()
    before = (out / "run.json").read_bytes()
    change_table(own, old, new)
    if "new" in new:
        shutil.copy(own / "bags/val-7.h5", own / "bags/new.h5")
    with pytest.raises(CheckpointError, match=message):
        run(config, out, resume=True)
    assert (out / "run.json").read_bytes() == before


def test_resume_on_features_of_another_encoder_is_refused(own, tmp_path):
    from pams_mil.data import read_bag, write_bag

    run(settings(own, epochs=1), tmp_path / "run")
    for path in (own / "bags").glob("*.h5"):
        bag = read_bag(path)
        bag = replace(bag, info=replace(bag.info, encoder="other"))
        path.unlink()
        write_bag(path, bag)
    with pytest.raises(CheckpointError, match=r"features.encoder = 'tiny', but now it is 'other'"):
        run(settings(own, epochs=1), tmp_path / "run", resume=True)


def replace_features(cohort, *slides):
    """Other numbers of the same shape and origin, in the same files."""
    from pams_mil.data import read_bag, write_bag

    for slide in slides:
        path = cohort / "bags" / f"{slide}.h5"
        bag = read_bag(path)
        path.unlink()
        write_bag(path, replace(bag, features=bag.features + 1))


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_resume_on_replaced_features_is_refused(own, tmp_path, with_checkpoint):
    out = run(settings(own, epochs=1), tmp_path / "run")
    if not with_checkpoint:
        (out / "last.safetensors").unlink()
    replace_features(own, "train-3")
    with pytest.raises(CheckpointError, match=r"digest of the feature files.train = .* put the old files back"):
        run(settings(own, epochs=1), out, resume=True)


def test_resume_on_copied_features_goes_on(own, tmp_path):
    """Copies have another time; what they hold is the same."""
    out = run(settings(own, epochs=1), tmp_path / "run")
    before = (out / "metrics.csv").read_text()
    shutil.copytree(own / "bags", tmp_path / "elsewhere")
    config = settings(own, epochs=1)
    run(config.model_copy(update={"data": config.data.model_copy(update={"features": tmp_path / "elsewhere"})}), out,
        resume=True)  # fmt: skip
    assert (out / "metrics.csv").read_text() == before


def test_cells_of_replaced_features_are_not_reused(own, tmp_path):
    grid = grid_of(own, seeds=[0], methods=["ce"])
    assert len(run_grid(grid, tmp_path / "bench", Here()).finished) == 1
    replace_features(own, "test-1")
    engine = Here()
    assert len(run_grid(grid, tmp_path / "bench", engine).finished) == len(engine.ran) == 1  # predicted again
    replace_features(own, "val-1")
    again = run_grid(grid, tmp_path / "bench", Here())
    assert again.finished == []
    assert "digest of the feature files.val" in next(iter(again.failures.values()))


def test_slide_copied_from_train_to_test_is_refused(own, tmp_path):
    shutil.copy(own / "bags/train-2.h5", own / "bags/test-5.h5")
    with pytest.raises(ManifestError, match=r"2 slides in different splits have equal features: 'train-2', 'test-5'"):
        run(settings(own, epochs=1), tmp_path / "run")


def test_missing_features_are_counted_and_point_to_check(own, tmp_path):
    for number in (1, 4, 7):
        (own / f"bags/train-{number}.h5").unlink()
    with pytest.raises(BagError, match=r"3 of 20 slides have no features: 'train-1', .*'pams check' lists them all"):
        run(settings(own, epochs=1), tmp_path / "run")
    assert not (tmp_path / "run/config.yaml").exists()


def test_test_slides_need_no_features_before_they_are_predicted(own, tmp_path):
    (own / "bags/test-0.h5").unlink()
    out = run(settings(own, epochs=1), tmp_path / "run")
    assert (out / "best.safetensors").exists()


def test_table_of_a_cell_is_parsed_once(own, tmp_path, monkeypatch):
    from pams_mil.data.manifest.manifest import Manifest

    parsed = []
    original = Manifest.read
    monkeypatch.setattr(Manifest, "read", lambda *path, **how: (parsed.append(1), original(*path, **how))[1])
    assert len(run_grid(grid_of(own, seeds=[0, 1], methods=["ce"]), tmp_path, Here()).finished) == 2
    assert len(parsed) == 1


def test_resume_with_bags_of_cases_is_refused(own, tmp_path):
    run(settings(own, epochs=1), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"merge_cases = False, but now it is True"):
        run(settings(own, epochs=1, data={"merge_cases": True}), tmp_path / "run", resume=True)


def test_spec_of_another_version_is_refused_in_one_sentence(done):
    content = stored_spec(done).to_json()
    for version in (None, 0, 2, "1"):
        with pytest.raises(CheckpointError, match=r"has run spec version .*; this PAMS reads 1\. Train again,"):
            RunSpec.from_json({**content, "version": version})


def test_differences_name_every_changed_value_once(done):
    spec = stored_spec(done)
    assert differences(spec, spec) == []
    method = {key: value for key, value in spec.settings["method"].items() if key != "align_tier1"}
    other = replace(spec, settings={**spec.settings, "method": {**method, "gone": 1}, "seed": 7})
    assert ("method.gone", None, 1) in differences(spec, other)
    assert ("seed", 0, 7) in differences(spec, other)
    assert len(differences(spec, other)) == 3
    assert differences(spec, other, parts=("classes", "cohort", "features")) == []


def test_checkpoint_stores_method_model_classes_and_features_once(done):
    for name in ("last", "best"):
        text = json.dumps(dict(checkpoint.load(done / f"{name}.safetensors").state))
        assert text.count('"embedding_features"') == 1
        assert text.count('"aliases"') == 1
        assert text.count('"tile_px"') == 1


def test_settings_are_completed_once_per_cell(own, tmp_path, monkeypatch):
    from pams_mil.engine.config import complete_config

    checked = []
    original = complete_config._refuse_unfit
    monkeypatch.setattr(complete_config, "_refuse_unfit", lambda *of: (checked.append(1), original(*of)))
    done = run_grid(grid_of(own, seeds=[0, 1], methods=["ce"]), tmp_path, Here())
    assert len(done.finished) == len(checked) == 2


def test_many_differences_are_counted(done):
    spec = stored_spec(done)
    other = replace(spec, settings={**spec.settings, "training": {}, "method": {"name": "ce"}})
    with pytest.raises(CheckpointError, match=r"and \d+ more differences"):
        refuse_changes(differences(spec, other), done)
    assert RunSpec.from_json(spec.to_json()) == spec


def test_slide_that_trained_a_run_is_not_scored_as_a_test_slide(own, tmp_path):
    out = run(settings(own, epochs=1), tmp_path / "run")
    change_table(own, "p-train-0,a,train", "p-train-0,a,test")
    found = predict_to_score([load(out)])
    with pytest.raises(ExposureError, match=r"1 of 9 patients trained the model \('p-train-0'\)"):
        audit([found.labeled("run")], resamples=0)


def test_cells_of_other_labels_or_classes_are_not_reused(own, tmp_path):
    """Labels swapped in the table, classes in another order: nothing of the earlier benchmark may be shown."""
    grid = grid_of(own, seeds=[0], methods=["ce"])
    assert len(run_grid(grid, tmp_path / "bench", Here()).finished) == 1
    change_table(own, "train-0,p-train-0,a", "train-0,p-train-0,b")
    engine = Here()
    again = run_grid(grid, tmp_path / "bench", engine)
    assert (len(engine.ran), again.finished) == (1, [])
    assert "the label of slide 'train-0' = 'a', but now it is 'b'" in next(iter(again.failures.values()))
    change_table(own, "train-0,p-train-0,b", "train-0,p-train-0,a")
    assert len(run_grid(grid, tmp_path / "bench", Here()).finished) == 1
    (own / "classes.yaml").write_text("name: tiny\nclasses:\n  Low: [b, a]\n  High: [c, d]\n")
    again = run_grid(grid, tmp_path / "bench", Here())
    assert again.finished == []
    assert "classes.order.class = 'a ≺ b ≺ c ≺ d', but now it is 'b ≺ a" in next(iter(again.failures.values()))


def test_changed_test_labels_are_predicted_again_without_training(own, tmp_path):
    grid = grid_of(own, seeds=[0], methods=["ce"])
    done = run_grid(grid, tmp_path, Here())
    folder = done.out / done.cells[0].key
    weights = (folder / "last.safetensors").stat().st_mtime_ns
    change_table(own, "test-0,p-test-0,a", "test-0,p-test-0,c")
    engine = Here()
    assert len(run_grid(grid, tmp_path, engine).finished) == 1
    assert len(engine.ran) == 1
    assert read_table(folder / "predictions/manifest-test.csv")["target"][0] == "c"
    assert (folder / "last.safetensors").stat().st_mtime_ns == weights


def test_altered_predictions_of_a_cell_are_made_again(own, tmp_path):
    grid = grid_of(own, seeds=[0], methods=["ce"])
    done = run_grid(grid, tmp_path, Here())
    file = done.out / done.cells[0].key / "predictions/manifest-test.csv"
    before = file.read_text()
    file.write_text(before.replace(",a,", ",b,"))
    assert done.finished == []
    assert len(run_grid(grid, tmp_path, Here()).finished) == 1
    assert file.read_text() == before


def test_finished_run_is_open_to_read(done):
    assert open_run(done).config().seed == 0
