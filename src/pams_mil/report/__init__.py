"""What people look at: tables, figures and self-contained HTML pages; names are loaded on first use.

`audit_page(pams_mil.audit([...]))` is the page of `pams audit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.lazy import lazy_names

if TYPE_CHECKING:
    from pams_mil.report.bench import Bench, summarize
    from pams_mil.report.bench_page import write_bench
    from pams_mil.report.page import audit_page

_HOMES = {
    "Bench": "bench",
    "audit_page": "page",
    "summarize": "bench",
    "write_bench": "bench_page",
}

__all__ = [
    "Bench",
    "audit_page",
    "summarize",
    "write_bench",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
