"""`pams reveal`: the cost ratio κ that readers' verdicts act by."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from pams_mil.cli.console import make_table, output, print_json, print_note

MOST_REASONS = 8
"""Boundaries whose lack of a κ is explained; --json has all of them."""


def reveal(
    reviews: list[Path] = Argument(..., metavar="REVIEWS...", help="reviews.csv of 'pams view', one per reader."),
    predictions: Path = Option(..., help="The predictions that the readers saw."),
    classes: str = Option(..., help="A preset (see 'pams classes') or a class file, .yaml or .csv."),
    kappa: float = Option(1.0, min=0, help="What calls were made with whose reviews do not say it."),
    out: Path | None = Option(None, help="Also write the result as JSON to this file."),
    json: bool = Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Estimate how many false alarms a miss is worth to the readers, from what they agreed with and overturned.

    Refused below 30 verdicts on slides whose call depends on the cost ratio κ.

    Example: pams reveal reviews.csv --predictions predictions.csv --classes bracs --out reveal.json
    """
    from pams_mil.evaluate.decisions.reveal import reveal_reviews
    from pams_mil.hierarchy import ClassHierarchy

    result = reveal_reviews(reviews, predictions, ClassHierarchy.load(classes), kappa=kappa)
    if out is not None:
        result.write(out)
    if json:
        print_json(result.to_json())
        return
    output.print(result.sentence, style="bold")
    rows = [
        (name, f"{fit.kappa:.2g}", f"{fit.low:.2g} to {fit.high:.2g}", f"{fit.verdicts:,}")
        for name, fit in {"all boundaries": result.overall, **result.boundaries}.items()
    ]
    output.print(make_table(("at or above", "κ", "interval", "verdicts"), rows, title="Cost ratio κ by boundary"))
    output.print(result.consequence)
    for reason in list(result.refused.values())[:MOST_REASONS]:
        output.print(reason, style="dim")
    if len(result.refused) > MOST_REASONS:
        output.print(f"and {len(result.refused) - MOST_REASONS} more boundaries without a κ.", style="dim")
    if out is not None:
        print_note(f"Written to {out}.")
