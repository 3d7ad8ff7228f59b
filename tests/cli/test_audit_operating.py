"""The operating points on the audit's page, and audits that have little to draw."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.cli.test_audit import TREE, made, run

from pams_mil.evaluate.predictions.predictions import write_predictions


def audited(tmp_path, *models):
    paths = []
    for model in models:
        paths.append(tmp_path / f"{model.name}.csv")
        write_predictions(paths[-1], model)
    out = tmp_path / "report"
    shown = run(*paths, "--classes", "bracs", "--resamples", "40", "--out", out, "--json").stdout
    page = (out / "report.html").read_text()
    return json.loads(shown), re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_sentence_comes_before_the_curve_and_the_curve_before_the_tables(tmp_path):
    _, page = audited(tmp_path, made(name="one"), made(seed=1, name="two", bias=0.4))
    heads = (
        'id="live-sentence"',
        "missed urgency against false alarms",
        ">What is missed<",
        ">Statistics<",
        "what each",
    )
    order = [page.index(text) for text in heads]
    assert order == sorted(order)
    assert page.count('class="curve s0"') == page.count('class="curve s1"') == 2  # groups and classes
    assert page.count('class="band s0"') == 2
    assert page.count('class="chance"') == 2
    assert page.count(", as decided: ") == page.count("most probable class (κ = 1)") == 4
    assert "two against one, at the same operating point" in page


def test_a_file_without_probabilities_is_one_point_and_says_so(tmp_path):
    found, page = audited(tmp_path, made(name="scored"), replace(made(seed=1, name="plain"), probabilities=None))
    assert "plain has no probabilities, so it is one point." in page
    assert 'class="curve s1"' not in page
    assert "plain, as decided: " in page
    assert all("matched" not in level for level in found["comparisons"][0]["levels"].values())
    alone, page = audited(tmp_path, replace(made(name="alone"), probabilities=None))
    assert alone["files"][0]["levels"]["class"]["curve"] is None
    assert "what each curve reaches" not in page


@pytest.mark.parametrize("kind", ["one class", "all right", "a class never called", "two slides", "one slide"])
def test_little_to_draw_is_drawn_and_said_in_words(tmp_path, kind):
    model = made(name="model")
    if kind == "one class":
        model = replace(model, target=np.full(60, 3))
    elif kind == "all right":
        model = replace(model, predicted=model.target, probabilities=np.eye(7)[model.target])
    elif kind == "a class never called":
        p = model.probabilities.copy()
        p[:, 6] = 0
        p /= p.sum(1, keepdims=True)
        model = replace(model, probabilities=p, predicted=p.argmax(1))
    else:
        model = model.take(np.arange(2 if kind == "two slides" else 1))
    other = replace(
        model, name="other", probabilities=None if model.probabilities is None else model.probabilities[:, ::1]
    )
    found, page = audited(tmp_path, model, other)
    assert len(found["verdicts"]) == 1
    assert re.findall(r".{30}\b(?:nan|inf)\b", page.lower()) == []
    scores = found["files"][0]["levels"]["class"]
    if kind in ("one class", "one slide"):
        assert scores["urgency_auc"] is None  # all slides are equally urgent
    elif kind == "all right":
        assert scores["urgency_auc"] == 1
        assert scores["missed_at_10"] == 0
    assert TREE.num_classes() == len(scores["classes"])
