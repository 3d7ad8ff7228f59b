"""The page of readers: what each misses and raises, how far they agree, and where the model is among them."""

from __future__ import annotations

from pams_mil.evaluate.readers import ReaderAudit, ReaderShare
from pams_mil.report.page import format_share, format_shares, render
from pams_mil.report.report_table import ReportTable, TableCell, TableHead


def reader_page(result: ReaderAudit) -> str:
    """The readers as one HTML page."""
    return render("readers.html.j2", result=result, readers=reader_table(result), agreement=agreement_table(result))


def reader_table(result: ReaderAudit) -> ReportTable:
    """Every reader's rates with intervals, and the model's misses at the reader's false alarms beside them."""
    head: list[str | TableHead] = ["reader", "slides", "missed ↓", "false alarms ↓"]
    if result.model:
        meaning = "misses of the model at this reader's false alarms minus this reader's misses"
        head.append(TableHead(f"{result.model} misses more by", meaning))
    rows: list[list[str | TableCell]] = []
    for one in result.readers:
        gap = [] if one.model_misses_more is None else [_cell(one.model_misses_more, signed=True)]
        rows.append([one.name, str(one.slides), _cell(one.missed), _cell(one.false_alarms), *gap])
    return ReportTable(head, rows)


def agreement_table(result: ReaderAudit) -> ReportTable:
    """Cohen's kappa of every pair of readers."""
    kappa = TableHead("Cohen's kappa ↑", "agreement beyond chance with quadratic weights; 1 is complete")
    rows: list[list[str | TableCell]] = [
        [
            f"{pair.first}, {pair.second}", str(pair.slides), format_share(pair.same),
            "–" if pair.cohen_kappa != pair.cohen_kappa else f"{pair.cohen_kappa:.2f}",
        ]
        for pair in result.agreement
    ]  # fmt: skip
    return ReportTable(["readers", "slides", "same class", kappa], rows)


def _cell(share: ReaderShare, *, signed: bool = False) -> TableCell:
    return TableCell(format_share(share.value, signed), format_shares((share.low, share.high)))
