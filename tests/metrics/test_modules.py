"""The torchmetrics classes keep torchmetrics' contract: accumulate, merge, clone, sync, move, save without pickle."""

from __future__ import annotations

import inspect
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.forked import Forked
from torchmetrics import MetricCollection

from pams_mil import ClassHierarchy
from pams_mil.errors import ParameterError
from pams_mil.metrics import modules
from pams_mil.metrics.metric import METRICS, LabelMetrics
from pams_mil.metrics.modules import SeverityMetric

TREE = ClassHierarchy.load("bracs")
CLASSES = [
    found
    for _, found in inspect.getmembers(modules, inspect.isclass)
    if issubclass(found, SeverityMetric) and found is not SeverityMetric
]
ALL = pytest.mark.parametrize("kind", CLASSES, ids=[kind.__name__ for kind in CLASSES])


def batches(seed: int = 0, sizes: tuple[int, ...] = (5, 1, 40, 0, 14)) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(0, 7, (2, size), generator=generator)) for size in sizes]


def expected(kind: type[SeverityMetric], data: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    S = np.zeros((7, 7), dtype=int)
    for preds, target in data:
        np.add.at(S, (target.numpy(), preds.numpy()), 1)
    return float(LabelMetrics(TREE)(S)[kind.key])


def test_every_severity_metric_has_a_class():
    assert {kind.key for kind in CLASSES} == {
        "ascc", "asmc", "ecc", "emc", "risk", "severe_errors", "missed_rate", "false_alarm_rate",
    }  # fmt: skip


@ALL
def test_accumulation_never_averages_over_batches(kind: type[SeverityMetric]):
    metric, data = kind(TREE), batches()
    for preds, target in data:
        metric.update(preds, target)
    assert float(metric.compute()) == pytest.approx(expected(kind, data), rel=1e-6)
    metric.reset()
    assert int(metric.confusion.sum()) == 0


@ALL
def test_forward_gives_the_batch_value_and_accumulates(kind: type[SeverityMetric]):
    metric, data = kind(TREE), [batch for batch in batches() if len(batch[0])]
    for batch in data:
        assert float(metric(*batch)) == pytest.approx(expected(kind, [batch]), rel=1e-6)
    assert float(metric.compute()) == pytest.approx(expected(kind, data), rel=1e-6)


@ALL
def test_scores_and_labels_agree(kind: type[SeverityMetric]):
    preds, target = batches(3, (30,))[0]
    scores = torch.nn.functional.one_hot(preds, 7).float() + 0.1
    one, two = kind(TREE), kind(TREE)
    one.update(preds, target)
    two.update(scores, target)
    assert torch.equal(one.compute(), two.compute())


@ALL
def test_declared_facts(kind: type[SeverityMetric]):
    metric = kind(TREE)
    assert metric.higher_is_better is METRICS[kind.key].higher_is_better
    assert metric.is_differentiable is False
    assert metric.full_state_update is False
    assert kind.__doc__


@ALL
def test_clone_merge_and_move(kind: type[SeverityMetric]):
    data = batches()
    whole, first = kind(TREE), kind(TREE)
    for batch in data:
        whole.update(*batch)
    for batch in data[:2]:
        first.update(*batch)
    second = first.clone()
    second.reset()
    assert int(first.confusion.sum()) == 6  # the clone has a state of its own
    for batch in data[2:]:
        second.update(*batch)
    first.merge_state(second)
    assert torch.equal(first.to("cpu").compute(), whole.compute())
    assert whole.double().compute().dtype == torch.float32  # the state is counts; dtype casts leave it alone


@ALL
def test_state_dict_round_trip_without_pickle(kind: type[SeverityMetric], tmp_path: Path):
    metric = kind(TREE)
    metric.persistent(True)
    metric.update(*batches()[2])
    assert all(isinstance(value, torch.Tensor) for value in metric.state_dict().values())
    safetensors.torch.save_file(metric.state_dict(), tmp_path / "metric.safetensors")
    restored = kind(TREE)
    restored.persistent(True)
    restored.load_state_dict(safetensors.torch.load_file(tmp_path / "metric.safetensors"))
    assert torch.equal(restored.confusion, metric.confusion)


def test_a_collection_shares_one_state():
    collection = MetricCollection([kind(TREE) for kind in CLASSES])
    data = [batch for batch in batches() if len(batch[0])]
    for preds, target in data:
        collection.update(preds, target)
    found = collection.compute()
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {kind.__name__: expected(kind, data) for kind in CLASSES}, rel=1e-6
    )
    assert len(collection.compute_groups) == 1


