"""Rows without training: the same probabilities decided as MSCE would, and PAMS without its bias."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.strategies import random_predictions

from pams_mil.engine.config.run_config import Choice
from pams_mil.evaluate.decisions.debias import msce_posterior
from pams_mil.evaluate.decisions.decide import least_risk
from pams_mil.experiments.derived_rows import with_untrained
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.bench import Entry, summarize
from pams_mil.report.bench_page import csv_rows, markdown, matched_text
from pams_mil.severity import implied_cost, loss_weight

TREE = ClassHierarchy.load("bracs")


def entries(**choices: Choice) -> tuple[SimpleNamespace, list[Entry]]:
    """One run of every method on the same slides."""
    rng = np.random.default_rng(0)
    target, patient = rng.integers(0, 7, 150), rng.integers(0, 60, 150)
    found, cells = [], []
    for label, choice in choices.items():
        run = random_predictions(TREE, 150, patients=60, rng=rng, name=label, target=target, patient=patient)
        found.append(Entry("AB-MIL", label, {"seed 0": run}))
        cells.append(SimpleNamespace(model="AB-MIL", method=label, config=SimpleNamespace(method=choice)))
    return SimpleNamespace(cells=cells), found


def test_cross_entropy_and_pams_get_a_row_each():
    done, made = entries(CE=Choice(name="ce"), PAMS=Choice(name="pams"))
    found = {entry.method: entry.runs["seed 0"] for entry in with_untrained(done, made)}
    assert list(found) == ["CE", "CE + MSCE's cost", "PAMS", "PAMS, bias removed"]
    M = loss_weight(TREE)
    p = made[0].runs["seed 0"].probabilities
    assert (found["CE + MSCE's cost"].predicted == least_risk(p, implied_cost(M))).all()
    assert found["CE + MSCE's cost"].decided_by == "risk with another cost"
    restored = msce_posterior(made[1].runs["seed 0"].probabilities, M).probabilities
    assert found["PAMS, bias removed"].probabilities == pytest.approx(restored)


def test_other_weights_and_lone_methods_get_none():
    done, made = entries(CE=Choice(name="ce"), HAF=Choice(name="haf"))
    assert with_untrained(done, made) == made
    done, made = entries(CE=Choice(name="ce"), PAMS=Choice(name="pams", alpha=2.0))
    assert [entry.method for entry in with_untrained(done, made)] == ["CE", "CE + MSCE's cost", "PAMS"]


def test_arms_that_vary_a_method_get_none():
    done, made = entries(CE=Choice(name="ce"), Less=Choice(name="ce"), PAMS=Choice(name="pams"))
    found = [entry.method for entry in with_untrained(done, made)]
    assert found == ["CE", "CE + MSCE's cost", "Less", "PAMS", "PAMS, bias removed"]


def test_derived_rows_are_paired_with_the_networks_that_they_are_made_from():
    done, made = entries(CE=Choice(name="ce"), PAMS=Choice(name="pams"))
    rng = np.random.default_rng(1)
    several = []
    for entry in made:
        run = entry.runs["seed 0"]
        noise = [rng.dirichlet(np.ones(7), len(run)) for _ in range(3)]
        runs = {
            f"seed {seed}": replace(run, probabilities=(run.probabilities + p) / 2, weights=(f"{entry.method}{seed}",))
            for seed, p in enumerate(noise)
        }
        several.append(replace(entry, runs=runs))
    bench = summarize(with_untrained(done, several), reference="CE", resamples=50)
    subjects = {row.method: row.comparison.subject for row in bench.rows if row.comparison is not None}
    assert subjects["CE + MSCE's cost"] == "Chance: patients and networks (the same 3 seeds, in pairs)."
    assert subjects["PAMS"] == subjects["PAMS, bias removed"] == "Chance: patients and networks (3 and 3 seeds)."
    assert bench.rows[1].comparison.to_json()["seeds_in_common"] == {"reference": 3, "candidate": 3}


def test_tables_say_what_is_missed_at_one_stated_rate():
    done, made = entries(CE=Choice(name="ce"), PAMS=Choice(name="pams"))
    bench = summarize(with_untrained(done, made), reference="CE", resamples=50)
    rows = {row.method: row for row in bench.rows}
    gap = rows["PAMS"].comparison.levels["class"][bench.missed_key()]
    assert matched_text(bench, rows["PAMS"], -1).startswith(f"{100 * gap.candidate:.1f} (p ")
    assert matched_text(bench, rows["CE"], -1) == f"{100 * gap.reference:.1f}"
    same = rows["CE + MSCE's cost"].comparison.levels["class"][bench.missed_key()]
    assert same.difference == 0  # the same probabilities lie on the same curve
    assert f"Missed at {100 * bench.rate():.0f} % false alarms ↓" in markdown(bench)
    lines = [line for line in csv_rows(bench) if line[3] == "missed_at_10"]
    assert len(lines) == 4 * TREE.num_levels
    scores = bench.to_json()["rows"][0]["levels"]["class"]
    assert scores["urgency_auc"]["value"] == rows["CE"].score("urgency_auc").value
