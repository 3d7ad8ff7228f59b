"""How the verbs that audit show and write their results.

In a terminal metrics go down and models across, as many side by side as there is room for.

Every value keeps its interval: beside it where there is room, else beneath it. More models than fit are shown in
further tables, so that no name and no number is cut.
"""

from __future__ import annotations

import csv
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from glob import escape
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from pams_mil.cli.console import make_table, output, print_json, print_note, print_result
from pams_mil.errors import ConfigError, counted

if TYPE_CHECKING:
    from rich.table import Table

    from pams_mil.evaluate.audit import Audit, ModelAudit
    from pams_mil.evaluate.orders import OrderAudit
    from pams_mil.evaluate.readers import ReaderAudit
    from pams_mil.evaluate.scores import LevelScores
    from pams_mil.report.live import Again
    from pams_mil.report.page import ReportTable, TableCell

    Row = tuple[str, LevelScores]

COLUMNS = ("acc", "auc", "ascc", "asmc", "risk", "missed_rate", "false_alarm_rate")
_HEAD_WIDTH, _STACKED_WIDTH, _BESIDE_WIDTH = 20, 15, 26


def score_tables(result: Audit, level: int, width: int) -> list[Table]:
    """The tables of one level for a terminal of this many columns; the first has the title."""
    from pams_mil.report.page import short_order

    hierarchy = result.hierarchy
    rows = [row for model in result.models for row in _rows(model, level)]
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
    """A table of the pages, for a terminal: what is in small print there stands below its value, or is left out."""
    styles = {"best": "bold", "second": "underline"}

    def shown(cell: TableCell) -> Text:
        below = f"\n[{cell.small}]" if cell.small and small else ""
        return Text(cell.text, style=styles.get(cell.mark, "")) + Text(below, style="dim")

    rows = [[shown(cell) for cell in row] for row in content.cells]
    heads = [head.label for head in content.heads]
    return make_table(heads, rows, title=title or content.caption, left=len(content.text))


def show_orders(audit: OrderAudit, model: str = "") -> None:
    """Print rates and verdicts by order; `model` is what a benchmark trained."""
    from pams_mil.report.order_section import rate_table

    output.print()
    output.print(page_table(rate_table(audit), "By order of urgency"))
    for sentence in audit.sentences:
        print_result(f"{model}: {sentence}" if model else sentence)


def _table(shown: Sequence[Row], rows: Sequence[Row], title: str, *, beside: bool) -> Table:
    from pams_mil.metrics.metric import METRICS, own_metrics

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


def _rows(model: ModelAudit, level: int) -> list[Row]:
    whole = [(model.name, model.levels[level])]
    return whole if model.subset is None else [*whole, (model.subset.name, model.subset_levels[level])]


def _cell(scores: LevelScores, key: str, *, beside: bool) -> Text:
    from pams_mil.report.page import format_interval, format_value

    value = Text(format_value(scores.values[key], key))
    bracket = format_interval(scores.intervals.get(key), key)
    if not bracket:
        return value
    return value + Text(f"  [{bracket}]" if beside else f"\n[{bracket.replace(' to ', '–')}]", style="dim")


def show(result: Audit) -> None:
    """Print the audit for people."""
    from pams_mil.report.audit_html import member_table, subgroup_table
    from pams_mil.report.order_section import finding_table

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


def show_readers(result: ReaderAudit, out: Path | None, *, json: bool) -> None:
    """Print readers and their agreement, and write readers.json and readers.html into `out`."""
    from pams_mil import atomic
    from pams_mil.report.audit_html import agreement_table, reader_page, reader_table

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


def write(result: Audit, out: Path, commands: Mapping[str, Again], views: Mapping[str, str]) -> None:
    """Write report.html, scores.json and severe_errors.csv into `out`.

    Both by the model's name: `commands` audit its predictions again, `views` show its slides.
    """
    from pams_mil.report.audit_html import write_audit

    pages, pictures = (slide_files(result, out, name) for name in ("slide.html", "thumbnail.jpg"))
    write_audit(result, out, commands=commands, pages=pages, pictures=pictures, views=views)


def view_command(*words: object) -> str:
    """The command that shows the slides of runs, to be copied."""
    return shlex.join(["pams", "view", *map(str, words)])


