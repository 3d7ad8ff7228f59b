"""A finished `pams tune` in Python: the choice, what was tried, and a picture of the deciding rung."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pams_mil.errors import ConfigError, listing, stored_format
from pams_mil.report import svg
from pams_mil.report.charts import score_chart
from pams_mil.report.first_screen import embedded_picture
from pams_mil.report.page import ReportTable
from pams_mil.report.tune_page import recipe_table


@dataclass(frozen=True, repr=False)
class TuningReport:
    """The choice of a tuning: a sentence and a short table as its repr, with a picture in a notebook.

    `record` is what `tune.json` in `folder` holds.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def recipe(self) -> str:
        """The name of the chosen recipe."""
        return str(self.record["choice"]["recipe"])

    @property
    def run(self) -> Path:
        """The mean of the best recipes, for `pams_mil.predict`, `pams predict` and `pams certify`."""
        return self.folder / "mean"

    @property
    def sentences(self) -> list[str]:
        """What was chosen and why."""
        choice = self.record["choice"]
        return [
            f"{self.recipe}: {choice['in_words']}.",
            choice["why"],
            f"The mean of {listing(choice['mean_of'], most=5)} is in {self.run}.",
        ]

    def table(self) -> ReportTable:
        """Every recipe with its urgency AUC by rung and what became of it."""
        return recipe_table(self.record)

    def __repr__(self) -> str:
        return "\n".join([*self.sentences, "", str(self.table())])

    def _repr_html_(self) -> str:
        words = Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in self.sentences)
        last = [rung for rung in self.record["rungs"] if rung["scores"]][-1]
        chart = score_chart(last["scores"], self.recipe, self.record["asked"]["reference"])
        picture = embedded_picture(svg.standalone(chart), "urgency AUC of the recipes on the deciding rung")
        return str(words + picture + self.table().__html__())


def read_tuning(folder: str | Path) -> TuningReport:
    """The tuning that `pams tune --out FOLDER` wrote.

    Raises:
        ConfigError: there is no tuning in the folder, or it was stopped before it chose.
    """
    path = Path(folder)
    try:
        record = json.loads((path / "tune.json").read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path} holds no tuning: tune.json cannot be read ({error.strerror}). Give the --out of 'pams tune'."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path / 'tune.json'} is not JSON: {error}. Run 'pams tune' again.") from error
    report = TuningReport(path, record)
    with stored_format(path / "tune.json", ConfigError, "Tune again in another folder, --out."):
        if not record.get("choice"):
            raise ConfigError(f"The tuning in {path} has not chosen yet; go on with the same 'pams tune' command.")
        repr(report)
    return report
