"""The benchmark's table as Markdown, CSV and LaTeX: mean ± sd over runs, the best bold, the second underlined."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pams_mil.metrics.metric import METRICS
from pams_mil.report.bench import EXTRA, TABLE, Bench, Row, SeedSpread

_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}  # fmt: skip


def spread_text(spread: SeedSpread, metric: str, *, sign: str = "±", digits: int = 2) -> str:
    """Mean and deviation in the units of the metric.

    >>> spread_text(SeedSpread(0.4759, 0.0213, 5), "acc")
    '47.59 ± 2.13'
    >>> spread_text(SeedSpread(float("nan"), float("nan"), 0, 3), "asmc")
    'no errors'
    """
    if math.isnan(spread.mean):
        return "no errors" if metric == "asmc" and spread.missing else "–"
    scale = 100 if METRICS[metric].percent else 1
    text = f"{scale * spread.mean:.{digits}f}"
    return text if math.isnan(spread.sd) else f"{text} {sign} {scale * spread.sd:.{digits}f}"


def matched_head(bench: Bench) -> str:
    """The head of the column of misses at equal false alarms."""
    return f"Missed at {bench.reference}'s false alarms ↓"


def matched_text(bench: Bench, row: Row, level: int) -> str:
    """Missed urgency in percent at the reference's false alarms, and p of the difference from it."""
    name = bench.hierarchy.level_names[level]
    found = None if row.comparison is None else row.comparison.matched.get(name)
    if found is not None:
        return f"{100 * found.missed.candidate:.1f}" + ("" if found.missed.p is None else f" (p {found.missed.p:.2g})")
    reference = matched_reference(bench, row.model, name) if row.method == bench.reference else None
    return "–" if reference is None else f"{100 * reference:.1f}"


def matched_reference(bench: Bench, model: str, level_name: str) -> float | None:
    """What the reference itself misses at its own false alarms; None where nothing was compared with it."""
    found = [row.comparison.matched for row in bench.of_model(model) if row.comparison is not None]
    return next((matched[level_name].missed.reference for matched in found if level_name in matched), None)


def caption(bench: Bench) -> str:
    """What the numbers are, in one sentence."""
    counts = sorted({len(row.repetitions) for row in bench.rows})
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = "one run" if counts == [1] else f"mean ± population standard deviation over {runs} runs"
    subset = "Test" if bench.split == "test" else "Validation"
    return (
        f"{subset} scores in percent, {what} per row (same seeds and budget for all); scores of coarser levels are "
        "lifted from the finest. Best bold, second underlined, for each model."
    )


def markdown(bench: Bench) -> str:
    """A table per level, finest first."""
    parts = [caption(bench), ""]
    for level in reversed(range(bench.hierarchy.num_levels)):
        heads = [f"{METRICS[key].label} {'↑' if METRICS[key].higher_is_better else '↓'}" for key in (*TABLE, *EXTRA)]
        parts += [f"**{markdown_text(bench.hierarchy.level_names[level])}**", ""]
        heads.append(markdown_text(matched_head(bench)))
        parts += [markdown_row(["model", "method", *heads]), markdown_row(["---"] * (2 + len(heads)))]
        for row in bench.rows:
            cells = [_marked(bench, row, level, key, "**{}**", "<u>{}</u>") for key in (*TABLE, *EXTRA)]
            cells.append(matched_text(bench, row, level))
            parts.append(markdown_row([markdown_text(row.model), markdown_text(row.method), *cells]))
        parts.append("")
    return "\n".join(parts)


def latex(bench: Bench) -> str:
    r"""A booktabs table: methods down, the paper's four metrics per level across."""
    levels = list(range(bench.hierarchy.num_levels))
    words = _tex(caption(bench)).replace("±", r"$\pm$")
    groups = [rf"\multicolumn{{{len(TABLE)}}}{{c}}{{{_tex(bench.hierarchy.level_names[level])}}}" for level in levels]
    heads = [_tex(METRICS[key].label) for _ in levels for key in TABLE]
    lines = [
        r"\begin{table}",
        rf"\caption{{{words}}}",
        r"\begin{tabular}{ll" + "c" * len(heads) + "}",
        r"\toprule",
        " & & " + " & ".join(groups) + r" \\",
        "Model & Method & " + " & ".join(heads) + r" \\",
    ]
    for model in bench.models:
        lines.append(r"\midrule")
        for row in bench.of_model(model):
            cells = [
                _marked(bench, row, level, key, r"\textbf{{{}}}", r"\underline{{{}}}", sign=r"$\pm$")
                for level in levels
                for key in TABLE
            ]
            lines.append(f"{_tex(model)} & {_tex(row.method)} & " + " & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def csv_rows(bench: Bench) -> Iterator[list[object]]:
    """Long form: one line per row, level and metric, with interval and test against the reference."""
    yield ["model", "method", "level", "metric", "mean", "sd", "runs", "ci_low", "ci_high",
           "difference", "difference_low", "difference_high", "p_value", "p_value_holm"]  # fmt: skip
    for row in bench.rows:
        for (level, key), spread in row.spreads.items():
            name = bench.hierarchy.level_names[level]
            low, high = row.pooled[level].intervals.get(key, (math.nan, math.nan))
            found = None if row.comparison is None else row.comparison.levels[name].get(key)
            tested: list[object] = [""] * 5
            if found is not None:
                tested = [found.difference, *found.interval, found.p_value, found.corrected_p]
            numbers = [spread.mean, spread.sd, spread.n, low, high, *tested]
            yield [row.model, row.method, name, key, *(_number(number) for number in numbers)]
        for name, match in ({} if row.comparison is None else row.comparison.matched).items():
            gap = match.missed
            tested = [gap.difference, *gap.interval, gap.p_value, gap.corrected_p]
            numbers = [gap.candidate, math.nan, math.nan, math.nan, math.nan, *tested]
            key = "missed_at_reference_false_alarms"
            yield [row.model, row.method, name, key, *(_number(number) for number in numbers)]


def _marked(bench: Bench, row: Row, level: int, key: str, best: str, second: str, *, sign: str = "±") -> str:
    text = spread_text(row.spreads[level, key], key, sign=sign)
    if len(bench.of_model(row.model)) < 2:
        return text
    return {1: best, 2: second}.get(bench.place(row, level, key), "{}").format(text)


def _number(value: object) -> object:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(cells) + " |"


def markdown_text(text: str) -> str:
    """A name as a cell of a table, whatever it holds."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _tex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
