"""Readers as data: against loops, the range of readers, and bad input in words."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.evaluate.readers import audit_readers, others_reference
from pams_mil.metrics.operating import operating_curve

TREE = ClassHierarchy.load("bracs")
NAMES = TREE.classes


def study(n=240, *, noise=(0.2, 0.3, 0.4), skill=4.0, seed=0):
    """True classes, three readers who err by neighbors, and a model's probabilities."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 7, n)
    calls = {
        f"reader{k}": np.clip(target + np.where(rng.random(n) < p, rng.choice([-1, 1], n), 0), 0, 6)
        for k, p in enumerate(noise, 1)
    }
    logits = -skill * np.abs(np.arange(7) - target[:, None]) + rng.gumbel(size=(n, 7))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return target, calls, p, np.arange(n) // 2


def audited(calls, patient, target, p, name="mine", resamples=200):
    """The audit with a model of one network, or of several seeds."""
    ids = [f"s{row}" for row in range(len(patient))]
    networks = {
        str(seed): Predictions(name, TREE, ids, np.zeros(len(ids), int), q.argmax(1), q)
        for seed, q in enumerate([p] if isinstance(p, np.ndarray) else p)
    }
    model = networks["0"] if len(networks) == 1 else join_seeds(name, networks)
    people = [f"p{number}" for number in patient]
    return audit_readers(calls, TREE, ids, patients=people, target=target, model=model, resamples=resamples)


def loop_reference(column, ranks):
    """The mode of a list of classes; of ties the more urgent, of equally urgent ones the later."""
    counts = Counter(value for value in column if value >= 0)
    if not counts:
        return -1
    most = max(counts.values())
    return max((one for one, count in counts.items() if count == most), key=lambda one: (ranks[one], one))


@pytest.mark.parametrize("seed", range(4))
def test_leave_one_out_mode_against_a_loop(seed):
    rng, ranks = np.random.default_rng(seed), TREE.ranks()
    calls = rng.integers(-1, 7, (4, 200))
    for reader in range(4):
        others = [calls[j] for j in range(4) if j != reader]
        expected = [loop_reference([row[i] for row in others], ranks) for i in range(200)]
        assert others_reference(calls, reader, ranks).tolist() == expected


@pytest.mark.parametrize("known", [True, False])
def test_rates_and_the_models_place_against_loops(known):
    target, calls, p, patient = study()
    calls["reader2"] = np.where(np.arange(len(target)) % 5 == 0, -1, calls["reader2"])
    result = audited(calls, patient, target if known else None, p, resamples=100)
    ranks, names = TREE.ranks(), list(calls)
    for number, one in enumerate(result.readers):
        missed = alarms = total = 0
        rows, truth = [], []
        for i in range(len(target)):
            call = calls[names[number]][i]
            others = [calls[name][i] for k, name in enumerate(names) if k != number]
            true = target[i] if known else loop_reference(others, ranks)
            if call >= 0 and true >= 0:
                total += 1
                missed += ranks[true] > ranks[call]
                alarms += ranks[true] < ranks[call]
                rows.append(i)
                truth.append(int(true))
        assert one.slides == total
        assert (one.missed.value, one.false_alarms.value) == pytest.approx((missed / total, alarms / total))
        at = operating_curve(truth, p[rows], TREE).missed_at(alarms / total)
        gap = one.model_misses_more
        assert gap.value == pytest.approx(float(at) - missed / total)
        assert (gap.reference, gap.varied) == (pytest.approx(missed / total), "patients")
        assert gap.interval[0] <= gap.value <= gap.interval[1]
    first = result.agreement[0]
    both = [i for i in range(len(target)) if calls["reader2"][i] >= 0]
    a, b = calls["reader1"][both], calls["reader2"][both]
    weights = (np.arange(7)[:, None] - np.arange(7)) ** 2
    observed = np.mean([weights[x, y] for x, y in zip(a, b, strict=True)])
    chance = np.mean([[weights[x, y] for x in a] for y in b])
    assert (first.slides, first.cohen_kappa) == (len(both), pytest.approx(1 - observed / chance))


def test_the_range_of_readers():
    target, calls, good, patient = study(skill=6.0)
    poor = study(skill=0.1)[2]
    between = study(noise=(0.01, 0.5, 0.9), skill=2.0)
    best = audited(calls, patient, target, good, "good")
    assert "good is outside of the readers' range: it misses less than every reader" in best.sentences[-1]
    worst = audited(calls, patient, target, poor, "poor")
    assert "poor is outside of the readers' range: it misses more than every reader" in worst.sentences[-1]
    middle = audited(between[1], patient, between[0], between[2], "mid")
    assert "mid is within the readers' range: it misses more than 'reader1'" in middle.sentences[-1]
    assert "misses less than" in middle.sentences[-1]
    assert [one.within for one in (best, worst, middle)] == [False, False, True]
    for result in (best, worst, middle):
        gaps = [one.model_misses_more for one in result.readers]
        for gap in (min(gaps, key=lambda gap: gap.value), max(gaps, key=lambda gap: gap.value)):
            low, high = gap.interval
            assert f"{100 * gap.value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})" in result.sentences[-1]


