"""The benchmark's table as Markdown, CSV and LaTeX: mean ± sd over seeds, the best bold, the second underlined."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pams_mil.evaluate.contrast import Contrast
from pams_mil.metrics.metric import METRICS
from pams_mil.report.bench import EXTRA, TABLE, Bench, Row

_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}  # fmt: skip


def spread_text(score: Contrast, metric: str, *, sign: str = "±", digits: int = 2) -> str:
    """Mean and population standard deviation over seeds, in the units of the metric.

    >>> spread_text(Contrast.over_seeds("acc", [0.4, 0.5]), "acc")
    '45.00 ± 5.00'
    >>> spread_text(Contrast.over_seeds("asmc", [float("inf")]), "asmc")
    'no errors'
    """
    if not math.isfinite(score.estimate):
        return "no errors" if metric == "asmc" and score.missing else "–"
    scale = 100 if METRICS[metric].percent else 1
    text = f"{scale * score.estimate:.{digits}f}"
    return text if math.isnan(score.sd) else f"{text} {sign} {scale * score.sd:.{digits}f}"


def matched_head(bench: Bench, level: int = -1) -> str:
    """The head of the column of misses at equal false alarms."""
    return f"{METRICS[bench.missed_key(level)].label} ↓"


def matched_text(bench: Bench, row: Row, level: int) -> str:
    """Missed urgency in percent at the table's share of false alarms, and p of the difference from the reference."""
    key = bench.missed_key(level)
    score = row.levels[level].scores.get(key)
    if score is None:
        return "–"
    contrast = None if row.comparison is None else row.comparison.levels[bench.hierarchy.level_names[level]].get(key)
    p = None if contrast is None else contrast.p
    return f"{100 * score.estimate:.1f}" + ("" if p is None else f" (p {p:.2g})")


def caption(bench: Bench) -> str:
    """What the numbers are, in one sentence."""
    counts = sorted({len(row.repetitions) for row in bench.rows})
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = "one network each" if counts == [1] else f"mean ± population standard deviation over {runs} seeds per row"
    subset = "Test" if bench.split == "test" else "Validation"
    return (
        f"{subset} scores in percent, {what} (same seeds and budget for all); scores of coarser levels are lifted "
        "from the finest. Best bold, second underlined, for each model."
    )


def markdown(bench: Bench) -> str:
    """A table per level, finest first."""
    parts = [caption(bench), ""]
    for level in reversed(range(bench.hierarchy.num_levels)):
        heads = [f"{METRICS[key].label} {'↑' if METRICS[key].higher_is_better else '↓'}" for key in (*TABLE, *EXTRA)]
        parts += [f"**{markdown_text(bench.hierarchy.level_names[level])}**", ""]
        heads.append(markdown_text(matched_head(bench, level)))
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
    yield ["model", "method", "level", "metric", "mean", "sd", "seeds", "ci_low", "ci_high", "varied", "difference",
           "difference_low", "difference_high", "p", "adjusted_low", "adjusted_high", "adjusted_p"]  # fmt: skip
    for row in bench.rows:
        for scores in row.levels:
            for key, score in scores.scores.items():
                contrast = None if row.comparison is None else row.comparison.levels[scores.name].get(key)
                tested: list[object] = [""] * 7
                if contrast is not None:
                    tested = [contrast.difference, *contrast.interval, contrast.p_value]
                    tested += [*contrast.shown_interval, contrast.adjusted_p]
                numbers = [score.estimate, score.sd, len(score.seeds), *score.interval, score.varied, *tested]
                yield [row.model, row.method, scores.name, key, *(_number(number) for number in numbers)]


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
