"""The benchmark as files: HTML page, Markdown, CSV, LaTeX, JSON and the Pareto picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from markupsafe import Markup

from pams_mil import atomic
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.scores import LevelScores
from pams_mil.evaluate.verdict import verdict
from pams_mil.metrics.metric import FALSE_ALARMS, METRICS, missed_key
from pams_mil.report import charts, svg
from pams_mil.report.audit_tables import difference_table, order_section
from pams_mil.report.bench import EXTRA, TABLE, Bench, Row
from pams_mil.report.charts import epoch_charts
from pams_mil.report.first_screen import first_screen
from pams_mil.report.live import Links, ScreenModel, write_slides
from pams_mil.report.page import (
    Column,
    ReportTable,
    TableCell,
    format_interval,
    markdown_text,
    render,
)


@dataclass(frozen=True)
class Further:
    """What a reader of the same runs adds to a benchmark's own tables; pictures by file name."""

    tables: Sequence[ReportTable] = ()
    pictures: Mapping[str, Markup] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """What is written of it, by file name."""
        tables = "\n\n".join(f"{one.caption}\n\n{one.markdown()}" for one in self.tables)
        pictures = {name: svg.standalone(drawn) for name, drawn in self.pictures.items()}
        return {**({"further.md": f"{tables}\n"} if self.tables else {}), **pictures}


NOTHING = Further()
MOST_BANDS = 2
"""With more curves than this the bands are left out."""


def write_bench(
    bench: Bench, out: Path | str, further: Further = NOTHING, links: Mapping[str, Links] | None = None
) -> list[Path]:
    """Write the page, tables as Markdown, CSV, LaTeX and JSON, and pictures; returns the files.

    `links` by the names of rows. Accuracy against mildness of mistakes is one SVG per model.
    """
    out, (header, *rows) = Path(out), csv_rows(bench)
    texts = {
        "report.html": bench_page(bench, further, links),
        "table.md": operating_markdown(bench) + markdown(bench),
        "table.tex": latex(bench),
        **{
            f"pareto{f'_{number}' if number > 1 else ''}.svg": svg.standalone(_pareto(bench, model))
            for number, model in enumerate(bench.models, 1)
        },
        **further.files,
    }
    for name, text in texts.items():
        atomic.write_text(out / name, text)
    atomic.write_csv(out / "table.csv", [str(cell) for cell in header], rows)
    atomic.write_json(out / "bench.json", bench.to_json())
    write_slides(_models(bench, links), out)
    return [out / name for name in (*texts, "table.csv", "bench.json")]


def tables_page(title: str, further: Further, out: Path) -> list[Path]:
    """Write the page of a study that compares no methods; returns the files."""
    texts = {"report.html": render("tables.html.j2", title=title, further=further), **further.files}
    for name, text in texts.items():
        atomic.write_text(out / name, text)
    return [out / name for name in texts]


def bench_page(bench: Bench, further: Further = NOTHING, links: Mapping[str, Links] | None = None) -> str:
    """The benchmark as one HTML page; `links` as in `write_bench`."""
    bands = [None if row.points is None else row.points.band for row in bench.rows]
    return render(
        "bench.html.j2",
        bench=bench,
        further=further,
        hierarchy=bench.hierarchy,
        orders={model: order_section(one) for model, one in bench.orders.items()},
        scores=[score_table(bench, level, digits=1) for level in range(bench.hierarchy.num_levels)],
        differences=lambda comparison: difference_table(comparison, bench.hierarchy, (*TABLE, *EXTRA)),
        caption=caption(bench),
        pareto=partial(_pareto, bench),
        operating=partial(operating_table, bench),
        epochs=lambda model: epoch_charts([(row.method, row.epochs) for row in bench.of_model(model)]),
        # Many bands would hide the lines.
        screen=first_screen(_models(bench, links), bands=bands if len(bands) <= MOST_BANDS else []),
        verdicts=_verdict,
    )


def score_table(
    bench: Bench, level: int, digits: int = 2, keys: Sequence[str] = (*TABLE, *EXTRA), *, networks: bool = True
) -> ReportTable:
    """Every row's scores at a level; the best of each model bold, the second underlined; `networks`: count them."""

    def score(row: Row, key: str) -> TableCell:
        interval = format_interval(row.levels[level].intervals.get(key), key)
        return TableCell(spread_text(row.score(key, level), key, digits=digits), interval, bench.mark(row, level, key))

    # The caption says how many networks all rows have.
    several = networks and len({row.networks for row in bench.rows}) > 1
    return ReportTable.of(bench.rows, [
        Column("model", "model"),
        Column("method", "method"),
        *([Column("networks", "networks")] if several else []),
        *(Column.of(key, partial(score, key=key)) for key in keys),
        Column.of(bench.missed_key(level), lambda row: matched_text(bench, row, level)),
    ], text=(0, 1))  # fmt: skip


def _verdict(row: Row) -> str:
    """The comparison with the reference in one sentence, which names the model that both trained."""
    one = row.comparison
    if one is None:
        return ""
    names = [f"{name} on {row.model}" for name in (one.reference, one.candidate)]
    void = tuple(f"{name} on {row.model}" for name in one.void)
    return verdict(replace(one, reference=names[0], candidate=names[1], void=void))


