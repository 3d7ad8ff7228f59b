"""The benchmark as files: HTML page, Markdown, CSV, LaTeX, JSON and the Pareto picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from markupsafe import Markup

from pams_mil import atomic
from pams_mil.evaluate.verdict import verdict
from pams_mil.metrics.metric import METRICS
from pams_mil.report import bench_charts, svg
from pams_mil.report import text_tables as tables
from pams_mil.report.audit_html import difference_table, metric_head, write_slides
from pams_mil.report.bench import EXTRA, TABLE, Bench, Row
from pams_mil.report.epochs import epoch_charts
from pams_mil.report.first_screen import FirstScreen, first_screen
from pams_mil.report.live import ScreenModel
from pams_mil.report.operating_table import operating_markdown, operating_rows
from pams_mil.report.order_section import order_section
from pams_mil.report.page import format_interval, render
from pams_mil.report.readable import short_order
from pams_mil.report.report_table import Mark, ReportTable, TableCell, TableHead


@dataclass(frozen=True)
class Further:
    """What a reader of the same runs adds to a benchmark's own tables; pictures by file name."""

    tables: Sequence[ReportTable] = ()
    pictures: Mapping[str, Markup] = field(default_factory=dict)


NOTHING = Further()
MOST_BANDS = 2
"""With more curves than this the bands are left out."""


def write_bench(bench: Bench, out: Path | str, further: Further = NOTHING) -> list[Path]:
    """Write everything; returns the files."""
    out = Path(out)
    atomic.write_text(out / "report.html", bench_page(bench, further))
    write_slides([replace(row.predictions, name=row.name) for row in bench.rows], out)
    pictures = [f"{name}.svg" for name in write_pareto(bench, out)]
    return [out / name for name in ("report.html", *write_tables(bench, out), *pictures, *write_further(further, out))]


def write_further(further: Further, out: Path) -> list[str]:
    """Write further tables to `further.md` and pictures to files of their own; returns the names."""
    for name, drawn in further.pictures.items():
        atomic.write_text(out / name, svg.standalone(drawn))
    if not further.tables:
        return list(further.pictures)
    atomic.write_text(
        out / "further.md", "\n\n".join(f"{one.caption}\n\n{one.markdown()}" for one in further.tables) + "\n"
    )
    return ["further.md", *further.pictures]


def tables_page(title: str, further: Further, out: Path) -> list[Path]:
    """Write the page of a study that compares no methods; returns the files."""
    atomic.write_text(out / "report.html", render("tables.html.j2", title=title, further=further))
    return [out / "report.html", *(out / name for name in write_further(further, out))]


def write_tables(bench: Bench, out: Path) -> tuple[str, ...]:
    """Write the tables as Markdown, CSV, LaTeX and JSON; returns their names."""
    rows = list(tables.csv_rows(bench))
    atomic.write_text(out / "table.md", operating_markdown(bench) + tables.markdown(bench))
    atomic.write_csv(out / "table.csv", [str(cell) for cell in rows[0]], rows[1:])
    atomic.write_text(out / "table.tex", tables.latex(bench))
    atomic.write_json(out / "bench.json", bench.to_json())
    return ("table.md", "table.csv", "table.tex", "bench.json")


def write_pareto(bench: Bench, out: Path) -> dict[str, str]:
    """Write accuracy against mildness of mistakes, one SVG per model; the model of every file, named without `.svg`."""
    models = {"pareto" if not number else f"pareto_{number + 1}": model for number, model in enumerate(bench.models)}
    for name, model in models.items():
        atomic.write_text(out / f"{name}.svg", svg.standalone(_pareto(bench, model)))
    return models


def bench_page(bench: Bench, further: Further = NOTHING) -> str:
    """The benchmark as one HTML page."""
    return render(
        "bench.html.j2",
        bench=bench,
        further=further,
        hierarchy=bench.hierarchy,
        orders={model: order_section(one) for model, one in bench.orders.items()},
        scores=[score_table(bench, level) for level in range(bench.hierarchy.num_levels)],
        differences=lambda comparison: difference_table(comparison, bench.hierarchy, (*TABLE, *EXTRA)),
        caption=tables.caption(bench),
        pareto={model: _pareto(bench, model) for model in bench.models},
        operating={model: operating_rows(bench, model) for model in bench.models},
        epochs={model: _epochs(bench.of_model(model)) for model in bench.models},
        screen=_screen(bench),
        verdicts=lambda row: verdict(row.comparison),
        order=short_order(bench.hierarchy),
    )


def score_table(bench: Bench, level: int) -> ReportTable:
    """Every row's scores at a level; the best of each model bold, the second underlined."""
    marks: dict[int, Mark] = {1: "best", 2: "second"}
    keys = (*TABLE, *EXTRA)
    rows: list[list[str | TableCell]] = []
    for row in bench.rows:
        cells = [
            TableCell(
                tables.spread_text(row.spreads[level, key], key),
                format_interval(row.levels[level].intervals.get(key), key),
                marks.get(bench.place(row, level, key), ""),
            )
            for key in keys
        ]
        rows.append([row.model, row.method, str(row.networks), *cells, tables.matched_text(bench, row, level)])
    head: list[str | TableHead] = ["model", "method", "networks", *map(metric_head, keys)]
    head.append(tables.matched_head(bench, level))
    return ReportTable(head, rows, text=(0, 1))


def _screen(bench: Bench) -> FirstScreen:
    """All rows; many bands would hide the lines."""
    models = [ScreenModel.of(row.predictions, row.name) for row in bench.rows]
    bands = [None if row.points is None else row.points.band for row in bench.rows]
    return first_screen(models, bands=bands if len(bands) <= MOST_BANDS else [])


def _epochs(rows: list[Row]) -> object:
    """Charts of the rows that were trained, in the colors of the curves; nothing where none was."""
    series = [(number, row.method, row.epochs) for number, row in enumerate(rows) if row.epochs is not None]
    return epoch_charts(series) if series else ""


def _pareto(bench: Bench, model: str) -> Markup:
    finest = bench.hierarchy.num_levels - 1
    points = [
        bench_charts.Point(row.method, row.levels[finest].values["acc"], row.levels[finest].values["asmc"])
        for row in bench.of_model(model)
    ]
    return bench_charts.pareto(points, METRICS["acc"].label, f"{METRICS['asmc'].label}, milder mistakes")
