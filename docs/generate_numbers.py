"""Writes docs/numbers.md, what every number of a report means, from METRICS. Run: python docs/generate_numbers.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pams_mil import atomic
from pams_mil.metrics.metric import LABEL_METRICS, PROBABILITY_METRICS, Metric

PAGE = Path(__file__).with_name("numbers.md")

HEAD = """# Every number of a report

<!-- Generated from metrics.metric.METRICS by docs/generate_numbers.py; edit those. -->

Classes have a rank of urgency. A case is **missed** when it is called less urgent than it is (under-call), a **false alarm**
when it is called more urgent (over-call); a mistake between equally urgent classes is neither. A case is a slide, unless the
table has one row per patient. Names in `code` are those of JSON, CSV files and Python (`pams_mil.metrics.metric.METRICS`).
↑ higher is better, ↓ lower is better.
"""  # noqa: E501

NOTES = {
    "auc": "One class against all others, averaged over the classes that occur; urgency plays no part in it.",
    "ascc": "The paper's metric: the mean over all cases of 1/W, where the severity W of a call is 1 if it is "
    "right and grows with its distance from the true class, faster where urgency is missed. It is taken "
    "at one operating point: a model can gain by leaning toward urgency.",
    "asmc": "The paper's metric: the mean over mistakes alone of 1/(W − 1). A model that makes few mistakes, all "
    "of them grave, has a low AsMC and a high AsCC: read them together.",
    "risk": "The mean over mistakes of their severity W, half of it where urgency is not missed.",
    "missed_rate": 'The share of *all* cases. The bars "what is missed" of a page are shares of one class.',
    "false_alarm_rate": "The share of all cases, so that misses, false alarms, mistakes between ties and right calls "
    "add up to 100 %.",
    "urgency_auc": "50 %: no more is known than how common the classes are. With two classes it is the usual AUC. With "
    "more, a temperature or a lean of the probabilities can move it by some tenths of a point "
    "([inference](inference.md)).",
    "severity_auc": "A carcinoma called normal weighs more than one called atypical. The same reservation.",
    "missed_at_5": "Models are comparable here: each is set to the same false alarms. A table states one rate for all "
    "its rows.",
    "cost_at_1": "κ is how many false alarms a miss is worth. The model is decided at that κ, and what its mistakes "
    "cost is counted in false alarms per case.",
    "cohen_kappa": "Cohen's kappa with squared weights; not the cost ratio κ.",
    "nll": "A proper score: lowest when probabilities are as frequent as they say.",
}
"""What one must know to read a metric, beside its meaning."""

TAIL = """
## Beside a number

**Intervals** are 95 % intervals, in brackets. With one network per model, patients are drawn with replacement 2,000 times, all
their slides together. With several seeds, networks are a source of chance too: [inference](inference.md) has the equations.
A report on fewer than ten patients settles nothing, and says so.

**A difference** is stated as B − A in points, with the interval of the difference itself. Two intervals that overlap do not
say that there is no difference: the comparison is paired by patient.

**p** is the probability of a difference at least as large if the two models were alike. For two networks it comes from
swapping them in random patients. *Adjusted p* is Holm's correction for all rows of a table that are compared with its
reference, and stands beside an *adjusted interval*.

**"These two networks"** in a sentence: one network per model was compared, so the result is about these two and not about the
methods; trained again with another seed, both differ. **"The method, over 3 seeds"**: networks were counted as chance, and the
result is about training by the method.

**At equal false alarms**: two models are compared at the mean of their own false-alarm rates, chosen again in every resample.
*As decided* is what the calls in the file do, each model at its own operating point.

**Safer** is said only if a model misses less at equal false alarms, or, as decided, misses less and raises no more false
alarms; beyond chance, and never of a model that gives every slide the same call.

**Expected cost (×0.42)** on an audit's page: the cost at this κ, and its ratio to the best constant call.

## Certificates

| number | what it says |
|---|---|
| bound, α | at most this share of new patients is called below their label (of a boundary: patients at or above it, called below it) |
| κ | the smallest cost ratio that meets every bound; new cases are called with it |
| on average | the bound holds on average over calibration sets; the range that 90 % of systems calibrated on so many patients reach stands beside it |
| with confidence 90 % | the bound holds in at least 90 % of calibration sets |
| n | calibration patients: neither trained the model nor chose anything |
| smallest α | the smallest bound that so many patients can certify at all |
| violated (`pams monitor`) | labeled new patients are incompatible with the bound at the stated level |

A guarantee is about patients like the calibration patients. [Certificates](certify.md) says what breaks it.
"""  # noqa: E501


def page() -> str:
    """The whole page."""
    return HEAD + table("Of calls", LABEL_METRICS) + table("Of probabilities", PROBABILITY_METRICS) + TAIL


def table(title: str, metrics: tuple[Metric, ...]) -> str:
    """One section: a row per metric."""
    rows = "\n".join(map(row, metrics))
    return f"\n## {title}\n\n| number | from worst to best | what it says |\n|---|---|---|\n{rows}\n"


def row(metric: Metric) -> str:
    """Name, range and meaning of a metric."""
    arrow = "↑" if metric.higher_is_better else "↓"
    text = f"{metric.meaning[0].upper()}{metric.meaning[1:]}. {NOTES.get(metric.key, '')}".strip()
    if metric.within_network:
        text += " Computed within each network, then averaged."
    return f"| **{metric.label}** {arrow} `{metric.key}` | {limits(metric)} | {text} |"


def limits(metric: Metric) -> str:
    """The range of a metric, the worst value first."""
    low, high = (bound(value, percent=metric.percent) for value in metric.bounds)
    return f"{low} to {high}" if metric.higher_is_better else f"{high} to {low}"


def bound(value: float, *, percent: bool) -> str:
    """One end of a range."""
    if not np.isfinite(value):
        return "unbounded"
    return f"{100 * value:g} %" if percent else f"{value:g}"


if __name__ == "__main__":
    atomic.write_text(PAGE, page())
