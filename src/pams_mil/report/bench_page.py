"""The benchmark as files: HTML page, Markdown, CSV, LaTeX, JSON and the Pareto picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pams_mil import atomic
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.table import FACTS
from pams_mil.report import figures
from pams_mil.report import text_tables as tables
from pams_mil.report.bench import EXTRA, TABLE, Bench, Row
from pams_mil.report.curve_chart import CurveSeries, curve_chart
from pams_mil.report.epochs import epoch_charts
from pams_mil.report.operating_table import operating_markdown, operating_rows
from pams_mil.report.page import environment

MOST_BANDS = 2
"""With more curves than this the bands are left out."""

_COLORS = """<style>
svg { font: 12px system-ui, sans-serif; --ink: #1b1f24; --dim: #667079; --line: #dfe3e8; background: #fff; }
text { fill: var(--ink); } .dim { fill: var(--dim); } .mid { text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: var(--line); } .s0 { fill: #1f6fb2; } .s1 { fill: #c4420a; } .s2 { fill: #1a8a6b; }
.s3 { fill: #8c4fa3; } .s4 { fill: #a07a00; } .s5 { fill: #5b6770; }
</style>"""


def write_bench(bench: Bench, out: Path | str) -> list[Path]:
    """Write everything; returns the files."""
    out = Path(out)
    rows = list(tables.csv_rows(bench))
    atomic.write_text(out / "table.md", operating_markdown(bench) + tables.markdown(bench))
    atomic.write_csv(out / "table.csv", [str(cell) for cell in rows[0]], rows[1:])
    atomic.write_text(out / "table.tex", tables.latex(bench))
    atomic.write_json(out / "bench.json", bench.to_json())
    atomic.write_text(out / "report.html", bench_page(bench))
    files = ["report.html", "table.md", "table.csv", "table.tex", "bench.json"]
    for number, model in enumerate(bench.models):
        name = "pareto.svg" if number == 0 else f"pareto_{number + 1}.svg"
        atomic.write_text(out / name, _standalone(str(_pareto(bench, model))))
        files.append(name)
    return [out / name for name in files]


def bench_page(bench: Bench) -> str:
    """The benchmark as one HTML page."""
    finest = bench.hierarchy.num_levels - 1
    return (
        environment()
        .get_template("bench.html.j2")
        .render(
            bench=bench,
            hierarchy=bench.hierarchy,
            columns=(*TABLE, *EXTRA),
            finest=finest,
            caption=tables.caption(bench),
            missed={model: figures.missed_urgency(_bars(bench.of_model(model))) for model in bench.models},
            pareto={model: _pareto(bench, model) for model in bench.models},
            spread=tables.spread_text,
            operating={model: operating_rows(bench, model) for model in bench.models},
            epochs={model: _epochs(bench.of_model(model)) for model in bench.models},
            curves={model: _curves(bench.of_model(model), bench.hierarchy) for model in bench.models},
            most_bands=MOST_BANDS,
            matched_head=tables.matched_head,
            matched_text=tables.matched_text,
        )
    )


def _curves(rows: list[Row], hierarchy: ClassHierarchy) -> object:
    """All rows of a model; many bands would hide the lines."""
    series = []
    for row in rows:
        values, points = row.pooled[-1].values, row.points
        if points is not None and len(rows) > MOST_BANDS:
            points = replace(points, band=None)
        series.append(CurveSeries(row.method, (values["under_call_rate"], values["over_call_rate"]), points))
    confusion = rows[0].pooled[-1].confusion.sum(1)
    ranks = hierarchy.ranks()
    shares = [float(confusion[ranks == rank].sum() / confusion.sum()) for rank in np.unique(ranks)]
    return curve_chart(series, shares)


def _epochs(rows: list[Row]) -> object:
    """Charts of the rows that were trained, in the colors of the curves; nothing where none was."""
    series = [(number, row.method, row.epochs) for number, row in enumerate(rows) if row.epochs is not None]
    return epoch_charts(series) if series else ""


def _bars(rows: list[Row]) -> list[figures.Bar]:
    bars = []
    for row in rows:
        scores = row.pooled[-1]
        low, high = scores.intervals.get("under_call_rate", (float("nan"),) * 2)
        bars.append(figures.Bar(row.method, scores.values["under_call_rate"], low, high))
    return bars


def _pareto(bench: Bench, model: str) -> object:
    finest = bench.hierarchy.num_levels - 1
    points = [
        figures.Point(row.method, row.spreads[finest, "acc"].mean, row.spreads[finest, "asmc"].mean)
        for row in bench.of_model(model)
    ]
    return figures.pareto(points, FACTS["acc"].label, f"{FACTS['asmc'].label}, milder mistakes")


def _standalone(svg: str) -> str:
    """The chart as a file of its own, with the colors that the page would give it."""
    head, _, rest = svg.partition(">")
    return head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + ">" + _COLORS + rest
