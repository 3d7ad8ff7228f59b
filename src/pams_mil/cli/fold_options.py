"""Options that `pams cv` and `pams tune` share."""

from __future__ import annotations

import typer

FOLDS = typer.Option(None, "--folds", min=3, help="How many; default: the table's own fold_<k> columns, or 5.")
VAL_SHARE = typer.Option(
    None, "--val-share", help="Share of all patients that validates each fold; default: a fold's worth."
)