def test_networks_of_the_model_are_chance_and_readers_are_given():
    target, calls, _, patient = study()
    networks = [study(skill=skill, seed=0)[2] for skill in (0.3, 0.6, 1.2)]
    one, several = (audited(calls, patient, target, p) for p in (networks[1], networks))
    for first, second in zip(one.readers, several.readers, strict=True):
        alone, gap = first.model_misses_more, second.model_misses_more
        assert (alone.varied, gap.varied) == ("patients", "patients and networks")
        assert len(gap.seeds) == 3
        assert gap.seeds[1] == pytest.approx(alone.candidate)
        assert gap.interval[1] - gap.interval[0] > alone.interval[1] - alone.interval[0]
    assert [x.missed for x in one.readers] == [y.missed for y in several.readers]


def written(tmp_path):
    target, calls, p, patient = study()
    rows = ["slide_id,patient_id,consensus,r1,r2,r3"]
    for i in range(len(target)):
        names = [NAMES[c] for c in (target[i], *(calls[f"reader{k}"][i] for k in (1, 2, 3)))]
        rows.append(f"s{i},p{patient[i]},{','.join(names)}")
    path = tmp_path / "readers.csv"
    path.write_text("\n".join(rows) + "\n")
    ids = [f"s{i}" for i in range(len(target))]
    model = Predictions("mine", TREE, ids, target, p.argmax(1), p, patient_ids=[f"p{k}" for k in patient])
    write_predictions(tmp_path / "mine.csv", model)
    return path


def pams(*words, code=0):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["audit", *map(str, words), "--resamples", "50"])
    assert done.exit_code == code, done.output
    return done


def test_command_page_and_json(tmp_path):
    path = written(tmp_path)
    words = [path, "--classes", "bracs", "--readers", "--pred", "r1", "--pred", "r2", "--pred", "r3"]
    alone = pams(*words).stdout
    assert "Against the other readers, the 3 readers miss urgency in" in alone
    full = [*words, "--true", "consensus", "--model", tmp_path / "mine.csv"]
    pams(*full, "--out", tmp_path / "out")
    page, content = (tmp_path / "out/readers.html").read_text(), json.loads((tmp_path / "out/readers.json").read_text())
    chart = re.search(r"Readers on the model's curve</h2>.*?</svg>", page.replace("&#39;", "'"), re.S)
    assert chart is not None
    assert [f'class="{kind} s{number}"' in chart[0] for kind, number in (("curve", 0), ("mark", 1))].count(True) >= 1
    pams(*words, "--model", tmp_path / "mine.csv", "--out", tmp_path / "no-reference")
    assert "on the model" not in (tmp_path / "no-reference/readers.html").read_text()
    assert content["sentences"][1] in page.replace("&#39;", "'")
    assert content["reference"] == "'consensus'"
    assert json.loads(pams(*full, "--json").stdout) == content
    schema = json.loads((Path(__file__).parents[2] / "docs/reference/schemas/audit.schema.json").read_text())
    Draft202012Validator(schema).validate(content)
    assert not Draft202012Validator(schema).is_valid({**content, "within": "maybe"})


def test_bad_input_in_words(tmp_path):
    path = written(tmp_path)
    words = [path, "--classes", "bracs", "--readers", "--pred", "r1"]

    def refused(*more):
        return " ".join(pams(*more, code=2).output.split())

    assert "Expected at least two readers, found 'r1'" in refused(*words)
    assert "has no column 'r9'" in refused(*words, "--pred", "r9")
    assert "has no column 'cons'" in refused(*words, "--pred", "r2", "--true", "cons")
    assert "Every reader is named once" in refused(*words, "--pred", "r1")
    text = path.read_text()
    path.write_text(text.replace("s1,p0", "s0,p0", 1))
    assert "has slide 's0' twice" in refused(*words, "--pred", "r2")
    path.write_text(text.replace("s5,p2", "s5,", 1))
    assert "row 6 has no patient_id; every row needs one" in refused(*words, "--pred", "r2")
    path.write_text(text + "s900,p900,N,nothing,N,N\n")
    assert "column 'r1', slide 's900': 'nothing' is not a class" in refused(*words, "--pred", "r2")
    path.write_text(text + "s900,p900,N,N,N,N\n")
    missing = refused(*words, "--pred", "r2", "--model", tmp_path / "mine.csv")
    assert "predicts 240 of the 241 slides" in missing
    same = {"a": np.array([0, 1, 2]), "b": np.array([0, 1, -1])}
    with pytest.raises(PredictionsError, match="agree on every slide"):
        audit_readers(same, TREE, ["1", "2", "3"])
    assert audit_readers(same, TREE, ["1", "2", "3"], target=np.array([0, 1, 3]), resamples=0).readers[1].slides == 2
    with pytest.raises(PredictionsError, match="'b' has a reference: none has a true class"):
        audit_readers(same, TREE, ["1", "2", "3"], target=np.array([-1, -1, 3]), resamples=0)


def test_without_resamples_the_range_is_not_tested():
    target, calls, p, patient = study()
    found = audited(calls, patient, target, p, resamples=0)
    assert found.within is None
    assert "not tested" in found.sentences[1]
    assert "nan" not in found.sentences[1]
