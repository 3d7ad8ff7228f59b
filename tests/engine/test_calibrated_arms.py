"""Runs of a grid, calibrated on their validation slides and decided by the Bayes rule for AsCC, against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.engine.cohort import make_cohort
from tests.engine.test_grid import Here, grid_of

from pams_mil.engine.grid.grid import run_grid
from pams_mil.engine.prediction.run_calibration import read_calibration
from pams_mil.experiments.derived_rows import read_entries, summarize_grid, with_calibrated
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.bench_page import CALIBRATED, operating_markdown, operating_table
from pams_mil.severity import metric_weight


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    cohort = make_cohort(tmp_path_factory.mktemp("cohort"), sizes={"train": 24, "val": 16})
    learned = grid_of(cohort, training={"epochs": 5, "lr": 3e-2})
    return run_grid(learned, tmp_path_factory.mktemp("bench"), Here())


def test_every_run_is_calibrated_by_itself_and_called_for_the_most_ascc(finished):
    tree = ClassHierarchy.load(finished.cells[0].config.classes)
    W = metric_weight(tree)
    shares: list[float] = []
    entries, refused = with_calibrated(finished, read_entries(finished), shares.append)
    assert refused == {}
    assert shares == [0.25, 0.5, 0.75, 1.0]
    for entry in entries:
        for (name, run), cell in zip(
            entry.runs.items(), [cell for cell in finished.cells if cell.method == entry.method], strict=True
        ):
            fitted = read_calibration(finished.out / cell.key).levels[-1].calibration
            decided = entry.calibrated[name]
            assert list(decided.slide_ids) == list(run.slide_ids)
            assert decided.decided_by == "ascc"
            for slide in range(len(run.slide_ids)):
                p = run.probabilities[slide]
                parts = fitted.bias.corrections(p[None]) if fitted.strengths else {}
                logits = []
                for k in range(4):
                    undone = math.log(p[k]) + sum(s * parts[part][0, k] for part, s in fitted.strengths.items())
                    logits.append(undone / fitted.temperature)
                total = sum(math.exp(logit) for logit in logits)
                q = [math.exp(logit) / total for logit in logits]
                assert decided.probabilities[slide] == pytest.approx(q, abs=1e-9)
                worth = [sum(q[t] / W[t, r] for t in range(4)) for r in range(4)]
                assert worth[decided.predicted[slide]] == pytest.approx(max(worth))


def test_the_table_shows_it_where_it_was_asked_for(finished):
    plain = summarize_grid(finished, "ce", resamples=0)
    assert CALIBRATED not in operating_markdown(plain)
    assert all(row["calibrated"] is None for row in plain.to_json()["rows"])
    bench = summarize_grid(finished, "ce", resamples=0, calibrated=True)
    table = operating_table(bench, bench.rows[0].model)
    assert table.heads[-1].text == CALIBRATED
    shown = {row[0]: row[-1] for row in table.rows}
    decided = next(iter(with_calibrated(finished, read_entries(finished))[0])).calibrated
    runs = list(decided.values())
    ranks = runs[0].hierarchy.ranks()
    missed = np.mean([ranks[run.predicted] < ranks[run.target] for run in runs])
    raised = np.mean([ranks[run.predicted] > ranks[run.target] for run in runs])
    ascc = bench.to_json()["rows"][0]["calibrated"]["ascc"]
    assert shown[bench.rows[0].method] == f"{100 * missed:.1f} / {100 * raised:.1f}; {100 * ascc:.1f}"
    assert CALIBRATED in operating_markdown(bench)
    # Rows without training are not runs of their own, so there is nothing to calibrate.
    assert shown["ce + MSCE's cost"] == "–"


def test_a_method_with_a_run_that_cannot_be_calibrated_is_left_out_and_named(cohort, tmp_path):
    done = run_grid(grid_of(cohort, seeds=[0]), tmp_path, Here())  # 8 validation slides are too few
    entries, refused = with_calibrated(done, read_entries(done))
    assert set(refused) == {cell.key for cell in done.cells}
    assert all("8 slides are too few" in reason for reason in refused.values())
    assert [entry.calibrated for entry in entries] == [None, None]
    notes = []
    bench = summarize_grid(done, "ce", resamples=0, calibrated=True, note=notes.append)
    assert CALIBRATED not in operating_markdown(bench)
    assert "cannot be calibrated" in notes[0]