def audit_command(name: str, files: Sequence[Path], classes: Sequence[str] | str, *options: str) -> Again:
    """How to audit the networks of a model again; without a command where no pattern means just these files.

    >>> audit_command("CE", [Path("a/seed 0.csv")], "bracs").shell
    "pams audit 'CE=a/seed 0.csv' --classes bracs"
    """
    from pams_mil.report.live import Again

    texts = [escape(str(file)) for file in files]
    start = commonprefix(texts)  # noqa: RUF071  of signs, not of folders
    end = commonprefix([text[len(start) :][::-1] for text in texts])[::-1]  # noqa: RUF071
    pattern = start if len(texts) == 1 else f"{start}*{end}"
    orders = [classes] if isinstance(classes, str) else classes
    # "=" ends the name of a model on the command line.
    model = f"{name.replace('=', ' ')}={pattern}"
    words = ["pams", "audit", model, *(word for one in orders for word in ("--classes", one)), *options]
    if len(texts) > 1:
        return Again(shlex.join(words) if files_matching(pattern) == sorted(files) else "")
    return Again(shlex.join(words), python_line(files[0], orders))


def python_line(file: Path, classes: Sequence[str]) -> str:
    """Python that re-applies a rule, which stands for the braces, to the predictions in a file."""
    return f"pams.redecide(pams.read_predictions({str(file)!r}, {classes[0]!r}), {{}})"


def repeatable(verb: str, arguments: Sequence[str]) -> str:
    """The command line `pams ARGUMENTS` of a verb without the options that say how to decide and where to write.

    Empty where the process was not started by the verb.

    >>> repeatable("audit", ["audit", "a b.csv", "--classes", "bracs", "--decide", "kappa=2", "--out=report", "--json"])
    "pams audit 'a b.csv' --classes bracs"
    """
    if list(arguments[:1]) != [verb]:
        return ""
    dropped = ("--decide", "--out", "--kappa")
    command, words = ["pams"], iter(arguments)
    for word in words:
        if word in dropped:
            next(words, None)
        elif word != "--json" and not word.startswith(tuple(f"{option}=" for option in dropped)):
            command.append(word)
    return shlex.join(command)


def run_of(file: Path) -> Path | None:
    """The run or cross-validation whose predictions are in a file; None where it is somebody else's."""
    from pams_mil.engine.run.cv_folder import CrossValidationFolder
    from pams_mil.engine.run.folder import RunFolder

    homes = (file.parent, file.parent.parent)
    return next((one for one in homes if RunFolder(one).exists() or CrossValidationFolder(one).exists()), None)


def model_names(paths: list[Path]) -> list[str]:
    """The names of the runs that predicted, or file names without suffixes, with folders added until they differ."""
    from pams_mil.data.tables import table_name

    own = [path for path in paths if path.parent.name == "predictions" or path.name == "predictions.csv"]
    runs = [run.resolve().name for run in map(run_of, own) if run is not None]
    if len(set(runs)) == len(paths):
        return runs
    for depth in range(1, 6):
        names = ["/".join((*path.parts[:-1][max(0, len(path.parts) - depth) :], table_name(path))) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{table_name(path)} ({number})" for number, path in enumerate(paths, 1)]


def files_matching(pattern: str) -> list[Path]:
    """The files that a pattern means, also one from the root of the disk."""
    place = Path(pattern)
    return sorted(Path(place.anchor or ".").glob(str(place.relative_to(place.anchor))))


def slide_files(result: Audit, out: Path, name: str) -> dict[str, str]:
    """Addresses, from the report, of files that 'pams heatmap --out REPORT/slides' wrote about its slides."""
    from urllib.parse import quote

    from pams_mil.data.bags.filenames import FileNames

    if not (out / "slides").is_dir():
        return {}
    # One by one, as `pams heatmap` names its folders: names made together could differ.
    folders = {slide: FileNames()[slide] for model in result.models for slide in model.predictions.slide_ids}
    return {
        slide: quote(f"slides/{folder}/{name}")
        for slide, folder in folders.items()
        if (out / "slides" / folder / name).is_file()
    }


def parse_tag(tag: str | None) -> tuple[str, str] | None:
    """COLUMN=VALUE as a pair."""
    if tag is None:
        return None
    column, sign, value = tag.partition("=")
    if not (column and sign):
        raise ConfigError(f"--tag must be COLUMN=VALUE, e.g. --tag findings=mixed; found {tag!r}.")
    return column, value


def parse_labels(text: str | None) -> tuple[str, ...]:
    """Class names separated by commas; one that holds a comma stands in quotes."""
    return tuple(label.strip() for label in next(csv.reader([text]))) if text else ()
