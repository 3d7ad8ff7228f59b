"""What a run guarantees besides surviving kills: no test split, no bad numbers, no mismatches."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.cohort import SIZES, make_cohort, run, same_weights, settings, weights
from tests.forked import PATIENCE_S, Forked, in_child

from pams_mil.data import Bag, BagInfo, read_bag, write_bag
from pams_mil.data.tables import read_table
from pams_mil.engine import open_run
from pams_mil.engine.learner import Learner
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.lock import LOCK, read_lock
from pams_mil.engine.training import loop as fit
from pams_mil.engine.training.run_checkpoints import RunCheckpoints
from pams_mil.errors import BagError, CheckpointError, ManifestError, RunError


def test_run_folder_says_what_was_done(cohort, tmp_path):
    out = run(settings(cohort), tmp_path / "run")
    facts = json.loads((out / "run.json").read_text())
    assert facts["bags"] == {"train": SIZES["train"], "val": SIZES["val"]}
    assert facts["spec"]["classes"]["name"] == "tiny"
    assert facts["spec"]["digest"]
    assert facts["packages"]["torch"]
    assert facts["class_drift_by_remix"]["first_epoch"].keys() == set("abcd")
    status = open_run(out).status()
    assert (status["state"], status["epochs"], status["metric"]) == ("finished", 3, "ascc")
    log = read_table(out / "metrics.csv")
    assert log["epoch"] == ["1", "2", "3"]
    for row in range(3):
        terms = float(log["msce"][row]) + float(log["alignment"][row])
        assert terms == pytest.approx(float(log["loss"][row]), rel=1e-12)
    assert not (out / "run.lock").exists()


def test_loss_falls_and_scores_rise(cohort, tmp_path):
    out = run(settings(cohort, method="ce", epochs=10, lr=2e-2, patience=None), tmp_path / "run")
    log = read_table(out / "metrics.csv")
    assert float(log["loss"][-1]) < 0.2 * float(log["loss"][0])
    assert max(map(float, log["val_acc"])) > 0.8


def test_test_split_cannot_influence_training(tmp_path):
    """Deleted test bags and scrambled test labels leave every byte of the checkpoints as it was."""
    whole = run(settings(make_cohort(tmp_path / "cohort")), tmp_path / "one")
    for bag in (tmp_path / "cohort/bags").glob("test-*"):
        bag.unlink()
    manifest = tmp_path / "cohort/manifest.csv"
    lines = manifest.read_text().splitlines()
    scrambled = [line.replace(",a,", ",NOT A CLASS,") if ",test," in line else line for line in lines]
    scrambled = [line.replace(",b,", ",d,") if ",test," in line else line for line in scrambled]
    assert scrambled != lines
    manifest.write_text("\n".join(scrambled) + "\n")
    other = run(settings(tmp_path / "cohort"), tmp_path / "two")
    for name in ("last.safetensors", "best.safetensors"):
        assert (whole / name).read_bytes() == (other / name).read_bytes()


def test_patient_in_train_and_test_is_refused(tmp_path):
    make_cohort(tmp_path / "cohort")
    manifest = tmp_path / "cohort/manifest.csv"
    manifest.write_text(manifest.read_text().replace("p-test-3", "p-train-3"))
    with pytest.raises(ManifestError, match=r"1 patients have slides in more than one split: 'p-train-3'"):
        run(settings(tmp_path / "cohort"), tmp_path / "run")


def poisoned(monkeypatch, at, value):
    calls, forward = [], Learner.forward

    def patched(self, *args, **kwargs):
        terms = forward(self, *args, **kwargs)
        calls.append(None)
        return {**terms, "alignment": terms["alignment"] * value} if len(calls) == at else terms

    monkeypatch.setattr(Learner, "forward", patched)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_loss_names_slide_and_term(cohort, tmp_path, monkeypatch, value):
    poisoned(monkeypatch, SIZES["train"] + 5, value)
    with pytest.raises(
        RunError, match=r"on slide '.*train-\d+.*' \(\d+ instances\), in epoch 2 after 4 bags: alignment = "
    ):
        run(settings(cohort), tmp_path / "run")
    status = open_run(tmp_path / "run").status()
    assert status["state"] == "failed"
    assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path / "run/last.safetensors").values())
    monkeypatch.undo()
    run(settings(cohort), tmp_path / "run", resume=True)
    whole = run(settings(cohort), tmp_path / "whole")
    assert same_weights(whole / "last.safetensors", tmp_path / "run/last.safetensors")


def test_non_finite_weights_are_not_saved(cohort, tmp_path, monkeypatch):
    """A gradient may overflow on the last step of an epoch, after which no loss is computed any more."""
    original = fit.validate

    def spoil(fabric, learner, bags):
        scores = original(fabric, learner, bags)
        with torch.no_grad():
            next(learner.parameters()).fill_(float("nan"))
        return scores

    run(settings(cohort, epochs=1), tmp_path / "good")
    monkeypatch.setattr(fit, "validate", spoil)
    with pytest.raises(RunError, match="no longer finite"):
        run(settings(cohort), tmp_path / "run")
    assert not (tmp_path / "run/last.safetensors").exists()


def test_non_finite_score_is_never_best(cohort, tmp_path, monkeypatch):
    original, calls = fit.validate, []

    def scored(*args):
        calls.append(None)
        scores = original(*args)
        return {**scores, "ascc": [float("nan"), 0.5, float("inf")][len(calls) - 1]}

    monkeypatch.setattr(fit, "validate", scored)
    out = run(settings(cohort), tmp_path / "run")
    assert open_run(out).status()["best_epoch"] == 2
    monkeypatch.setattr(fit, "validate", lambda *args: {**original(*args), "ascc": float("nan")})
    with pytest.raises(RunError, match="No epoch had a finite validation ascc"):
        run(settings(cohort), tmp_path / "none")


def test_patience_stops_the_run(cohort, tmp_path, monkeypatch):
    original = fit.validate
    monkeypatch.setattr(fit, "validate", lambda *args: {**original(*args), "ascc": 0.5})
    out = run(settings(cohort, epochs=9, patience=2), tmp_path / "run")
    status = open_run(out).status()
    assert (status["epochs"], status["best_epoch"]) == (3, 1)


def test_the_last_epoch_can_be_kept_whatever_its_score(cohort, tmp_path, monkeypatch):
    original, calls = fit.validate, []

    def falling(*args):
        calls.append(None)
        return {**original(*args), "ascc": 1 / len(calls)}

    monkeypatch.setattr(fit, "validate", falling)
    out = run(settings(cohort, epochs=3, patience=1, select="last"), tmp_path / "run")
    status = open_run(out).status()
    assert (status["epochs"], status["best_epoch"]) == (3, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {"name": "pams", "alpha": 2.0}}, r"method.alpha = 1.6, but now it is 2.0"),
        ({"model": "dtfd"}, r"model.*'abmil'.*'dtfd'"),
        ({"lr": 5e-4}, r"training.lr = 0.001, but now it is 0.0005"),
        ({"seed": 3}, r"seed = 0, but now it is 3"),
        ({"compute": {"precision": "bf16-mixed"}}, r"32-true.*bf16-mixed"),
    ],
)
def test_resume_with_other_settings_is_refused(cohort, tmp_path, changes, message):
    run(settings(cohort, epochs=1), tmp_path / "run")
    with pytest.raises(CheckpointError, match=message):
        run(settings(cohort, epochs=1, **changes), tmp_path / "run", resume=True)


def test_resume_on_other_data_is_refused(tmp_path):
    make_cohort(tmp_path / "cohort")
    run(settings(tmp_path / "cohort"), tmp_path / "run")
    manifest = tmp_path / "cohort/manifest.csv"
    text = manifest.read_text()
    manifest.write_text(text.replace("train-0,p-train-0,a", "train-0,p-train-0,b"))
    with pytest.raises(CheckpointError, match=r"the label of slide 'train-0' = 'a', but now it is 'b'"):
        run(settings(tmp_path / "cohort"), tmp_path / "run", resume=True)
    manifest.write_text(text)
    (tmp_path / "cohort/classes.yaml").write_text("name: tiny\nclasses:\n  Low: [[a, b]]\n  High: [c, d]\n")
    with pytest.raises(CheckpointError, match=r"classes.order.class = 'a ≺ b ≺ c ≺ d', but now it is 'a ≡ b ≺ c ≺ d'"):
        run(settings(tmp_path / "cohort"), tmp_path / "run", resume=True)


def test_bag_of_another_width_names_the_slide(tmp_path):
    cohort = make_cohort(tmp_path / "cohort")
    odd = Bag(np.zeros((3, 5), np.float32), info=BagInfo(encoder="tiny", tile_px=8))
    (cohort / "bags/train-5.h5").unlink()
    write_bag(cohort / "bags/train-5.h5", odd)
    with pytest.raises(BagError, match=r"slide 'train-5' has 5 features per tile, but the slide 'train-0' has 8"):
        run(settings(cohort, method="ce"), tmp_path / "run")


def test_every_slide_must_come_from_the_same_encoder(tmp_path):
    """Half of the bags of another encoder have the same shape, and would train to the end."""
    cohort = make_cohort(tmp_path / "cohort")
    for number in range(6, 12):
        path = cohort / f"bags/train-{number}.h5"
        bag = read_bag(path)
        bag = replace(bag, info=replace(bag.info, encoder="other", tile_px=16, mpp=1.0))
        path.unlink()
        write_bag(path, bag)
    with pytest.raises(BagError, match=r"'train-\d+' has encoder = 'other', but the slide 'train-0' has 'tiny'"):
        run(settings(cohort), tmp_path / "run")
    assert open_run(tmp_path / "run").status()["state"] == "failed"


@pytest.mark.parametrize("workers", [0, 2])
def test_slides_that_contradict_each_other_are_found_where_the_first_one_says_nothing(tmp_path, workers):
    cohort = make_cohort(tmp_path / "cohort")
    for path in sorted((cohort / "bags").glob("*.h5")):
        encoder = {"train-3": "one", "train-9": "two"}.get(path.stem)
        bag = read_bag(path)
        bag = replace(bag, info=replace(bag.info, encoder=encoder))
        path.unlink()
        write_bag(path, bag)
    with pytest.raises(BagError, match=r"slide 'train-[39]' has encoder = '(one|two)', but the slide 'train-[39]'"):
        run(settings(cohort, epochs=2, compute={"workers": workers}), tmp_path / "run")


def test_ctrl_c_saves_and_says_how_to_go_on(cohort, tmp_path):
    config = settings(cohort)
    whole = run(config, tmp_path / "whole")

    def interrupted():
        original, calls = fit.forward, []

        def patched(*args):
            calls.append(None)
            if len(calls) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return original(*args)

        fit.forward = patched
        with pytest.raises(fit.RunInterruptedError, match="epoch 1 after 5 bags"):
            run(config, tmp_path / "run")

    assert in_child(interrupted) == 0
    assert open_run(tmp_path / "run").status()["state"] == "interrupted"
    run(config, tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run/last.safetensors", whole / "last.safetensors")


def test_tensorboard_log(cohort, tmp_path):
    pytest.importorskip("tensorboard")
    out = run(settings(cohort, compute={"loggers": ["csv", "tensorboard"]}), tmp_path / "run")
    assert logged_epochs(out) == [1, 2, 3]


def logged_epochs(out):
    """The epochs that TensorBoard shows of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"), purge_orphaned_data=True)
    events.Reload()
    assert "val/ascc" in events.Tags()["scalars"]
    return [event.step for event in events.Scalars("train/loss")]