def _models(bench: Bench, links: Mapping[str, Links] | None) -> list[ScreenModel]:
    return [ScreenModel.of(row.predictions, (links or {}).get(row.name), name=row.name) for row in bench.rows]


def _pareto(bench: Bench, model: str) -> Markup:
    rows = bench.of_model(model)
    points = [(row.method, row.levels[-1].values["acc"], row.levels[-1].values["asmc"]) for row in rows]
    return charts.pareto(points, METRICS["acc"].label, f"{METRICS['asmc'].label}, milder mistakes")


_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}  # fmt: skip
_LATEX_MARKS = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}


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


def matched_text(bench: Bench, row: Row, level: int) -> str:
    """Missed urgency in percent at the table's share of false alarms, and p of the difference from the reference."""
    key = bench.missed_key(level)
    score = row.levels[level].scores.get(key)
    if score is None:
        return "–"
    contrast = row.against(key, level)
    p = None if contrast is None else contrast.p
    return f"{100 * score.estimate:.1f}" + ("" if p is None else f" (p {p:.2g})")


def caption(bench: Bench) -> str:
    """What the numbers are, in one sentence."""
    counts = sorted({len(row.runs) for row in bench.rows})
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = "one network each" if counts == [1] else f"mean ± population standard deviation over {runs} seeds per row"
    subset = "Test" if bench.split == "test" else "Validation"
    return (
        f"{subset} scores in percent, {what} (same seeds for all); scores of coarser levels are lifted "
        "from the finest. Best bold, second underlined, for each model."
    )


def markdown(bench: Bench) -> str:
    """A table per level, finest first."""
    parts = [caption(bench), ""]
    for level in reversed(range(bench.hierarchy.num_levels)):
        parts += [f"**{markdown_text(bench.hierarchy.level_names[level])}**", ""]
        parts += [score_table(bench, level).markdown(), ""]
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
                _LATEX_MARKS[bench.mark(row, level, key)].format(spread_text(row.score(key, level), key, sign=r"$\pm$"))
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
        for level, scores in enumerate(row.levels):
            for key, score in scores.scores.items():
                contrast = row.against(key, level)
                tested: list[object] = [""] * 7
                if contrast is not None:
                    tested = [contrast.difference, *contrast.interval, contrast.p_value]
                    tested += [*contrast.shown_interval, contrast.adjusted_p]
                numbers = [score.estimate, score.sd, len(score.seeds), *score.interval, score.varied, *tested]
                yield [row.model, row.method, scores.name, key, *(_number(number) for number in numbers)]


def _number(value: object) -> object:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def _tex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


CALIBRATED = "Calibrated, Bayes rule for AsCC: missed / false alarms; AsCC"


def operating_table(bench: Bench, model: str) -> ReportTable:
    """One row per method of a model, in percent; a dash where a file has no probabilities.

    All rows are compared at one stated share of false alarms, so that they compare with one another too. Behind ± the
    deviation over seeds; intervals and p-values are adjusted for the rows of the table and take networks as chance
    where there are several seeds.
    """
    key = bench.missed_key()

    def spread(metric: str) -> Callable[[Row], str]:
        return lambda row: spread_text(row.score(metric), metric, digits=1)

    def difference(row: Row) -> str | None:
        contrast = row.against(key)
        return (None if row.points is None else "") if contrast is None else _difference(contrast)

    least = METRICS["least_urgent_recall"]
    columns = [
        Column("method", "method"),
        Column.of("urgency_auc", spread("urgency_auc")),
        Column.of("severity_auc", spread("severity_auc")),
        Column.of(key, spread(key)),
        Column("difference (95 %), adjusted p", difference,
               "misses minus those of the reference, where both raise the same false alarms"),
        Column("at 5 / 10 / 20 / 30 % ↓", lambda row: None if row.points is None else " / ".join(
            f"{100 * row.score(missed_key(share)).estimate:.1f}" for share in FALSE_ALARMS),
               "misses at these shares of false alarms"),
        Column("As decided: missed / false alarms", lambda row: _pair(row.levels[-1]),
               "shares of the slides, with the calls in the files"),
        Column(f"{bench.hierarchy.names()[0]} recognized ↑", spread("least_urgent_recall"), least.meaning),
    ]  # fmt: skip
    if any(row.calibrated_scores is not None for row in bench.rows):
        columns.append(Column(CALIBRATED, lambda row: None if (scores := row.calibrated_scores) is None else (
            f"{_pair(scores)}; {100 * scores.values['ascc']:.1f}")))  # fmt: skip
    return ReportTable.of(bench.of_model(model), columns)


def operating_markdown(bench: Bench) -> str:
    """The table of every model, in Markdown."""
    lead = "Operating points, in percent of the test slides; they are chosen on the slides that are scored.\n\n"
    return lead + "".join(
        f"**{markdown_text(model)}**\n\n{operating_table(bench, model).markdown()}\n\n" for model in bench.models
    )


def _pair(scores: LevelScores) -> str:
    return " / ".join(f"{100 * scores.values[key]:.1f}" for key in ("missed_rate", "false_alarm_rate"))


def _difference(contrast: Contrast) -> str:
    low, high = contrast.shown_interval
    between = "" if math.isnan(low) else f" ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * contrast.difference:+.1f}{between}" + ("" if contrast.p is None else f", p {contrast.p:.2g}")
