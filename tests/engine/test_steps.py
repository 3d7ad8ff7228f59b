"""Single steps: what is drawn, how gradients are combined and clipped, what a log row says."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from lightning_fabric import Fabric
from tests.engine.cohort import SIZES, run, settings, weights

from pams_mil.data.tables import read_table
from pams_mil.engine.config.complete_config import complete, make_method
from pams_mil.engine.config.run_config import TrainingConfig
from pams_mil.engine.run.spec import RunSpec
from pams_mil.engine.training import loop as fit
from pams_mil.engine.training.observers import require_trackers
from pams_mil.engine.training.optimize import check_precision, clip_gradients, learning_rate, make_optimizer
from pams_mil.engine.training.run_cohort import open_cohort
from pams_mil.engine.training.train import training_bags
from pams_mil.engine.training.training_bags import BagLoader
from pams_mil.errors import ConfigError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models.core.devices import torch_threads


def opened(cohort, **changes):
    config = complete(settings(cohort, **changes))
    hierarchy = ClassHierarchy.load(config.classes)
    return config, open_cohort(config.data, hierarchy)


def bags_of(cohort, **changes):
    config, found = opened(cohort, **changes)
    return training_bags(config, found, make_method(config.method))


def learner_of(cohort, **changes):
    config, found = opened(cohort, **changes)
    torch.manual_seed(0)
    return RunSpec.of(config, found.hierarchy, found.slides, found.features).build()


def test_every_slide_once_in_an_order_of_its_own_per_epoch(cohort):
    bags = bags_of(cohort)
    first, second = bags.epoch_keys(0), bags.epoch_keys(1)
    assert sorted(key.slide for key in first) == list(range(SIZES["train"]))
    assert [key.slide for key in first] != [key.slide for key in second]
    assert first == bags_of(cohort).epoch_keys(0)
    assert first != bags_of(cohort, seed=1).epoch_keys(0)


@pytest.mark.parametrize("world_size", [2, 5])
def test_processes_share_an_epoch_in_equal_parts(cohort, world_size):
    bags = bags_of(cohort)
    parts = [bags.epoch_keys(0, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    counts = Counter(key for part in parts for key in part)
    assert set(counts) == set(bags.epoch_keys(0))
    assert sum(counts.values()) - len(counts) == -len(bags) % world_size


def test_epochs_remix_differently_and_the_same_again(cohort):
    bags = bags_of(cohort, pairing={"probability": 1.0})
    names = [[bags[key].name for key in sorted(bags.epoch_keys(epoch))] for epoch in (0, 1)]
    assert names[0] != names[1]
    assert all(" remixed with " in name for name in names[0])
    key = bags.epoch_keys(0)[0]
    assert torch.equal(bags[key].features, bags[key].features)
    assert bags[key].seed != bags[key._replace(epoch=1)].seed


@pytest.mark.parametrize(
    "remix", [{"remix": "sfr"}, {"remix": "randommix"}, {"remix": "sfr", "remix_options": {"selection": "all"}}]
)
def test_remixed_bags_keep_the_label_of_the_drawn_slide(cohort, remix):
    bags = bags_of(cohort, method={"name": "pams", **remix}, pairing={"probability": 1.0, "rule": "keep_label"})
    for key in bags.epoch_keys(0):
        bag = bags[key]
        assert (bag.target, bag.weight) == (bags.bags.targets[key.slide], 1.0)
        assert bag.name.startswith(f"{bags.bags.sources[key.slide].name} remixed with ")


def test_a_rule_that_does_not_suit_the_remix_is_refused(cohort):
    method = {"name": "pams", "remix": "remix"}
    with pytest.raises(ConfigError, match="does not go with this remix"):
        bags_of(cohort, method=method, pairing={"rule": "keep_label"})
    with pytest.raises(ConfigError, match="no option 'own_rank'"):
        bags_of(cohort, pairing={"rule": "keep_label", "own_rank": True})


def test_added_remixes_come_beside_the_bag_itself(cohort):
    bags = bags_of(cohort, pairing={"probability": 1.0, "mode": "add"})
    keys = bags.epoch_keys(0)
    assert len(keys) == 2 * SIZES["train"]
    plain = [key for key in keys if " remixed with " not in bags[key].name]
    assert sorted(key.slide for key in plain) == list(range(SIZES["train"]))


def test_remixed_bags_carry_the_origin_of_their_rows_also_when_capped(cohort):
    for cap in (None, 3):
        bags = bags_of(cohort, pairing={"probability": 1.0}, max_instances=cap)
        for key in bags.epoch_keys(0):
            bag = bags[key]
            (pair,) = bags.pairing.steps(key.slide, 0)
            for row, origin in zip(bag.features, bag.origins.tolist(), strict=True):
                source = bags.bags[pair.a if origin == 0 else pair.b].features
                assert (source == row).all(1).any()
    assert bags_of(cohort, method="ce")[key].origins is None


def test_cap_is_another_choice_every_epoch(cohort):
    bags = bags_of(cohort, method="ce", max_instances=3)
    key = bags.epoch_keys(0)[0]
    assert len(bags[key].features) == 3
    drawn = {bags[key._replace(epoch=epoch)].features.sum().item() for epoch in range(8)}
    assert len(drawn) > 1


def test_loader_leaves_the_global_generator_alone(cohort):
    bags = bags_of(cohort)
    before = torch.random.get_rng_state()
    list(BagLoader(bags, workers=0).bags(bags.epoch_keys(0)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_one_thread_gives_threads_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_one_adam_steps_like_one_per_tier():
    """Why DTFD needs no second optimizer."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)]
    copies = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)]
    for layer, copy in zip(layers, copies, strict=True):
        copy.load_state_dict(layer.state_dict())
    together = make_optimizer(torch.nn.Sequential(*layers), TrainingConfig())
    apart = [make_optimizer(copy, TrainingConfig()) for copy in copies]
    for _ in range(4):
        features = torch.randn(5, 3)
        for pair, optimizers in ((layers, [together]), (copies, apart)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            pair[1](pair[0](features)).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    for layer, copy in zip(layers, copies, strict=True):
        assert torch.equal(layer.weight, copy.weight)


def test_parts_are_clipped_one_by_one(cohort):
    learner = learner_of(cohort, model="dtfd")
    for parameter in learner.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    parts = learner.parts()
    covered = {id(parameter) for part in parts for parameter in part.parameters()}
    assert covered == {id(parameter) for parameter in learner.parameters()}
    clip_gradients(Fabric(accelerator="cpu"), learner, None, TrainingConfig(clip_norm=0.5, clip_each_part=True))
    for part in parts:
        norm = torch.stack([p.grad.norm() for p in part.parameters()]).norm()
        assert norm.item() == pytest.approx(0.5, rel=1e-4)


def test_shared_towers_are_clipped_with_their_heads(cohort):
    learner = learner_of(cohort, method="haf")
    covered = {id(parameter) for part in learner.parts() for parameter in part.parameters()}
    assert covered == {id(parameter) for parameter in learner.parameters()}


def test_schedules():
    cosine = TrainingConfig(epochs=10, lr=1.0, schedule="cosine", warmup_epochs=2)
    rates = [learning_rate(cosine, epoch) for epoch in range(10)]
    assert rates[0] < rates[1] < rates[2] == 1.0
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert 0 < rates[-1] < 0.1


def test_float16_does_not_go_with_clipping_of_parts():
    with pytest.raises(ConfigError, match="16-mixed"):
        check_precision(TrainingConfig(clip_norm=5, clip_each_part=True), "16-mixed")


def test_accumulation_averages_gradients(cohort, tmp_path, monkeypatch):
    """5 + 5 + 2 bags: every optimizer step sees the mean gradient of its own group."""
    seen = []

    def note(fabric, learner, optimizer, training):
        if not seen:
            seen.append({name: tensor.clone() for name, tensor in learner.state_dict().items()})
        seen.append([parameter.grad.clone() for parameter in learner.parameters()])

    monkeypatch.setattr(fit, "clip_gradients", note)
    run(settings(cohort, method="ce", epochs=1, accumulate=5), tmp_path / "run")
    assert len(seen) == 1 + 3
    learner, bags = learner_of(cohort, method="ce"), bags_of(cohort, method="ce")
    learner.load_state_dict(seen[0])
    gradients = []
    for key in bags.epoch_keys(0)[:5]:
        learner.zero_grad()
        sum(fit.forward(learner, [bags[key]], torch.device("cpu")).values()).backward()
        gradients.append([parameter.grad.clone() for parameter in learner.parameters()])
    for index, found in enumerate(seen[1]):
        torch.testing.assert_close(found, torch.stack([one[index] for one in gradients]).mean(0))


def test_half_precision_trains(cohort, tmp_path):
    """It ends near the run in single precision, with finite weights stored in that, but not with the same bits."""
    half = run(settings(cohort, epochs=2, compute={"precision": "bf16-mixed"}), tmp_path / "half")
    full = run(settings(cohort, epochs=2), tmp_path / "full")
    one, two = weights(half / "last.safetensors"), weights(full / "last.safetensors")
    names = [name for name in one if name.startswith("model.")]
    assert names
    assert all(one[name].dtype == torch.float32 for name in names)
    assert all(torch.isfinite(one[name]).all() for name in names)
    assert any(not torch.equal(one[name], two[name]) for name in names)
    assert max(float((one[name] - two[name]).abs().max()) for name in names) < 0.1
    losses = [[float(value) for value in read_table(out / "metrics.csv")["loss"]] for out in (half, full)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_loggers_that_are_not_installed_are_named(name):
    try:
        __import__(name)
    except ImportError:
        with pytest.raises(ConfigError, match=f"pip install {name}"):
            require_trackers((name,))
