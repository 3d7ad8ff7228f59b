"""A copy of a slide that the model has seen is recognized by its features, whatever its id and however it was saved."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.cli.test_exposure import pams
from tests.engine.cohort import make_cohort, run, settings

from pams_mil.data.bags.layouts import read_bag
from pams_mil.data.exposure import MARK, role_cell
from pams_mil.engine.prediction.predict import predict
from pams_mil.errors import ManifestError


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return make_cohort(tmp_path_factory.mktemp("cohort"))


@pytest.fixture(scope="module")
def trained(cohort, tmp_path_factory):
    return run(settings(cohort, epochs=1), tmp_path_factory.mktemp("runs") / "run")


def test_a_copy_of_a_training_slide_is_a_training_slide_whatever_it_is_called(cohort, trained, tmp_path):
    """Features of a training slide under the name of another hospital's slide and patient."""
    bags = shutil.copytree(cohort / "bags", tmp_path / "bags")
    shutil.copy(bags / "train-3.h5", bags / "foreign-0.h5")
    shutil.copy(bags / "val-1.h5", bags / "foreign-1.h5")
    rows = ["foreign-0,q0,a", "foreign-1,q1,b", *(f"test-{i},q{i + 2},{'abcd'[i % 4]}" for i in range(8))]
    (tmp_path / "hospital.csv").write_text("\n".join(["slide_id,patient_id,label", *rows]) + "\n")
    words = ("evaluate", trained, "--manifest", tmp_path / "hospital.csv", "--features", bags, "--resamples", 0)
    text = pams(*words, code=2)
    assert "1 of 10 patients trained the model ('q0'); 1 of 10 patients chose its epoch ('q1')" in text
    assert "slides with the same features are the same slide, whatever their ids" in text
    assert MARK in pams(*words, "--seen-patients")
    exported = tmp_path / "export"
    pams("export", trained, "--out", exported, "--no-onnx")
    found = predict([exported], tmp_path / "hospital.csv", features=bags)
    assert [role_cell(roles) for roles in found.sample.roles][:3] == ["train", "select", "none"]


def test_a_copy_of_a_calibration_slide_is_no_new_patient_and_counts_once(cohort, trained, tmp_path):
    bags = shutil.copytree(cohort / "bags", tmp_path / "bags")
    rows = [f"test-{i},q{i},{'abcd'[i % 4]}" for i in range(8)]
    for name, more in (("once", []), ("twice", ["copy-0,r0,a"]), ("new", None)):
        listed = [f"copy-{i},r{i},{'abcd'[i % 4]}" for i in range(8)] if more is None else [*rows, *more]
        (tmp_path / f"{name}.csv").write_text("\n".join(["slide_id,patient_id,label", *listed]) + "\n")
    for i in range(8):
        shutil.copy(bags / f"test-{i}.h5", bags / f"copy-{i}.h5")
    ask = ("certify", trained, "--alpha", "0.4", "--features", bags, "--out", tmp_path / "c", "--calibration")
    text = pams(*ask, tmp_path / "twice.csv", code=2)
    assert "Slides have the features of one of another patient, and the guarantee counts patients: 'copy-0'" in text
    pams(*ask, tmp_path / "once.csv")
    made = tmp_path / "c" / "certificate.json"
    pams("predict", trained, tmp_path / "new.csv", "--features", bags, "--certificate", made, "--out", tmp_path / "p")
    assert "8 of 8 patients are calibration patients" in pams("monitor", made, tmp_path / "p/predictions.csv", code=2)


def test_a_training_slide_that_was_saved_again_is_a_training_slide(cohort, trained, tmp_path):
    """Other bytes, compression, chunks, precision and layout; the features are the same."""
    bags, source = tmp_path / "bags", cohort / "bags"
    bags.mkdir()
    features = read_bag(source / "train-3.h5").features
    with h5py.File(bags / "zipped.h5", "w") as file:
        file.create_dataset("features", data=features, chunks=(1, 8), compression="gzip")
        file.create_dataset("coords", data=np.zeros((len(features), 2), np.int32))
    np.save(bags / "half.npy", features.astype(np.float16))
    torch.save(torch.from_numpy(features.astype(np.float64)), bags / "double.pt")
    save_file({"features": features}, bags / "safe.safetensors")
    np.save(bags / "other.npy", read_bag(source / "train-3.h5").features[::-1].copy())
    names = ["zipped", "half", "double", "safe", "other"]
    rows = [f"{name},q-{name},a" for name in names]
    (tmp_path / "hospital.csv").write_text("\n".join(["slide_id,patient_id,label", *rows]) + "\n")
    predictions = predict([trained], tmp_path / "hospital.csv", features=bags)
    assert [role_cell(roles) for roles in predictions.sample.roles] == ["train"] * 4 + ["none"]
    pams("pack", tmp_path / "hospital.csv", "--features", bags, "--out", tmp_path / "pack")
    packed = predict([trained], tmp_path / "hospital.csv", features=tmp_path / "pack")
    assert packed.sample.roles == predictions.sample.roles


def test_a_slide_saved_again_in_another_split_is_refused_before_training(cohort, tmp_path):
    folder = tmp_path / "cohort"
    shutil.copytree(cohort, folder)
    features = read_bag(folder / "bags/train-0.h5").features
    (folder / "bags/test-0.h5").unlink()
    np.save(folder / "bags/test-0.npy", features.astype(np.float16))
    with pytest.raises(ManifestError, match="2 slides in different splits have equal features: 'train-0', 'test-0'"):
        run(settings(folder, epochs=1), tmp_path / "run")
    check = pams("check", folder / "manifest.csv", "--classes", folder / "classes.yaml", "--features", folder / "bags",
                 code=1)  # fmt: skip
    assert "train-0" in check
    assert "test-0" in check
