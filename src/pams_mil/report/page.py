"""HTML pages that need nothing else: styles, scripts, charts and data in one file, everything escaped.

Every page allows exactly the styles and scripts that it holds, by their hashes, and nothing from anywhere else.
"""

from __future__ import annotations

import math
import re
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from pams_mil import __version__
from pams_mil.errors import counted
from pams_mil.metrics.metric import METRICS
from pams_mil.report import svg
from pams_mil.report.live import script_hash
from pams_mil.report.report_table import ReportTable, term

_INLINE = re.compile(r"<(style|script)(?: [^>]*)?>(.*?)</\1>", re.DOTALL)
_DATA = '<script type="application/json"'


@cache  # compiled templates are kept in it
def environment() -> jinja2.Environment:
    """The templates, with autoescaping on and our number formats as filters."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("pams_mil", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(
        version=__version__, facts=METRICS, series=svg.series, static=static, term=term, report_table=ReportTable
    )
    env.filters.update(
        value=format_value,
        interval=format_interval,
        p=format_p,
        counted=counted,
        share=format_share,
        shares=format_shares,
    )
    return env


@cache
def static(name: str) -> Markup:
    """A style sheet or script of ours, to stand inside a page."""
    return Markup((resources.files("pams_mil.report") / "static" / name).read_text("utf-8"))  # noqa: S704  ours


def render(template: str, **content: Any) -> str:
    """A page from its template, with the hashes of its styles and scripts in its Content-Security-Policy."""
    page = environment().get_template(template).render(**content)
    allowed: dict[str, list[str]] = {"style": [], "script": []}
    for block in _INLINE.finditer(page):
        if not block[0].startswith(_DATA):  # data is never run
            allowed[block[1]].append(script_hash(block[2]))
    # The first ones are in the head of the page, above everything that comes from files.
    for kind, hashes in allowed.items():
        page = page.replace(f"@{kind}-hashes@", " ".join(dict.fromkeys(hashes)) or "'none'", 1)
    return page


def format_value(value: float, key: str) -> str:
    """A metric for people: percent or plain, and words where there is no number.

    >>> format_value(0.92725, "ascc"), format_value(float("inf"), "asmc"), format_value(15.0, "severe_errors")
    ('92.7 %', 'no errors', '15')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "no errors"
    if key == "severe_errors":
        return f"{value:.0f}"
    return f"{100 * value:.1f} %" if METRICS[key].percent else f"{value:.2f}"


def format_interval(pair: tuple[float, float] | None, key: str) -> str:
    """A 95 % interval in the units of its metric."""
    if pair is None or not all(map(math.isfinite, pair)):
        return ""
    scale = 100 if METRICS[key].percent else 1
    digits = 1 if METRICS[key].percent else 2
    return f"{scale * pair[0]:.{digits}f} to {scale * pair[1]:.{digits}f}"


def format_share(value: float, signed: bool = False) -> str:
    """A share in percent, or a difference of shares in points.

    >>> format_share(0.195), format_share(-0.02, True), format_share(float("nan"))
    ('19.5 %', '-2.0', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f} %"


def format_shares(pair: tuple[float, float]) -> str:
    """The bounds of an interval of shares, in percent."""
    return "" if not all(map(math.isfinite, pair)) else f"{100 * pair[0]:.1f} to {100 * pair[1]:.1f}"


def format_p(p: float | None) -> str:
    """A p-value for people.

    >>> format_p(0.0123), format_p(0.00002), format_p(None)
    ('0.012', '< 0.001', '–')
    """
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"
