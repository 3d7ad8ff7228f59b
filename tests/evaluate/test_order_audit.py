"""An audit under several orders: rates and verdicts by order, on the page, in JSON and in Python."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.evaluate.test_compare import two_models
from tests.evaluate.test_verdict import sharpened
from typer.testing import CliRunner

import pams_mil
from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.compare import compare
from pams_mil.evaluate.decisions.decide import redecide
from pams_mil.evaluate.orders import Orders
from pams_mil.evaluate.predictions.predictions import write_predictions
from pams_mil.evaluate.verdict import safer_model, verdict

TREE = ClassHierarchy.load("bracs")
SWAPPED = ClassHierarchy.of(["N", "PB", "FEA", "UDH", "ADH", "DCIS", "IC"], name="swapped")
UPSIDE_DOWN = ClassHierarchy.of(TREE.classes[::-1], name="upside down")


def models():
    one, _ = two_models(rows=400, patients=200)
    return one, sharpened(one, "better", 0.8)


def test_the_safer_model_is_the_one_that_the_sentence_calls_safer():
    one, better = models()
    others = [
        better, replace(better, probabilities=None), replace(redecide(one, "kappa=1.5"), name="urgent"),
        replace(one, name="same"), sharpened(one, "hardly", 0.02),
    ]  # fmt: skip
    seen = set()
    for other in others:
        for pair in ((one, other), (other, one)):
            comparison = compare(*pair, resamples=60)
            safer, sentence = safer_model(comparison), verdict(comparison)
            names = [name for name in (one.name, other.name) if sentence.startswith(f"{name} is safer than")]
            assert names == ([] if safer is None else [safer])
            seen.add(safer)
    few = replace(better.where(np.arange(len(better)) < 8), patient_ids=None)
    assert safer_model(compare(one.where(np.arange(len(one)) < 8), few, resamples=60)) is None
    assert {None, "better"} <= seen


def ordered(predictions, *others):
    tree = TREE.with_orders(*others)
    return [one.with_orders(tree) for one in predictions]


def test_a_candidate_is_compared_with_the_same_models_under_every_order():
    one, better = models()
    others = [replace(better, name=name) for name in ("second", "third")]
    result = audit(ordered([one, *others], SWAPPED), candidate=0, resamples=0)
    for pair, name in zip(result.orders.comparisons, ("second", "third"), strict=True):
        assert {(by.reference, by.candidate) for by in pair.by_order.values()} == {(name, "one")}


def test_safer_under_every_order_or_under_which_not():
    one, better = models()
    orders = Orders(TREE.with_orders(SWAPPED))
    result = audit(ordered([one, better], SWAPPED), resamples=60).orders
    assert result is not None
    (comparison,) = result.comparisons
    assert comparison.safer == {"bracs": "better", "swapped": "better"}
    assert comparison.sentence == "better is safer than one under every order (bracs, swapped)."
    for number, name in enumerate(orders.names):
        own = compare(*(orders.under(number, model) for model in (one, better)), resamples=60)
        assert verdict(comparison.by_order[name]) == verdict(own)
        assert comparison.by_order[name].matched["class"].missed.interval == own.matched["class"].missed.interval
    # A model that calls everything high, without probabilities, is careful by one order and careless by its reverse.
    careful = replace(one, name="careful", probabilities=None, predicted=np.minimum(one.target + 1, 6))
    careless = replace(one, name="careless", probabilities=None, predicted=np.maximum(one.target - 1, 0))
    turned = audit(ordered([careful, careless], UPSIDE_DOWN), resamples=60).orders
    assert turned is not None
    rates = turned.rates["careful"]["missed_rate"]
    alarms = turned.rates["careful"]["false_alarm_rate"]
    assert rates.by_order["upside down"].value > 0.7 > rates.by_order["bracs"].value == 0
    assert (rates.undisputed.value, rates.with_disputed.value) == (0, rates.by_order["upside down"].value)
    assert alarms.by_order["bracs"].value < rates.with_disputed.value  # FEA called ADH: tied in bracs
    assert turned.comparisons[0].sentence == "Neither careful nor careless can be called safer under any of the orders."


def test_models_with_other_orders_are_audited_under_the_orders_of_all():
    one, other = two_models(rows=60, patients=30)
    first = replace(one, hierarchy=TREE.with_orders(SWAPPED))
    second = replace(other, hierarchy=TREE.with_orders(UPSIDE_DOWN))
    result = audit([first, second], resamples=0).orders
    assert result is not None
    assert result.orders.names == ("bracs", "swapped", "upside down")
    expected = audit(ordered([one, other], SWAPPED, UPSIDE_DOWN), resamples=0).orders
    assert json.dumps(result.to_json()) == json.dumps(expected.to_json())
    assert audit([one, second], resamples=0).orders.orders.names == ("bracs", "upside down")
    # Read with another order first, it is the same model: its classes are found by name.
    turned = Orders(TREE.with_orders(UPSIDE_DOWN)).under(1, other)
    again = audit([first, turned], resamples=0).orders
    assert again.orders.names == ("bracs", "swapped", "upside down")
    assert json.dumps(again.to_json()) == json.dumps(expected.to_json())
    unlike = ClassHierarchy.of([*TREE.classes[:-1], "invasive"])
    with pytest.raises(PredictionsError, match="different class hierarchies"):
        audit([first, replace(other, hierarchy=unlike)], resamples=0)


def test_a_verdict_that_depends_on_the_order_says_under_which():
    one, _ = models()
    ranks = {name: rank for rank, name in enumerate(SWAPPED.classes)}
    # Right everywhere except where UDH and FEA are confused, always in the same direction.
    udh, fea = TREE.index("UDH"), TREE.index("FEA")
    low = replace(one, name="low", probabilities=None, predicted=np.where(one.target == fea, udh, one.target))
    good = replace(one, name="good", probabilities=None, predicted=one.target.copy())
    assert ranks["FEA"] < ranks["UDH"]
    result = audit(ordered([low, good], SWAPPED), resamples=60).orders
    assert result is not None
    assert result.comparisons[0].safer == {"bracs": "good", "swapped": None}
    assert result.comparisons[0].sentence == (
        "Which model is safer depends on the order: good is safer under bracs; under swapped neither can be called "
        "safer."
    )


def test_command_page_and_json(tmp_path):
    one, better = models()
    for model in (one, better):
        write_predictions(tmp_path / f"{model.name}.csv", model)
    swapped = tmp_path / "swapped.yaml"
    swapped.write_text("name: swapped\nclasses: [N, PB, FEA, UDH, ADH, DCIS, IC]\n")
    words = ["audit", str(tmp_path / "one.csv"), str(tmp_path / "better.csv"), "--classes", "bracs"]
    words += ["--classes", str(swapped), "--resamples", "60", "--out", str(tmp_path / "report")]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "better is safer than one under every order (bracs, swapped)." in done.stdout
    content = json.loads((tmp_path / "report/scores.json").read_text())["orders"]
    assert content["names"] == ["bracs", "swapped"]
    assert content["comparisons"][0]["by_order"]["swapped"]["safer"] == "better"
    missed = content["models"]["one"]["missed_rate"]
    by_order = [rate["value"] for rate in missed["by_order"].values()]
    assert missed["undisputed"]["value"] <= min(by_order) <= missed["with_disputed"]["value"]
    page = (tmp_path / "report/report.html").read_text()
    assert "By order of urgency" in page
    pairs = re.search(r"Disputed pairs.*?</table>", page, re.S)
    assert pairs is not None
    assert pairs[0].count("<tr") == 1 + len(content["disputed"]) == 3
    assert "better is safer than one under every order" in page
    other = tmp_path / "other.yaml"
    other.write_text("name: other\nclasses: [N, PB, FEA, UDH, ADH, DCIS, XX]\n")
    refused = CliRunner().invoke(app, [*words[:5], "--classes", str(other)])
    assert refused.exit_code == 2
    assert "are of different classes: only one of them has 'IC', 'XX'" in " ".join(refused.output.split())


def test_in_python():
    one, better = models()
    report = pams_mil.audit([one, better], hierarchies=[SWAPPED], resamples=60)
    assert "better is safer than one under every order (bracs, swapped)." in report.sentences
    assert report.decide(kappa=2).scores.orders is not None
    with pytest.raises(PredictionsError, match="Give that order first"):
        one.with_orders(SWAPPED.with_orders(TREE))
