"""`training.batch`: bags that go through the model together end where bags one after the other end."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from tests.engine.cohort import make_cohort, run, same_weights, settings
from tests.engine.test_steps import bags_of, learner_of
from tests.forked import in_child

from pams_mil.data.tables import read_table
from pams_mil.engine.training import loop as fit
from pams_mil.engine.training.training_bags import packed

CPU = torch.device("cpu")
RUNS = {
    "remixed": {"pairing": {"probability": 1.0}},
    "keep_label": {"pairing": {"probability": 0.7, "rule": "keep_label"}, "drop_instances": 0.3},
    "soft labels": {"method": {"name": "pams", "remix": "pseudomix"}, "pairing": {"probability": 0.5}},
    "cross-entropy": {"method": "ce", "max_instances": 5},
    "one tower": {"method": "chang"},
    "dtfd": {"model": "dtfd", "pairing": {"probability": 0.5}},
    "dtfd by rank": {
        "model": {"name": "dtfd", "embedding_features": 8, "attention_features": 4, "distillation": "maxmin"},
        "method": {"name": "pams", "align_tier1": True},
    },
    "transmil": {"model": "transmil"},
    "clam": {"model": {"name": "clam_sb", "embedding_features": 8, "attention_features": 4}},
    "mean": {"model": {"name": "mean_pool", "embedding_features": 8}},
    "max": {"model": {"name": "max_pool", "embedding_features": 8}},
    "priority": {"model": {"name": "priority", "embedding_features": 8, "attention_features": 4}, "method": "ce"},
    "smooth maximum": {
        "model": {"name": "priority", "embedding_features": 8, "pooling": "smooth_max"},
        "method": "ce",
    },
    "remembering": {"method": "haf"},
}


def gradients(cohort, sizes, **changes):
    """The gradients of an optimizer step on the first bags of an epoch, in passes of these sizes, and the terms."""
    learner, bags = learner_of(cohort, **changes).train(), bags_of(cohort, **changes)
    keys, terms, total = iter(bags.epoch_keys(0)), {}, sum(sizes)
    for size in sizes:
        pack = [bags[next(keys)] for _ in range(size)]
        fit.seed_everything(CPU, pack[0].seed)
        found = fit.forward(learner, pack, CPU)
        (sum(found.values()) * size / total).backward()
        terms = {name: terms.get(name, 0.0) + value.item() * size / total for name, value in found.items()}
    return {name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None}, terms


@pytest.mark.parametrize("name", [name for name in RUNS if name not in ("transmil", "clam", "remembering")])
def test_a_pack_has_the_gradients_of_its_bags(cohort, name):
    together, terms = gradients(cohort, [8], **RUNS[name])
    apart, expected = gradients(cohort, [1] * 8, **RUNS[name])
    assert together.keys() == apart.keys()
    for parameter, gradient in apart.items():
        torch.testing.assert_close(together[parameter], gradient, rtol=2e-5, atol=2e-6)
    assert terms == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_only_what_draws_nothing_and_remembers_nothing_packs(cohort, name):
    packs = learner_of(cohort, **RUNS[name]).train().packs
    assert packs == (name not in ("transmil", "clam", "remembering"))


@pytest.mark.parametrize("name", ["transmil", "clam", "remembering"])
def test_where_packing_is_not_allowed_a_batch_is_an_accumulation_bit_for_bit(cohort, tmp_path, name):
    changes = {"epochs": 1, **RUNS[name]}
    batch = run(settings(cohort, batch=4, **changes), tmp_path / "batch")
    accumulated = run(settings(cohort, accumulate=4, **changes), tmp_path / "accumulated")
    assert same_weights(batch / "last.safetensors", accumulated / "last.safetensors")


@pytest.mark.parametrize("name", ["keep_label", "dtfd"])
def test_runs_in_batches_log_what_accumulating_runs_log(cohort, tmp_path, name):
    """12 bags: 5 + 5 + 2, and 2 x 2 bags three times."""
    changes = {"epochs": 2, **RUNS[name]}
    for number, (batch, accumulate) in enumerate([(5, 1), (2, 2)]):
        one = run(settings(cohort, batch=batch, accumulate=accumulate, **changes), tmp_path / f"batch {number}")
        two = run(settings(cohort, accumulate=batch * accumulate, **changes), tmp_path / f"accumulated {number}")
        logs = [read_table(out / "metrics.csv") for out in (one, two)]
        assert logs[0].keys() == logs[1].keys()
        for column in ("loss", "val_loss", "val_ascc", "remixed", "dropped"):
            if column in logs[0]:
                assert [float(v) for v in logs[0][column]] == pytest.approx(
                    [float(v) for v in logs[1][column]], rel=1e-4
                )


@pytest.mark.parametrize("model", ["abmil", "dtfd"])
def test_a_killed_run_in_batches_is_resumed_bit_for_bit(cohort, tmp_path, model):
    config = settings(cohort, model=model, batch=4, checkpoint_minutes=1e-9)
    whole = run(config, tmp_path / "whole")

    def victim():
        original, calls = fit.forward, []

        def patched(*args):
            calls.append(None)
            if len(calls) == 5:  # the second batch of the second epoch
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        fit.forward = patched
        run(config, tmp_path / "run")

    assert os.WIFSIGNALED(in_child(victim))
    run(config, tmp_path / "run", resume=True)
    for name in ("last.safetensors", "best.safetensors", "metrics.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()


def test_labels_of_a_pack_fill_up_with_weight_0(cohort):
    bags = bags_of(cohort, method={"name": "pams", "remix": "pseudomix"}, pairing={"probability": 0.5})
    drawn = [bags[key] for key in bags.epoch_keys(0)]
    assert {bag.weight < 1 for bag in drawn} == {True, False}
    *_, targets, weights, _, _ = packed(drawn, CPU)
    assert targets.shape == weights.shape == (2, len(drawn))
    torch.testing.assert_close(weights.sum(0), torch.ones(len(drawn)))
    for column, bag in enumerate(drawn):
        assert targets[0, column] == bag.target
        assert (weights[1, column] == 0) == (bag.weight == 1)
        assert targets[1, column] == (bag.other if bag.weight < 1 else bag.target)


def test_validation_of_packs_is_validation_of_bags(tmp_path, monkeypatch):
    cohort = make_cohort(tmp_path / "cohort", sizes={"val": 40})
    together = run(settings(cohort, epochs=1), tmp_path / "together")
    monkeypatch.setattr("pams_mil.engine.inference_loop.PACKED_BAGS", 1)
    single = run(settings(cohort, epochs=1), tmp_path / "single")
    one, two = (read_table(out / "metrics.csv") for out in (together, single))
    for column in one:
        assert [float(v) for v in one[column]] == pytest.approx([float(v) for v in two[column]], rel=1e-5), column
