"""`pams classes`: list, draw and start class hierarchies."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from pams_mil.atomic import plain, write_text
from pams_mil.cli.console import fits, make_table, output, print_json, print_result
from pams_mil.cli.options import LabelColumn, new_file, read_template
from pams_mil.errors import ParameterError, counted

if TYPE_CHECKING:
    from pams_mil.arrays import Array
    from pams_mil.hierarchy import ClassHierarchy

app = typer.Typer(
    help="List, draw and start class hierarchies.",
    epilog="Example: pams classes show bracs",
    invoke_without_command=True,
)

MOST_PAIRS = 40
"""Disputed pairs that are printed; --json has all of them."""


@app.callback()
def list_presets(ctx: typer.Context) -> None:
    """List the class hierarchies that come with PAMS, or show or start one."""
    if ctx.invoked_subcommand is not None:
        return
    from pams_mil.class_file import presets
    from pams_mil.hierarchy import ClassHierarchy

    hierarchies = [(name, ClassHierarchy.load(name)) for name in presets()]
    rows = [(name, str(one.num_levels), one.order()) for name, one in hierarchies]
    output.print(make_table(("preset", "levels", "classes, least urgent first"), rows, left=3))
    output.print("\n≺ is less urgent than, ≡ equally urgent. Draw one with: pams classes show bracs")


@app.command()
def show(
    classes: str = Argument(..., metavar="NAME_OR_FILE", help="A preset, or a class file, .yaml or .csv."),
    json: bool = Option(False, "--json", help="Print classes, ranks and digest as JSON."),
) -> None:
    """Draw a class tree and print the matrices derived from it.

    Example: pams classes show bracs
    """
    from pams_mil.hierarchy import ClassHierarchy, hierarchy_to_json
    from pams_mil.report.page import READABLE, short_order
    from pams_mil.severity import loss_weight, metric_weight

    hierarchy = ClassHierarchy.load(classes)
    if json:
        print_json({"digest": hierarchy.digest, **hierarchy_to_json(hierarchy)})
        return
    print_result(hierarchy.tree())
    output.print(f"\ndigest {hierarchy.digest}")
    output.print(f"distance {'steps of urgency' if hierarchy.distance_by == 'rank' else 'classes as listed'}")
    if hierarchy.findings == "several":
        named = zip(hierarchy.finding_classes.tolist(), hierarchy.finding_weights.tolist(), strict=True)
        weights = ", ".join(f"{hierarchy.classes[index]} {weight:g}" for index, weight in named)
        print_result(f"findings several; missing one weighs: {weights}; nothing found: {hierarchy.nothing or 'never'}")
    if hierarchy.source:
        output.print(f"source {hierarchy.source}")
    for level in range(hierarchy.num_levels):
        order, count = short_order(hierarchy, level), hierarchy.num_classes(level)
        output.print(Text.assemble((f"\n{hierarchy.level_names[level]}", "bold"), f"  {order}"))
        if count > READABLE:
            print_result(f"W and M have {count} x {count} entries; pams_mil.severity gives them in Python.")
            continue
        metric, loss = metric_weight(hierarchy, level), loss_weight(hierarchy, level)
        output.print(_matrix(hierarchy, level, metric, "W, gravity in AsCC and AsMC (P = 2)"))
        output.print(_matrix(hierarchy, level, loss, "M, weight in the MSCE loss (α = 1.6)"))
    for note in hierarchy.tie_notes():
        print_result(f"\nNote: {note}")
    output.print("\nRows are the true class, columns the predicted one; missed urgency in red.")


@app.command()
def init(
    file: Path = Argument(Path("classes.yaml"), help="Where to write the class file."),
    labels: Path | None = Option(
        None, "--from", help="A table with labels: list them with counts, and order them here or in the file."
    ),
    label_column: LabelColumn = None,
    force: bool = Option(False, "--force", help="Replace an existing file."),
) -> None:
    """Write a commented class file to fill in, or one with the labels of a table.

    In a terminal, --from asks for the order of urgency. Elsewhere the labels are written as comments, to be put in
    order by hand; an order is never taken from the alphabet.

    Example: pams classes init new-classes.yaml --from labels.csv
    """
    new_file(file, force=force)
    if labels is None:
        text = read_template("classes.yaml")
    else:
        from pams_mil.data.examine import class_file_text, count_labels, ordered_labels

        counts = count_labels(labels, label_column)
        order = None
        if is_terminal():
            for number, (label, count) in enumerate(counts.items(), 1):
                print_result(f"{number:3d}  {label}  ({counted(count, 'row')})")
            print_result(
                "Order them, least urgent first: numbers with spaces between, '=' between equally urgent ones."
            )
            while order is None:
                answer = typer.prompt("Order, e.g. 2 1 3=4")
                try:
                    order = ordered_labels(list(counts), answer)
                except ParameterError as error:
                    print_result(str(error))
        text = class_file_text(counts, order, source=labels.name)
    write_text(file, text.replace("{file}", shlex.quote(str(file))))
    print_result(f"Wrote {file}. Edit it, then check it with: pams classes show {shlex.quote(str(file))}")


@app.command()
def compare(
    classes: list[str] = Argument(..., metavar="NAME_OR_FILE...", help="Two or more orders of the same classes."),
    json: bool = Option(False, "--json", help="Print the disputed pairs as JSON."),
) -> None:
    """Say where several orders of urgency differ, pair by pair.

    Example: pams classes compare bracs my-classes.yaml
    """
    from pams_mil.evaluate.orders import Orders
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.page import short_order

    orders = Orders(ClassHierarchy.load(classes))
    pairs = orders.disputed_pairs
    if json:
        print_json({"orders": orders.names, "classes": orders.first.classes, "disputed": plain(pairs)})
        return
    for name, hierarchy in zip(orders.names, orders.hierarchies, strict=True):
        output.print(Text.assemble((name, "bold"), f"  {short_order(hierarchy)}"))
    size = len(orders.first)
    total = size * (size - 1) // 2
    if not pairs:
        print_result(f"\nThe orders agree on all {total} pairs of classes.")
        return
    print_result(f"\nThe orders differ on {len(pairs)} of {total} pairs of classes. The more urgent of each pair:")
    rows = [
        (f"{pair.first}, {pair.second}", *(pair.more_urgent[name] or "equally" for name in orders.names))
        for pair in pairs[:MOST_PAIRS]
    ]
    output.print(make_table(("pair", *orders.names), rows, left=1 + len(orders.names)))
    if len(pairs) > MOST_PAIRS:
        print_result(f"and {len(pairs) - MOST_PAIRS:,} more; --json lists all of them.")


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def _matrix(hierarchy: ClassHierarchy, level: int, matrix: Array, title: str) -> Table | str:
    missed, names = hierarchy.outranks(level), hierarchy.names(level)
    cells = [
        [Text(f"{value:g}", style="red" if missed[t, r] else "") for r, value in enumerate(row)]
        for t, row in enumerate(matrix)
    ]
    numbers = [str(number) for number in range(1, len(names) + 1)]
    # Names that do not fit above the columns stand before the rows, with numbers.
    numbered = [f"{number} {name}" for number, name in zip(numbers, names, strict=True)]
    for heads, starts in ((names, names), (numbers, numbered)):
        rows = [(start, *row) for start, row in zip(starts, cells, strict=True)]
        table = make_table(("true \\ predicted", *heads), rows, title=title)
        if fits(table):
            return table
    return f"{title}: {len(names)} x {len(names)}, too wide for here; pams_mil.severity gives it in Python."
