"""The benchmark's operating table and its charts by epoch, against plain loops."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.strategies import random_predictions

from pams_mil.cli.audit_table import show_bench
from pams_mil.cli.console import output
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import urgency_auc
from pams_mil.metrics.metric import METRICS
from pams_mil.report.bench import Entry, summarize
from pams_mil.report.bench_page import bench_page, operating_table, write_bench
from pams_mil.report.charts import SHOWN, epoch_charts, mean_epochs

TREE = ClassHierarchy.load("bracs")


@pytest.fixture(scope="module")
def bench():
    rng = np.random.default_rng(1)
    target, patient = rng.integers(0, 7, 120), rng.integers(0, 50, 120)
    moved = {name: [0.2, 0.5, 0.4] for name in SHOWN}
    entries = [
        Entry(
            "AB-MIL",
            label,
            {
                f"seed {seed}": random_predictions(
                    TREE, 120, patients=50, rng=rng, name=label, target=target, patient=patient
                )
                for seed in range(2)
            },
            epochs,
        )
        for label, epochs in (("CE", moved), ("<b>PAMS", moved), ("untrained", None))
    ]
    return entries, summarize(entries, reference="CE", resamples=40)


def operating(summary, place):
    """The row of a method, by the heads of its table."""
    table = operating_table(summary, "AB-MIL")
    return dict(zip([head.text for head in table.heads], table.rows[place], strict=True))


def test_deviations_are_over_runs_and_the_rest_over_all(bench):
    entries, summary = bench
    for place, entry in enumerate(entries):
        aucs = [urgency_auc(run.target, run.probabilities, TREE) for run in entry.runs.values()]
        right = []
        for run in entry.runs.values():
            least = [slide for slide in range(120) if TREE.ranks()[run.target[slide]] == 0]
            right.append(sum(TREE.ranks()[run.predicted[slide]] == 0 for slide in least) / len(least))
        shown = list(operating(summary, place).values())[1:]
        assert shown[0] == f"{100 * np.mean(aucs):.1f} ± {100 * np.std(aucs):.1f}"
        assert shown[6] == f"{100 * np.mean(right):.1f} ± {100 * np.std(right):.1f}"
        missed, raised = (
            sum(
                np.sign(TREE.ranks()[t] - TREE.ranks()[p]) == side
                for run in entry.runs.values()
                for t, p in zip(run.target, run.predicted, strict=True)
            )
            / 240
            for side in (1, -1)
        )
        assert [float(part) for part in shown[5].split(" / ")] == pytest.approx([100 * missed, 100 * raised], abs=0.051)


def test_the_difference_is_the_comparisons_own(bench):
    _, summary = bench
    raised = summary.rows[0].levels[-1].values["false_alarm_rate"]
    assert summary.rate() == min((0.05, 0.1, 0.2, 0.3), key=lambda rate: abs(rate - raised))
    gap = summary.rows[1].comparison.levels["class"][summary.missed_key()]
    head = f"Missed at {100 * summary.rate():.0f} % false alarms ↓"
    shown = operating(summary, 1)
    assert shown[head].startswith(f"{100 * gap.candidate:.1f} ± ")
    low, high = gap.adjusted_interval
    text = f"{100 * gap.difference:+.1f} ({100 * low:.1f} to {100 * high:.1f}), p {gap.adjusted_p:.2g}"
    assert shown["difference (95 %), adjusted p"] == text
    assert (gap.varied, gap.family) == ("patients and networks", 2)
    assert low < gap.interval[0] < gap.interval[1] < high
    reference = operating(summary, 0)
    assert reference[head].startswith(f"{100 * gap.reference:.1f} ± ")
    assert reference["difference (95 %), adjusted p"] == ""


def test_without_resamples_there_is_no_interval(bench):
    summary = summarize(bench[0], reference="CE", resamples=0)
    shown = operating(summary, 1)["difference (95 %), adjusted p"]
    assert re.fullmatch(r"[+-]\d+\.\d(, p [\d.e-]+)?", shown), shown


def test_without_probabilities_only_what_was_decided_is_shown(bench):
    entries, _ = bench
    bare = [
        replace(entry, runs={key: replace(run, probabilities=None) for key, run in entry.runs.items()})
        for entry in entries
    ]
    summary = summarize(bare, reference="CE", resamples=0)
    shown = operating_table(summary, "AB-MIL").rows[1]
    assert shown[1:6] == ["–"] * 5
    assert "/" in shown[6]


def test_files_carry_the_table_and_the_epochs(bench, tmp_path):
    _, summary = bench
    write_bench(summary, tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert table.index("Urgency AUC ↑") < table.index(f"{METRICS['acc'].label} ↑")
    assert "| &lt;b>PAMS |" in table
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert rows[0]["epochs"]["missed"] == [0.2, 0.5, 0.4]
    assert rows[2]["epochs"] is None
    assert len(rows[1]["levels"]["class"]["urgency_auc"]["seeds"]) == 2


def test_page_draws_one_line_per_trained_method(bench):
    page = bench_page(bench[1])
    section = page[page.index("While training") :]
    assert section.count('aria-label="urgency AUC by epoch"') == 1
    assert section.split("</svg>")[0].count("<polyline") == 2
    assert "&lt;b&gt;PAMS" in section


def test_mean_over_runs_that_trained_so_long():
    rng = np.random.default_rng(0)
    lengths = [3, 5, 5]
    logs = [
        {f"val_{metric}": [str(value) for value in rng.random(length)] for metric, _ in SHOWN.values()}
        for length in lengths
    ]
    logs[1]["val_urgency_auc"][0] = "nan"
    found = mean_epochs(logs)
    for name, (metric, _) in SHOWN.items():
        for epoch in range(5):
            values = [float(log[f"val_{metric}"][epoch]) for log in logs if epoch < len(log[f"val_{metric}"])]
            values = [value for value in values if not math.isnan(value)]
            assert found[name][epoch] == pytest.approx(sum(values) / len(values))
    assert mean_epochs([*logs, {}]) is None


def test_lines_stay_inside_the_chart_and_higher_is_higher():
    rising = {name: [0.10, math.nan, 0.12, 0.41] for name in SHOWN}
    chart = str(epoch_charts([("a", rising)])).split("</svg>")[0]
    points = [tuple(map(float, pair.split(","))) for pair in re.search(r'points="([^"]*)"', chart).group(1).split()]
    assert len(points) == 3  # an epoch without a value is left out
    heights = [y for _, y in points]
    assert heights == sorted(heights, reverse=True)
    assert all(60 <= x <= 334 and 16 <= y <= 204 for x, y in points)


def test_it_shows_itself_in_a_notebook_and_at_the_prompt(bench):
    """Sentences that name the model, a short table with every row, and the curves; names are only text."""
    _, summary = bench
    text = repr(summary)
    assert text.startswith("On AB-MIL, at ")
    assert [line.split("  ")[0] for line in text.splitlines()[-3:]] == [row.name for row in summary.rows]
    assert max(map(len, text.splitlines()[-4:])) < 200
    value = summary.rows[1].levels[-1].values["missed_rate"]
    assert f"{100 * value:.1f} %" in text.splitlines()[-2]
    html = summary._repr_html_()
    assert "data:image/svg+xml;base64," in html
    assert "&lt;b&gt;PAMS on AB-MIL" in html
    assert "<b>PAMS" not in html


def test_the_terminal_says_one_sentence_per_model_and_once_what_chance_is(bench):
    """A sentence for each of six comparisons, each followed by the same three, was read by nobody."""
    entries, _ = bench
    single = [replace(entry, model=model, runs={"seed 0": entry.runs["seed 0"]})
              for model in ("AB-MIL", "TransMIL") for entry in entries]  # fmt: skip
    with output.capture() as printed:
        show_bench(summarize(single, reference="CE", resamples=40))
    text = " ".join(printed.get().split())
    for model in ("AB-MIL", "TransMIL"):
        assert text.count(f"On {model}, at") == 1
    assert text.count("other seeds may differ") == text.count("One network each") == 1
    assert "over 1 runs" not in text
    table = text[text.index("class:") : text.index("One network each")]
    assert table.count("untrained") == len({"AB-MIL", "TransMIL"}) * TREE.num_levels  # no row that nobody asked for


def test_the_sentence_settles_what_it_names_by_the_p_it_shows(bench):
    _, summary = bench
    reference, row, *rest = summary.rows
    key = summary.missed_key()
    own = row.comparison.levels["class"]
    for p, low, kind in ((0.03, -0.3, "Safer"), (0.06, -0.3, "Not settled"), (0.03, 0.01, "Less safe")):
        # as decided the row is far ahead, which is another question than the one that the sentence names
        changed = {
            **own,
            "missed_rate": replace(own["missed_rate"], estimate=-0.5, adjusted_interval=(-0.6, -0.4), adjusted_p=1e-6),
            key: replace(own[key], estimate=low, adjusted_interval=(low - 0.001, low + 0.001), adjusted_p=p),
        }
        comparison = replace(row.comparison, levels={**row.comparison.levels, "class": changed})
        [sentence] = replace(summary, rows=[reference, replace(row, comparison=comparison), *rest]).sentences
        named = dict(re.findall(r"(Safer|Less safe|Not settled): ([^.]*?<b>PAMS)", sentence))
        assert list(named) == [kind], sentence