def test_levels_with_different_sizes_live_in_one_collection():
    collection = MetricCollection(
        {"three": modules.SevereErrors(TREE, 0), "seven": modules.SevereErrors(TREE, -1)}, compute_groups=True
    )
    collection.update(torch.tensor([0, 2]), torch.tensor([2, 0]))
    collection.update(torch.tensor([0, 2]), torch.tensor([1, 1]))
    assert {name: int(value) for name, value in collection.compute().items()} == {"three": 2, "seven": 2}
    assert collection["three"].confusion.shape == (3, 3)
    assert collection["seven"].confusion.shape == (7, 7)


def test_no_errors_is_infinite():
    metric = modules.AsymmetricMisclassificationConfidence(TREE)
    metric.update(torch.tensor([1, 2]), torch.tensor([1, 2]))
    assert math.isinf(float(metric.compute()))


def test_penalty_and_level_reach_the_metric():
    harsh = modules.AsymmetricClassificationConfidence(TREE, 0, penalty=7)
    harsh.update(torch.tensor([0]), torch.tensor([2]))
    assert float(harsh.compute()) == pytest.approx(1 / (1 + 2 + 7))


@pytest.mark.parametrize(
    ("preds", "target", "message"),
    [
        (torch.tensor([7]), torch.tensor([0]), "preds must hold classes from 0 to 6"),
        (torch.tensor([0]), torch.tensor([-1]), "target must hold classes from 0 to 6"),
        (torch.tensor([0, 1]), torch.tensor([0]), "do not belong together"),
        (torch.tensor([0.7]), torch.tensor([0]), "preds must hold class indices, found torch.float32"),
        (torch.tensor([0]), torch.tensor([0.0]), "target must hold class indices"),
        (torch.zeros(1, 6), torch.tensor([0]), "preds must have 7 scores per sample, found 6"),
        (torch.full((1, 7), torch.nan), torch.tensor([0]), "NaN scores"),
    ],
)
def test_bad_updates_are_refused_and_change_nothing(preds: torch.Tensor, target: torch.Tensor, message: str):
    metric = modules.ExpectedRisk(TREE)
    with pytest.raises(ParameterError, match=message):
        metric.update(preds, target)
    assert int(metric.confusion.sum()) == 0


def test_plot():
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    metric = modules.AsymmetricClassificationConfidence(TREE)
    metric.update(*batches()[2])
    _, axes = metric.plot()
    (drawn,) = [value for line in axes.get_lines() for value in np.ravel(line.get_ydata())]
    assert drawn == pytest.approx(metric.compute().item())
    _, given = metric.plot(torch.tensor(0.25))
    assert given.get_lines()[0].get_ydata()[0] == 0.25
    plt.close("all")


def synced(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    collection = MetricCollection([kind(TREE) for kind in CLASSES])
    for batch in batches(seed=rank):
        if len(batch[0]):
            collection.update(*batch)
    values = {name: value.reshape(1) for name, value in collection.compute().items()}
    safetensors.torch.save_file(values, f"{folder}/{rank}.safetensors")
    torch.distributed.destroy_process_group()


def test_two_processes_see_the_metric_of_all_samples(tmp_path: Path):
    processes = [Forked(partial(synced, rank, str(tmp_path)), tmp_path / f"{rank}.txt") for rank in range(2)]
    for process in processes:
        assert process.wait() == 0, process.said()
    data = batches(0) + batches(1)
    for rank in range(2):
        found = safetensors.torch.load_file(tmp_path / f"{rank}.safetensors")
        for kind in CLASSES:
            assert float(found[kind.__name__]) == pytest.approx(expected(kind, data), rel=1e-6)
