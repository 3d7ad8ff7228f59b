"""How the verbs that audit show and write their results.

In a terminal metrics go down and models across, as many side by side as there is room for.

Every value keeps its interval: beside it where there is room, else beneath it. More models than fit are shown in
further tables, so that no name and no number is cut.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from glob import escape, glob
from os.path import commonprefix, relpath
from pathlib import Path
from urllib.parse import quote

from rich.table import Table
from rich.text import Text

from pams_mil import atomic
from pams_mil.cli.console import make_table, output, print_json, print_note, print_result
from pams_mil.data.bags.filenames import FileNames
from pams_mil.errors import counted
from pams_mil.evaluate.audit import Audit
from pams_mil.evaluate.orders import OrderAudit
from pams_mil.evaluate.readers import ReaderAudit
from pams_mil.evaluate.scores import LevelScores
from pams_mil.metrics.metric import METRICS, own_metrics
from pams_mil.report import bench_page
from pams_mil.report.audit_html import reader_page, write_audit
from pams_mil.report.audit_tables import (
    agreement_table,
    finding_table,
    member_table,
    rate_table,
    reader_table,
    subgroup_table,
)
from pams_mil.report.bench import Bench
from pams_mil.report.live import Links
from pams_mil.report.page import ReportTable, TableCell, format_interval, format_value, short_order

Row = tuple[str, LevelScores]
COLUMNS = ("acc", "auc", "ascc", "asmc", "risk", "missed_rate", "false_alarm_rate")
BENCH_COLUMNS = ("acc", "auc", "ascc", "asmc", "missed_rate")
_HEAD_WIDTH, _STACKED_WIDTH, _BESIDE_WIDTH = 20, 15, 26


def score_tables(result: Audit, level: int, width: int) -> list[Table]:
    """The tables of one level for a terminal of this many columns; the first has the title."""
    hierarchy = result.hierarchy
    rows: list[Row] = []
    for model in result.models:
        rows.append((model.name, model.levels[level]))
        rows += [] if model.subset is None else [(model.subset.name, model.subset_levels[level])]
    room = width - _HEAD_WIDTH
    beside = len(rows) * _BESIDE_WIDTH <= room
    most = len(rows) if beside else max(1, room // _STACKED_WIDTH)
    title = f"{hierarchy.level_names[level]}: {short_order(hierarchy, level)}"
    tables = []
    for start in range(0, len(rows), most):
        tables.append(_table(rows[start : start + most], rows, title, beside=beside))
        title = ""
    return tables


def page_table(content: ReportTable, title: str = "", *, small: bool = True) -> Table:
    """A table of the pages, for a terminal: small print there stands below its number; below a name it is left out."""
    styles, names = {"best": "bold", "second": "underline"}, len(content.text)

    def shown(cell: TableCell, column: int) -> Text:
        below = f"\n[{cell.small}]" if cell.small and small and column >= names else ""
        return Text(cell.text, style=styles.get(cell.mark, "")) + Text(below, style="dim")

    rows = [[shown(cell, column) for column, cell in enumerate(row)] for row in content.cells]
    heads = [head.text for head in content.heads]
    return make_table(heads, rows, title=title or content.caption, left=names)


def show_orders(audit: OrderAudit, model: str = "") -> None:
    """Print rates and verdicts by order; `model` is what a benchmark trained."""
    output.print()
    output.print(page_table(rate_table(audit), "By order of urgency"))
    for sentence in audit.sentences:
        print_result(f"{model}: {sentence}" if model else sentence)


def _table(shown: Sequence[Row], rows: Sequence[Row], title: str, *, beside: bool) -> Table:
    width = (_BESIDE_WIDTH if beside else _STACKED_WIDTH) - 3
    heads = ["\n".join(textwrap.wrap(label, width)) or label for label, _ in shown]
    seeds = [max(1, len(scores.scores["acc"].seeds)) for _, scores in shown]
    lines: list[list[str | Text]] = [
        ["Slides", *(f"{scores.n // of:,}" for (_, scores), of in zip(shown, seeds, strict=True))],
        ["Errors", *(f"{scores.errors / of:,.0f}" for (_, scores), of in zip(shown, seeds, strict=True))],
        ["Missed, count ↓", *(f"{scores.values['severe_errors']:,.0f}" for _, scores in shown)],
    ]
    for key in (*COLUMNS, *own_metrics()):
        if key == "auc" and all(scores.values["auc"] != scores.values["auc"] for _, scores in rows):
            continue  # no model of the audit has probabilities
        head = f"{METRICS[key].label} {'↑' if METRICS[key].higher_is_better else '↓'}"
        lines.append([head, *(_cell(scores, key, beside=beside) for _, scores in shown)])
    return make_table(["", *heads], lines, title=title, wrap=False)


def _cell(scores: LevelScores, key: str, *, beside: bool) -> Text:
    value = Text(format_value(scores.values[key], key))
    bracket = format_interval(scores.intervals.get(key), key)
    if not bracket:
        return value
    return value + Text(f"  [{bracket}]" if beside else f"\n[{bracket.replace(' to ', '–')}]", style="dim")


def show(result: Audit) -> None:
    """Print the audit for people."""
    hierarchy = result.hierarchy
    for sentence in result.cautions:
        print_result(f"Caution, {sentence}", style="bold yellow")
    for model in result.models:
        read = model.predictions
        size = f"{counted(len(set(read.slide_ids)), 'slide')}, {counted(read.num_patients, 'patient')}"
        networks = len(set(read.network.tolist()))
        size += f", {counted(networks, 'network')} of {counted(read.num_seeds, 'seed')}" if networks > 1 else ""
        text = f"{model.name}: {size}, read as {read.layout}."
        output.print(" ".join((text, *read.notes)), style="dim")
    for note in hierarchy.tie_notes():
        print_result(f"Note: {note}", style="dim")
    for level in range(hierarchy.num_levels - 1, -1, -1):
        output.print()
        for table in score_tables(result, level, output.width):
            output.print(table)
    for model in result.models:
        if model.findings is not None:
            output.print()
            output.print(page_table(finding_table(model.name, model.findings)))
    for groups in result.subgroups:
        output.print()
        output.print(page_table(subgroup_table(groups), f"{groups.model} by {groups.by}"))
        for sentence in groups.sentences:
            print_result(sentence)
    if result.orders is not None:
        show_orders(result.orders)
    if result.committee is not None:
        output.print()
        output.print(page_table(member_table(result.committee), "What each member adds"))
    intervals = "; 95 % intervals in brackets" if result.resamples else ""
    output.print(f"↑ higher is better, ↓ lower is better{intervals}.", style="dim")
    for sentence in (*(result.committee.sentences if result.committee is not None else ()), *result.verdicts):
        output.print()
        output.print(sentence, style="bold")


def show_bench(result: Bench) -> None:
    """Print the table of a benchmark for people."""
    for level in reversed(range(result.hierarchy.num_levels)):
        output.print()
        title = f"{result.hierarchy.level_names[level]}: {result.hierarchy.order(level)}"
        # 80 columns have no room for the number of networks.
        table = bench_page.score_table(result, level, 1, BENCH_COLUMNS, networks=False)
        if len(result.models) == 1:  # every row would name it
            table = ReportTable(table.head[1:], [row[1:] for row in table.rows])
        output.print(page_table(table, title, small=False))
    several = max(len(row.runs) for row in result.rows) > 1
    what = "Mean ± sd over seeds" if several else "One network each"
    output.print(f"{what}, in percent; best bold, second underlined.", style="dim")
    for model, orders in result.orders.items():
        show_orders(orders, model if len(result.models) > 1 else "")
    for sentence in result.sentences or result.verdicts:  # one per model; the page has one per comparison
        output.print()
        output.print(sentence, style="bold")
    subjects: dict[str, list[str]] = {}
    for row in result.rows:
        if row.comparison is not None and result.sentences:
            subjects.setdefault(row.comparison.subject, []).append(row.name)
    for subject, names in subjects.items():
        output.print(subject if len(subjects) == 1 else f"{', '.join(names)}: {subject}", style="dim")


def show_readers(result: ReaderAudit, out: Path | None, *, json: bool) -> None:
    """Print readers and their agreement, and write readers.json and readers.html into `out`."""
    if out is not None:
        page = reader_page(result)
        atomic.write_json(out / "readers.json", result.to_json())
        atomic.write_text(out / "readers.html", page)
    if json:
        print_json(result.to_json())
    else:
        output.print(page_table(reader_table(result), f"Readers against {result.reference}"))
        output.print(page_table(agreement_table(result), "Agreement of two readers"))
        for sentence in result.sentences:
            output.print(sentence, style="bold")
    if out is not None:
        print_note(f"Report: {out / 'readers.html'}")


def write(result: Audit, out: Path, links: Mapping[str, Links]) -> None:
    """Write report.html, scores.json and severe_errors.csv into `out`; `links` by the models' names."""
    pages, pictures = slide_files([slide for model in result.models for slide in model.predictions.slide_ids], out)
    names = [model.name for model in result.models]
    whole = {name: replace(links.get(name, Links()), pages=pages, pictures=pictures) for name in names}
    write_audit(result, out, whole)