def test_tensorboard_keeps_what_was_logged_before_an_interruption(cohort, tmp_path):
    pytest.importorskip("tensorboard")
    config = settings(cohort, epochs=4, compute={"loggers": ["csv", "tensorboard"]})

    def interrupted():
        original, calls = fit.forward, []

        def patched(*args):
            calls.append(None)
            if len(calls) == 2 * SIZES["train"] + 3:
                os.kill(os.getpid(), signal.SIGINT)
            return original(*args)

        fit.forward = patched
        with pytest.raises(fit.RunInterruptedError, match="epoch 3 after 3 bags"):
            run(config, tmp_path / "run")

    assert in_child(interrupted) == 0
    time.sleep(1.1)  # TensorBoard reads its files in the order of the seconds in their names
    run(config, tmp_path / "run", resume=True)
    assert logged_epochs(tmp_path / "run") == [1, 2, 3, 4]


def command(*arguments: object, **options: object) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("pams_command.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, script, *map(str, arguments)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def train_arguments(cohort: Path, out: Path, *changes: str) -> list[object]:
    model = "model={name: abmil, embedding_features: 8, attention_features: 4}"
    places = ["train", "--manifest", cohort / "manifest.csv", "--features", cohort / "bags"]
    classes = ["--classes", cohort / "classes.yaml", "--out", out]
    return [*places, *classes, model, "compute.accelerator=cpu", "compute.threads=1", *changes]


def test_command_line_killed_from_outside_and_resumed(cohort, tmp_path):
    last, log = tmp_path / "run/last.safetensors", tmp_path / "log.txt"
    arguments = train_arguments(cohort, tmp_path / "run", "training.epochs=20000", "training.patience=null")
    process = Forked.pams(log, *arguments)
    process.wait_until(last.exists)
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    written = last.stat().st_mtime_ns
    process = Forked.pams(log, "train", "--out", tmp_path / "run", "--resume")
    process.wait_until(lambda: getattr(read_lock(tmp_path / "run" / LOCK), "pid", 0) == process.pid)
    process.wait_until(lambda: last.stat().st_mtime_ns != written)
    process.send(signal.SIGINT)
    assert process.wait() == 130, process.said()
    assert f"pams train --out {tmp_path / 'run'} --resume" in process.said()


def trained_together(alone, together):
    """Both finished with the same parameters, and two processes took other steps than one."""
    assert open_run(together).status()["state"] == "finished"
    assert weights(alone / "best.safetensors").keys() == weights(together / "best.safetensors").keys()
    assert not same_weights(alone / "last.safetensors", together / "last.safetensors")
    return True


def test_two_forked_processes_train_together(cohort, tmp_path):
    """Both take half of the bags, and the weights stay in step."""
    compute = {"devices": 2, "strategy": "ddp_fork"}
    process = Forked(lambda: run(settings(cohort, epochs=1, compute=compute), tmp_path / "run"), tmp_path / "log.txt")
    assert process.wait() == 0, process.said()
    assert trained_together(run(settings(cohort, epochs=1), tmp_path / "single"), tmp_path / "run")


@pytest.mark.slow
def test_two_processes_train_together(cohort, tmp_path):
    """Fabric starts the second process itself; both take half of the bags, and the weights stay in step."""
    arguments = train_arguments(cohort, tmp_path / "run", "training.epochs=2", "compute.devices=2")
    process = command(*arguments)
    text, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, text
    assert trained_together(run(settings(cohort, epochs=2), tmp_path / "single"), tmp_path / "run")


def test_a_collapsed_checkpoint_is_said_before_its_score(cohort, tmp_path, monkeypatch):
    """With weights of zero all slides get the same answer."""

    def forget(*args):
        with torch.no_grad():
            for parameter in args[1].parameters():
                parameter.zero_()
        return original(*args)

    original = fit.validate
    monkeypatch.setattr(fit, "validate", forget)
    out = run(settings(cohort, epochs=1), tmp_path / "run")
    collapsed, few = open_run(out).status()["cautions"]
    assert "is kept, 1, calls 100 % of the validation slides 'a'" in collapsed
    assert "only 8 patients" in few
    assert read_table(out / "metrics.csv")["val_collapsed"] == ["1.0"]
    monkeypatch.undo()
    sound = run(settings(cohort, epochs=8, lr=3e-2, method="ce", select="last"), tmp_path / "sound")
    assert not open_run(sound).status().get("cautions")  # patients that choose nothing cannot choose badly


def test_an_epoch_without_mistakes_is_the_best_by_a_metric_of_mistakes(cohort, tmp_path, monkeypatch):
    """AsMC is infinite without mistakes; it must survive a checkpoint, which holds no infinities."""
    original, calls = fit.validate, []

    def scored(*args):
        calls.append(None)
        return {**original(*args), "asmc": [0.5, math.inf, 0.9, 0.8][len(calls) - 1]}

    monkeypatch.setattr(fit, "validate", scored)
    config = settings(cohort, epochs=4, select="asmc")
    stopping = RunCheckpoints.save_last

    def stop_after_two(self, learner, optimizer, progress, average=None):
        stopping(self, learner, optimizer, progress, average)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunCheckpoints, "save_last", stop_after_two)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "run")
    out = run(config, tmp_path / "run", resume=True)
    status = open_run(out).status()
    assert (status["epochs"], status["best_epoch"], status["best"]) == (4, 2, None)
    assert checkpoint.load(out / "best.safetensors").state["epoch"] == 2
