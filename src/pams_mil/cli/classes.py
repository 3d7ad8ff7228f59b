"""`pams classes`: list, draw and start class hierarchies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pams_mil.arrays import Array
from pams_mil.cli.console import output, print_json, print_result
from pams_mil.cli.out_option import write_new

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree

    from pams_mil.hierarchy import ClassHierarchy

app = typer.Typer(help="List, draw and start class hierarchies.", invoke_without_command=True)

TEMPLATE = """\
# Your classes, least urgent first. Check this file with: pams classes show {file}
name: my-classes

# A group of classes per line, least urgent group first; inside a group, least urgent class first.
# A nested list means equally urgent. For classes without groups write a plain list:  classes: [low, mid, high]
classes:
  Benign:    [Normal, Hyperplasia]
  Atypical:  [[Flat atypia, Ductal atypia]]     # equally urgent
  Malignant: [In situ, Invasive]

# Optional from here on.
# levels: [group, class]                 # names of the levels in reports, coarsest first
# display:
#   Invasive: Invasive carcinoma         # a longer name to show people
# aliases:
#   Normal: [normal, NORM, "0"]          # other spellings in your tables; labels are never guessed
# distance: rank                         # mistakes count steps of urgency; without it, classes as listed
# source: Agreed by our pathologists on 2026-01-31.
"""


MOST_IN_MATRIX = 30
"""More classes are wider than any terminal."""


@app.callback()
def list_presets(ctx: typer.Context) -> None:
    """List the class hierarchies that come with PAMS, or show or start one."""
    if ctx.invoked_subcommand is not None:
        return
    from rich.table import Table

    from pams_mil.class_file import presets
    from pams_mil.hierarchy import ClassHierarchy

    table = Table("preset", "levels", "classes, least urgent first", box=None, header_style="bold")
    for name in presets():
        hierarchy = ClassHierarchy.load(name)
        table.add_row(name, str(hierarchy.num_levels), hierarchy.order())
    output.print(table)
    output.print("\n≺ is less urgent than, ≡ equally urgent. Draw one with: pams classes show bracs")


@app.command()
def show(
    classes: str = typer.Argument(..., metavar="NAME_OR_FILE", help="A preset, or a YAML class file."),
    penalty: float = typer.Option(2.0, help="P, the metric's extra weight for a missed urgency."),
    alpha: float = typer.Option(1.6, help="α, the loss's scale for a missed urgency."),
    json: bool = typer.Option(False, "--json", help="Print classes, ranks and digest as JSON."),
) -> None:
    """Draw a class tree and print the matrices derived from it.

    Example: pams classes show bracs
    """
    from rich.text import Text

    from pams_mil.hierarchy import ClassHierarchy, hierarchy_to_json
    from pams_mil.severity import loss_weight, metric_weight

    hierarchy = ClassHierarchy.load(classes)
    if json:
        print_json({"digest": hierarchy.digest, **hierarchy_to_json(hierarchy)})
        return
    output.print(_tree(hierarchy))
    output.print(f"\ndigest {hierarchy.digest}")
    counted = "steps of urgency" if hierarchy.distance_by == "rank" else "classes as listed"
    output.print(f"distance {counted}")
    if hierarchy.source:
        output.print(f"source {hierarchy.source}")
    for level in range(hierarchy.num_levels):
        output.print(Text.assemble((f"\n{hierarchy.level_names[level]}", "bold"), f"  {hierarchy.order(level)}"))
        if hierarchy.num_classes(level) > MOST_IN_MATRIX:
            count = hierarchy.num_classes(level)
            output.print(f"W and M have {count} x {count} entries; pams_mil.severity gives them in Python.")
            continue
        metric = metric_weight(hierarchy, level, penalty=penalty)
        loss = loss_weight(hierarchy, level, alpha=alpha)
        output.print(_matrix(hierarchy, level, metric, f"W, gravity in AsCC and AsMC (P = {penalty:g})"))
        output.print(_matrix(hierarchy, level, loss, f"M, weight in the MSCE loss (α = {alpha:g})"))
    for note in hierarchy.tie_notes():
        print_result(f"\nNote: {note}")
    output.print("\nRows are the true class, columns the predicted one; missed urgency in red.")


@app.command()
def init(
    file: Path = typer.Argument(Path("classes.yaml"), help="Where to write the template."),
    force: bool = typer.Option(False, "--force", help="Replace an existing file."),
) -> None:
    """Write a commented class file to fill in.

    Example: pams classes init my-classes.yaml
    """
    write_new(file, TEMPLATE.replace("{file}", str(file)), force=force)
    output.print(f"Wrote {file}. Edit it, then check it with: pams classes show {file}")


def _tree(hierarchy: ClassHierarchy) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(hierarchy.name, style="bold"), guide_style="dim")
    branches = [root]
    for level in range(hierarchy.num_levels):
        ranks, below = hierarchy.ranks(level), []
        for index, (label, parent) in enumerate(zip(hierarchy.names(level), hierarchy.parents(level), strict=True)):
            shown = hierarchy.display(label)
            sign = "  " if index == 0 else ("≡ " if ranks[index] == ranks[index - 1] else "≺ ")
            text = Text(sign, style="bold cyan") + Text(
                label, style="bold" if level == hierarchy.num_levels - 1 else ""
            )
            if shown != label:
                text += Text(f"  {shown}", style="dim")
            below.append(branches[parent].add(text))
        branches = below
    return root


def _matrix(hierarchy: ClassHierarchy, level: int, matrix: Array, title: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    severe = hierarchy.outranks(level)
    table = Table(title=title, title_justify="left", title_style="dim", box=None, header_style="dim")
    table.add_column("true \\ predicted", style="dim")
    for label in hierarchy.names(level):
        table.add_column(Text(label), justify="right")
    for t, label in enumerate(hierarchy.names(level)):
        cells = [Text(f"{value:g}", style="red" if severe[t, r] else "") for r, value in enumerate(matrix[t])]
        table.add_row(Text(label), *cells)
    return table