def view_command(*words: object) -> str:
    """The command that shows the slides of runs, to be copied."""
    return shlex.join(["pams", "view", *map(str, words)])


def audit_command(
    name: str, files: Sequence[Path], classes: Sequence[str] | str, *options: str, view: str = ""
) -> Links:
    """How to audit the networks of a model again; without a command where no pattern means just these files.

    >>> audit_command("CE", [Path("a/seed 0.csv")], "bracs").shell
    "pams audit 'CE=a/seed 0.csv' --classes bracs"
    """
    texts = [escape(str(file)) for file in files]
    start = commonprefix(texts)  # noqa: RUF071  of signs, not of folders
    end = commonprefix([text[len(start) :][::-1] for text in texts])[::-1]  # noqa: RUF071
    pattern = start if len(texts) == 1 else f"{start}*{end}"
    orders = [classes] if isinstance(classes, str) else classes
    # "=" ends the name of a model on the command line.
    model = f"{name.replace('=', ' ')}={pattern}"
    words = ["pams", "audit", model, *(word for one in orders for word in ("--classes", one)), *options]
    if len(texts) > 1:
        return Links(shlex.join(words) if files_matching(pattern) == sorted(files) else "", view=view)
    return Links(shlex.join(words), python_line(files[0], orders), view)


