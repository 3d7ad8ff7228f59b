"""Averaged weights: the equation, what validation and prediction use, and a resume that changes no bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.cohort import run, same_weights, settings, weights
from tests.engine.test_kill import MOMENTS, killed_run
from tests.reference import averaging as reference
from torch import nn

from pams_mil.data.tables import read_table
from pams_mil.engine import predict
from pams_mil.engine.prediction.predict import load
from pams_mil.engine.run import checkpoint
from pams_mil.engine.training.optimize import AveragedWeights
from pams_mil.errors import CheckpointError, ConfigError
from pams_mil.evaluate.decisions.probability_calibration import refined_nll

FILES = ("last.safetensors", "best.safetensors")


@given(
    st.lists(st.floats(-100, 100), min_size=2, max_size=30),
    st.floats(0.01, 5),
    st.integers(1, 20),
)
def test_is_the_equation_step_by_step(path, epochs, steps_per_epoch):
    module = nn.ParameterList([torch.tensor([path[0]], dtype=torch.float64)])
    average = AveragedWeights(module, epochs=epochs)
    for value in path[1:]:
        with torch.no_grad():
            module[0].fill_(value)
        average.update(steps_per_epoch=steps_per_epoch)
    expected = reference.averaged(path, epochs, steps_per_epoch)
    assert average.tensors["0"].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert module[0].item() == path[-1]
    with average.in_use():
        assert module[0].item() == average.tensors["0"].item()
    assert module[0].item() == path[-1]


def test_own_weights_come_back_after_an_error():
    module = nn.Linear(2, 2)
    average = AveragedWeights(module, epochs=1.0)
    nn.init.ones_(module.weight)
    with pytest.raises(KeyboardInterrupt), average.in_use():
        raise KeyboardInterrupt
    assert torch.equal(module.weight, torch.ones(2, 2))


@pytest.fixture(scope="module")
def averaged(cohort, tmp_path_factory):
    folder = tmp_path_factory.mktemp("averaged")
    return run(settings(cohort, average=1.0, accumulate=5), folder / "run")


@pytest.mark.parametrize("moment", ["mid-epoch", "after validation", "between best and last", "after the checkpoint"])
def test_resumed_run_is_bit_identical(cohort, averaged, tmp_path, moment):
    config = settings(cohort, average=1.0, accumulate=5)
    killed_run(config, tmp_path / "run", MOMENTS[moment])
    run(config, tmp_path / "run", resume=True)
    for name in FILES:
        assert (tmp_path / "run" / name).read_bytes() == (averaged / name).read_bytes()
    assert (tmp_path / "run/metrics.csv").read_text() == (averaged / "metrics.csv").read_text()


def test_training_goes_on_from_the_trained_weights(cohort, averaged, tmp_path):
    """The mean changes what is validated and kept, never a step."""
    plain = run(settings(cohort, accumulate=5), tmp_path / "plain")
    with_mean, without = weights(averaged / "last.safetensors"), weights(plain / "last.safetensors")
    trained = {name.removeprefix("trained."): one for name, one in with_mean.items() if name.startswith("trained.")}
    assert trained
    assert all(torch.equal(value, without[name]) for name, value in trained.items())
    assert not all(torch.equal(with_mean[name], value) for name, value in trained.items())
    logs = [read_table(folder / "metrics.csv") for folder in (averaged, plain)]
    assert logs[0]["loss"] == logs[1]["loss"]
    assert logs[0]["val_loss"] != logs[1]["val_loss"]


def test_a_mean_over_less_than_a_step_is_the_last_step(cohort, tmp_path):
    short = run(settings(cohort, average=0.01), tmp_path / "short")
    plain = run(settings(cohort), tmp_path / "plain")
    assert same_weights(short / "best.safetensors", plain / "best.safetensors")


def test_validation_and_prediction_use_the_mean(cohort, tmp_path):
    out = run(settings(cohort, average=1.0, select="last"), tmp_path / "run")
    best, last = (checkpoint.load(out / name) for name in ("best.safetensors", "last.safetensors"))
    for part in ("model", "objective"):
        assert best.part(part).keys() == last.part(part).keys()
        assert all(torch.equal(value, last.part(part)[name]) for name, value in best.part(part).items())
    one, two = (load(out, which=which).learner.state_dict() for which in ("best", "last"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    said = predict([out], cohort / "manifest.csv", features=cohort / "bags", split="val")
    expected = refined_nll(said.sample.target, said.probabilities[-1], said.hierarchy)
    assert float(read_table(out / "metrics.csv")["val_refined_nll"][-1]) == pytest.approx(expected, rel=1e-6)


def test_a_checkpoint_without_its_trained_weights_is_refused(cohort, averaged, tmp_path):
    config = settings(cohort, average=1.0, accumulate=5, epochs=3)
    killed_run(config, tmp_path / "run", MOMENTS["mid-epoch"])
    saved = checkpoint.load(tmp_path / "run/last.safetensors")
    kept = {name: value for name, value in saved.tensors.items() if not name.startswith("trained.")}
    checkpoint.save(tmp_path / "run/last.safetensors", checkpoint.Checkpoint(kept, saved.state))
    with pytest.raises(CheckpointError, match="weights to go on training with"):
        run(config, tmp_path / "run", resume=True)


def test_switching_it_on_for_a_run_that_went_without_is_refused(cohort, tmp_path):
    killed_run(settings(cohort), tmp_path / "run", MOMENTS["mid-epoch"])
    with pytest.raises(CheckpointError, match="average"):
        run(settings(cohort, average=1.0), tmp_path / "run", resume=True)


@pytest.mark.parametrize("value", [0, -1, "two"])
def test_bad_values_are_refused(cohort, value):
    with pytest.raises(ConfigError, match="average"):
        settings(cohort, average=value)


@pytest.mark.parametrize(("metric", "best"), [("urgency_auc", max), ("refined_nll", min)])
def test_epochs_can_be_chosen_whatever_the_operating_point(cohort, tmp_path, metric, best):
    out = run(settings(cohort, method="ce", select=metric, epochs=5, lr=1e-2), tmp_path / "run")
    values = [float(value) for value in read_table(out / "metrics.csv")[f"val_{metric}"]]
    facts = checkpoint.load(out / "best.safetensors").state
    assert facts["score"] == best(values)
    assert facts["epoch"] == values.index(best(values)) + 1
