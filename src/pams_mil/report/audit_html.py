"""The audit as a page: a live first screen, and the statistics folded out of the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pams_mil import atomic
from pams_mil.evaluate.audit import Audit
from pams_mil.evaluate.operating_points import Band
from pams_mil.evaluate.readers import ReaderAudit
from pams_mil.metrics.metric import KAPPAS
from pams_mil.report import audit_tables
from pams_mil.report.charts import CurveSeries, curve_chart, model_charts
from pams_mil.report.first_screen import FirstScreen, curve_series, first_screen, matrix_cells
from pams_mil.report.live import Links, ScreenModel, write_slides
from pams_mil.report.page import READABLE, readable_level, render


def audit_page(audit: Audit, links: Mapping[str, Links] | None = None) -> str:
    """The audit as one HTML page; `links` by the names of models."""
    hierarchy = audit.hierarchy
    predictions = [model.predictions for model in audit.models]
    # Hundreds of boundaries would fill screens; scores.json has all of them.
    boundary_level = readable_level(hierarchy)

    def curves(level: int) -> Markup:
        return curve_chart(curve_series(predictions, [model.points[level] for model in audit.models], level))

    return render(
        "audit.html.j2",
        audit=audit,
        hierarchy=hierarchy,
        levels=range(hierarchy.num_levels - 1, -1, -1),
        screen=audit_screen(audit, links),
        pages=[model.links.pages for model in screen_models(audit, links)],
        tables=audit_tables,
        curves=curves,
        model_charts=model_charts,
        boundary_level=hierarchy.num_levels - 1 if boundary_level is None else boundary_level,
        matrix=matrix_cells,
        readable=READABLE,
        kappas=KAPPAS,
    )


def audit_bands(audit: Audit, level: int = -1) -> list[Band | None]:
    """The band around every model's curve at a level."""
    return [None if (points := model.points[level]) is None else points.band for model in audit.models]


def audit_screen(audit: Audit, links: Mapping[str, Links] | None, **options: Any) -> FirstScreen:
    """The first screen of an audit; `options` as in `live_data`."""
    return first_screen(screen_models(audit, links), bands=audit_bands(audit), penalty=audit.penalty, **options)


def screen_models(audit: Audit, links: Mapping[str, Links] | None) -> list[ScreenModel]:
    """What the first screen counts: all models, with the links of those that have some."""
    return [ScreenModel.of(model.predictions, (links or {}).get(model.name)) for model in audit.models]


def write_audit(audit: Audit, out: Path, links: Mapping[str, Links] | None = None) -> None:
    """Write report.html, scores.json and severe_errors.csv into `out`, and the slides of a large audit beside them."""
    # Rendered before anything is written, and written last: a page that is there finds what it links to.
    page = audit_page(audit, links)
    rows = [
        [model.name, e.slide_id, e.patient_id, e.true, e.predicted, e.gravity, e.probability_of_true]
        for model in audit.models
        for e in model.severe
    ]
    header = ["model", "slide_id", "patient_id", "true", "predicted", "gravity", "probability_of_true"]
    atomic.write_json(out / "scores.json", audit.to_json())
    atomic.write_csv(out / "severe_errors.csv", header, rows)
    write_slides(screen_models(audit, links), out)
    atomic.write_text(out / "report.html", page)


def reader_page(result: ReaderAudit) -> str:
    """The readers as one HTML page."""
    chart, model = None, result.curve
    if model is not None:  # every reader is a point beside the model's curve
        points = ((one.name, (one.missed.value, one.false_alarms.value)) for one in result.readers)
        readers = [CurveSeries(*point, model.shares) for point in points]
        chart = curve_chart([CurveSeries(result.model, model.decided, model.shares, model.curve), *readers])
    return render(
        "readers.html.j2",
        result=result,
        chart=chart,
        readers=audit_tables.reader_table(result),
        agreement=audit_tables.agreement_table(result),
    )