def python_line(file: Path, classes: Sequence[str]) -> str:
    """Python that re-applies a rule, which stands for the braces, to the predictions in a file."""
    return f"pams.redecide(pams.read_predictions({str(file)!r}, {classes[0]!r}), {{}})"


def files_matching(pattern: str) -> list[Path]:
    """The files that match a pattern, which may start at the root of the disk."""
    return sorted(map(Path, glob(pattern, recursive=True)))  # noqa: PTH207  Path.glob takes no absolute patterns


def slide_files(slides: Iterable[str], out: Path, reports: Sequence[Path] = ()) -> tuple[dict[str, str], ...]:
    """Pages and pictures that 'pams heatmap --out REPORT/slides' wrote about slides: addresses from the report `out`.

    A slide's are those in `out`, or in the first of further `reports` that has them.
    """
    folders = [folder for folder in (report / "slides" for report in (out, *reports)) if folder.is_dir()]
    # One by one, as `pams heatmap` names its folders: names made together could differ.
    names = {slide: FileNames()[slide] for slide in slides} if folders else {}

    def found(file: str) -> dict[str, str]:
        places = {slide: [folder / name / file for folder in folders] for slide, name in names.items()}
        first = {slide: next(filter(Path.is_file, files), None) for slide, files in places.items()}
        return {slide: quote(Path(relpath(file, out)).as_posix()) for slide, file in first.items() if file is not None}

    return found("slide.html"), found("thumbnail.jpg")
