"""The part `calib`: taken from train by patient, known everywhere, never trained on."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.data.cohorts import TREE, manifests
from tests.engine.cohort import make_cohort
from tests.engine.cohort import settings as run_settings

from pams_mil.data import Manifest
from pams_mil.data.examine import examine_manifest
from pams_mil.data.manifest.foreign_tables import read_splits, write_splits
from pams_mil.data.splits import split_folds, split_once, with_subset
from pams_mil.engine.training.run_cohort import open_cohort
from pams_mil.errors import ManifestError, ParameterError
from pams_mil.hierarchy import ClassHierarchy


@settings(max_examples=40, deadline=None)
@given(manifest=manifests(), share=st.sampled_from([0.1, 0.2, 0.3]), seed=st.integers(0, 99), folds=st.booleans())
def test_calibration_patients_come_from_train_and_are_whole(manifest, share, seed, folds):
    assume(not folds or len(manifest.patients) >= 4)
    plain = split_folds(manifest, TREE, folds=4, seed=seed) if folds else split_once(manifest, TREE, seed=seed)
    total = len(manifest.patients)
    most = min(len({r.patient_id for r, n in zip(manifest, f, strict=True) if n == "train"}) for f in plain.folds)
    if share * total >= most:
        with pytest.raises(ParameterError, match="leaves none"):
            with_subset("calib", plain, manifest, TREE, share=share, seed=seed)
        return
    made = with_subset("calib", plain, manifest, TREE, share=share, seed=seed)
    for before, after in zip(plain.folds, made.folds, strict=True):
        changed = {(one, two) for one, two in zip(before, after, strict=True) if one != two}
        assert changed <= {("train", "calib")}
        homes = {}
        for record, name in zip(manifest, after, strict=True):
            homes.setdefault(record.patient_id, set()).add(name)
        assert all(len(names) == 1 for names in homes.values())
        moved = sum(names == {"calib"} for names in homes.values())
        assert abs(moved - share * total) < 1 + TREE.num_classes()
    assert with_subset("calib", plain, manifest, TREE, share=share, seed=seed) == made


def test_shares_that_make_no_sense(tmp_path):
    folder = make_cohort(tmp_path)
    manifest, tree = Manifest.read(folder / "manifest.csv"), ClassHierarchy.load(folder / "classes.yaml")
    for share in (0, 1, -0.5, float("nan")):
        with pytest.raises(ParameterError, match="above 0 and below 1"):
            with_subset("calib", split_once(manifest, tree), manifest, tree, share=share)


def calibrated(folder):
    """The cohort with its first four training slides, one of each class, in calib."""
    lines = (folder / "manifest.csv").read_text().replace("train-0,p-train-0,a,train", "train-0,p-train-0,a,calib")
    for number, label in enumerate("abcd"):
        old = f"train-{number},p-train-{number},{label},"
        lines = lines.replace(f"{old}train", f"{old}calibration")
    (folder / "manifest.csv").write_text(lines)
    return Manifest.read(folder / "manifest.csv")


def test_calib_is_known_to_tables_and_split_files_and_never_trains(tmp_path):
    folder = make_cohort(tmp_path)
    manifest = calibrated(folder)
    assert [record.slide_id for record in manifest.select("calib")] == [f"train-{number}" for number in range(4)]
    tree = ClassHierarchy.load(folder / "classes.yaml")
    assert not [problem for problem in examine_manifest(manifest, tree) if problem.error]
    write_splits(tmp_path / "splits_0.csv", manifest)
    assert read_splits(tmp_path / "splits_0.csv") == {record.slide_id: record.split for record in manifest}
    cohort = open_cohort(run_settings(folder).data, tree)
    seen = {source.name for part in (cohort.train, cohort.val) for source in part.sources}
    assert not seen & {f"train-{number}" for number in range(4)}


def test_a_calibration_patient_that_also_trains_is_refused(tmp_path):
    folder = make_cohort(tmp_path)
    calibrated(folder)
    text = (folder / "manifest.csv").read_text()
    (folder / "manifest.csv").write_text(text.replace("train-4,p-train-4,", "train-4,p-train-0,"))
    with pytest.raises(ManifestError, match="patients have slides in more than one split"):
        open_cohort(run_settings(folder).data, ClassHierarchy.load(folder / "classes.yaml"))


def test_split_writes_the_part(tmp_path):
    from typer.testing import CliRunner

    from pams_mil.cli.main import app

    table = tmp_path / "labels.csv"
    rows = [f"s{i},p{i // 2},{TREE.names()[i % 7]}" for i in range(280)]
    table.write_text("\n".join(["slide_id,patient_id,label", *rows]) + "\n")
    for words in (["--folds", "5"], []):
        options = ["--classes", "bracs", "--calib-share", "0.2", "--out", str(tmp_path / "o"), "--force"]
        done = CliRunner().invoke(app, ["split", str(table), *words, *options])
        assert done.exit_code == 0, done.output
        assert "calib" in done.output
        found = Manifest.read(tmp_path / "o" / "manifest.csv", fold=0 if words else None)
        assert len(found.select("calib").patients) == pytest.approx(28, abs=4)
