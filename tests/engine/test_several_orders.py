"""Training with several orders of urgency: the mean M against loops, what all agree on, and runs that know them all."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.cohort import make_cohort, run, settings
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.engine.run.spec import differences, stored_spec
from pams_mil.errors import CheckpointError, HierarchyError, ParameterError
from pams_mil.methods.severity_aware import Msce, msce_loss
from pams_mil.remix.pairing import Pairing
from pams_mil.severity import boundary_costs, loss_weight

OTHER = "name: other\nclasses: [a, c, b, d]\n"
GROUPED = "name: grouped\nclasses:\n  Upper: [d]\n  Rest: [[a, b], c]\n"


def random_orders(seed: int, size: int = 6) -> list[ClassHierarchy]:
    draw = np.random.default_rng(seed)
    names = [f"c{i}" for i in range(size)]
    orders = []
    for number in range(3):
        ranks = np.sort(draw.integers(size - 2, size=size)) if number else np.arange(size)
        listed = [names[i] for i in draw.permutation(size)] if number else names
        tied = [[name for name, rank in zip(listed, ranks, strict=True) if rank == one] for one in np.unique(ranks)]
        orders.append(replace(ClassHierarchy.of([one if len(one) > 1 else one[0] for one in tied]), name=f"o{number}"))
    return orders


@pytest.mark.parametrize("distance", ["product", "power", "rank"])
def test_mean_m_against_loops_and_what_all_agree_on(distance):
    for seed in range(20):
        orders = random_orders(seed)
        tree = orders[0].with_orders(*orders[1:])
        M, names = loss_weight(tree, distance=distance), tree.classes
        place = [{name: other.classes.index(name) for name in names} for other in orders]
        alone = [loss_weight(order, distance=distance) for order in orders]
        above = [order.outranks() for order in orders]
        for t, true in enumerate(names):
            for r, call in enumerate(names):
                own = [matrix[at[true], at[call]] for matrix, at in zip(alone, place, strict=True)]
                assert M[t, r] == pytest.approx(sum(own) / 3)
                votes = [up[at[true], at[call]] for up, at in zip(above, place, strict=True)]
                assert not all(votes) or M[t, r] > 1 == M[r, t]
                assert any(votes) or M[t, r] == 1
        logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
        target = torch.tensor([0, 2, 3, 5, 1])
        loss = Msce(distance=distance).level_loss(tree)
        torch.testing.assert_close(loss(logits, target), msce_loss(logits, target, torch.tensor(M)))
        buffers = sum(buffer.numel() for buffer in loss.buffers())
        assert buffers == (18 if distance == "rank" else 36)  # by rank three rows, no matrix of classes


def test_groups_that_an_order_does_not_have_keep_the_first_ones_m():
    tree = ClassHierarchy.of({"Low": ["a", "b"], "High": ["c", "d"]})
    same_groups = ClassHierarchy.of({"Top": ["d", "c"], "Bottom": ["b", "a"]})
    assert loss_weight(tree.with_orders(ClassHierarchy.flat("dcba")), 0).tolist() == loss_weight(tree, 0).tolist()
    assert loss_weight(tree.with_orders(same_groups), 0).tolist() == [[1, 1.3], [1.3, 1]]


def test_only_what_every_order_calls_less_urgent_is_mixed_in():
    for seed in range(10):
        orders = random_orders(seed)
        tree = orders[0].with_orders(*orders[1:])
        targets = [i % 6 for i in range(18)]
        pairing = Pairing(tree, [f"s{i}" for i in range(18)], targets, probability=1.0)
        for slide in range(18):
            less = [
                all(
                    order.outranks()[
                        order.index(tree.classes[targets[slide]]), order.index(tree.classes[targets[other]])
                    ]
                    for order in orders
                )
                or (targets[other] == targets[slide] and other != slide)
                for other in range(18)
            ]
            assert sorted(pairing.partners(slide)) == np.flatnonzero(less).tolist()
    with pytest.raises(ParameterError, match="dispute which one that is"):
        Pairing(tree, ["s"], [0], rule="urgent_label")


def test_orders_that_cannot_be_trained_together_are_refused():
    first = ClassHierarchy.flat("abc")
    with pytest.raises(HierarchyError, match="different classes: only one of them has 'c', 'd'"):
        first.with_orders(ClassHierarchy.flat("abd"))
    with pytest.raises(HierarchyError, match="list all beside the first"):
        first.with_orders(first.with_orders(first))
    with pytest.raises(HierarchyError, match="several orders of urgency compare one class per slide"):
        ClassHierarchy.flat("abc", findings="several").with_orders(first)


def pams(*words, code=0):
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.stdout if not code else done.output


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = make_cohort(tmp_path_factory.mktemp("orders"))
    (folder / "other.yaml").write_text(OTHER)
    return folder


@pytest.fixture(scope="module")
def both(cohort):
    return ["--classes", cohort / "classes.yaml", "--classes", cohort / "other.yaml"]


def test_a_run_knows_its_orders_in_training_evaluation_and_certification(cohort, both, tmp_path):
    where = ["--manifest", cohort / "manifest.csv", "--features", cohort / "bags"]
    small = [
        "model.embedding_features=8",
        "accelerator=cpu",
        "epochs=2",
        "training.select=last",
        "--out",
        tmp_path / "run",
    ]
    pams("train", *where, *both, *small)
    spec = stored_spec(tmp_path / "run")
    assert [order.name for order in spec.hierarchy.orders] == ["tiny", "other"]
    term = spec.build().objective.terms["msce"]
    mean = (loss_weight(spec.hierarchy.orders[0]) + loss_weight(ClassHierarchy.flat("abcd").with_orders())) / 2
    M = term.losses["1"].severity.numpy()
    assert M[1, 2] == M[2, 1] == pytest.approx((1.6 + 1) / 2)  # b and c are disputed
    assert M[3, 0] == pytest.approx(mean[3, 0])
    # Resumed with one order it would be another run.
    refused = pams("train", *where, *both[:2], *small, "--resume", code=2)
    assert "classes.other_orders" in refused
    scores = json.loads(pams("evaluate", tmp_path / "run", "--resamples", 0, "--json"))
    assert scores["orders"]["names"] == ["tiny", "other"]
    assert "orders" not in json.loads(pams("evaluate", tmp_path / "run", *both[:2], "--resamples", 0, "--json"))
    pams("certify", tmp_path / "run", "--alpha", 0.5, "--calibration", "val")
    certificate = tmp_path / "run/certificate.json"
    assert [bound["order"] for bound in json.loads(certificate.read_text())["bounds"]] == ["tiny", "other"]
    words = ["predict", tmp_path / "run", cohort / "manifest.csv", "--features", cohort / "bags", "--split", "test"]
    pams(*words, "--certificate", certificate, "--out", tmp_path / "new")
    assert "certified [other]" in (tmp_path / "new/predictions.csv").read_text().splitlines()[0]


def test_another_second_order_is_another_run(cohort, tmp_path):
    (cohort / "grouped.yaml").write_text(GROUPED)
    files = [cohort / "classes.yaml", cohort / "other.yaml"]
    one = run(settings(cohort, epochs=1).model_copy(update={"classes": tuple(map(str, files))}), tmp_path / "one")
    two = run(
        settings(cohort, epochs=1).model_copy(update={"classes": (str(files[0]), str(cohort / "grouped.yaml"))}),
        tmp_path / "two",
    )
    specs = [stored_spec(path) for path in (one, two)]
    (change,) = differences(*specs, parts=("classes",))
    assert change == ("classes.other_orders", ["a ≺ c ≺ b ≺ d"], ["d ≺ a ≡ b ≺ c"])
    with pytest.raises(CheckpointError, match="other_orders"):
        run(settings(cohort, epochs=1), tmp_path / "one", resume=True)
    scores = json.loads(pams("evaluate", tmp_path / "two", tmp_path / "one", "--resamples", 0, "--json"))
    assert scores["orders"]["names"] == ["tiny", "grouped", "other"]  # the orders of both runs


def test_cv_and_bench_score_under_every_order(cohort, both, tmp_path, monkeypatch):
    from tests.engine.here import Here

    from pams_mil.engine.grid import engines as local_processes

    monkeypatch.setattr(local_processes, "LocalEngine", Here)
    small = ["epochs=1", "accelerator=cpu", "model.embedding_features=8", "--resamples", 20, "--out"]
    words = ["cv", cohort / "manifest.csv", *both, "--features", cohort / "bags", "--folds", 3, "--method", "pams"]
    assert json.loads(pams(*words, *small, tmp_path / "cv", "--json"))["orders"]["names"] == ["tiny", "other"]
    # The same command goes on; with another order it is another cross-validation.
    assert json.loads(pams(*words, *small, tmp_path / "cv", "--json"))["orders"]["names"] == ["tiny", "other"]
    other = [*words[:2], *both[:2], *words[6:], *small, tmp_path / "cv"]
    assert "the class hierarchy (digest)" in pams(*other, code=2)
    grid = tmp_path / "grid.yaml"
    places = f"{{manifest: {cohort / 'manifest.csv'}, features: {cohort / 'bags'}}}"
    grid.write_text(
        f"data: {places}\nclasses: [{both[1]}, {both[3]}]\nmethods: [ce, pams]\nseeds: [0]\ntraining: {{epochs: 1}}\n"
        "models: [{name: abmil, embedding_features: 8}]\n"
    )
    result = json.loads(pams("bench", grid, "--resamples", 20, "--out", tmp_path / "bench", "--json"))
    comparisons = {one["candidate"]: one for one in result["orders"]["abmil"]["comparisons"]}
    comparison = comparisons["pams"]
    assert comparison["reference"] == "ce"
    assert list(comparison["by_order"]) == ["tiny", "other"]
    page = (tmp_path / "bench/report.html").read_text()
    assert "which model is safer, by order of urgency" in page
    assert comparison["sentence"] in page
    assert "differ on 1 of 6 pairs" in pams("bench", grid, "--resamples", 20, "--out", tmp_path / "bench")


def test_revealed_costs_of_several_orders_keep_what_all_agree_on():
    orders = random_orders(4)
    tree = orders[0].with_orders(*orders[1:])
    (costs,) = boundary_costs(tree, {}, 4.0)
    alone = [np.array(boundary_costs(order, {}, 4.0)[-1]) for order in orders]
    for t, true in enumerate(tree.classes):
        for r, call in enumerate(tree.classes):
            own = [matrix[order.index(true), order.index(call)] for matrix, order in zip(alone, orders, strict=True)]
            assert costs[t][r] == pytest.approx(np.mean(own))
