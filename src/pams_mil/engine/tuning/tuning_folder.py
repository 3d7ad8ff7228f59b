"""The folder of a tuning, and what it remembers.

tune.json       what was asked for, every rung with its scores, the choice and why
manifest.csv, splits_<k>.csv   the folds, the same for all recipes
recipes/<name>  one folder per recipe with its runs, fold0, fold1, ..., fold0-seed1; the chosen one and the reference
                are cross-validations, to be used like any other
out_of_fold     test parts of all folds, each by the choice made without its patients: chosen.csv and mean.csv
mean            the mean of the best five recipes, a committee to be used like any other
report.html     what was tried and why this one; report/ compares it with the reference
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pams_mil import __version__, atomic
from pams_mil.data.bags.filenames import FileNames
from pams_mil.engine.run.cv_folder import CrossValidationFolder
from pams_mil.engine.run.folder import Inside, read_json
from pams_mil.engine.run.spec import refuse_another
from pams_mil.engine.tuning.choice import RecipeScore
from pams_mil.engine.tuning.schedule import Spent
from pams_mil.errors import RunError, require_fields, stored_format


@dataclass
class RungRecord:
    """A rung that was started: who is compared on what, and the scores.

    When time was up within the first rung, `scores` are of the recipes that were measured until then, and the rung is
    not `complete`. A later rung is scored once it is complete.
    """

    recipes: list[str]
    folds: int
    seeds: list[int]
    scores: list[RecipeScore] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "scores": [score.to_json() for score in self.scores]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RungRecord:
        """A rung as `to_json` wrote it."""
        require_fields(content, [one.name for one in fields(cls)], "rungs.")
        return cls(**{**content, "scores": [RecipeScore.from_json(score) for score in content["scores"]]})


@dataclass
class TuningFolder:
    """The paths of a tuning and its record."""

    path: Path
    asked: dict[str, Any] = field(default_factory=dict)
    rungs: list[RungRecord] = field(default_factory=list)
    choice: dict[str, Any] = field(default_factory=dict)
    time: Spent = field(default_factory=Spent)
    file = Inside("tune.json")
    """The record."""
    manifest_file = Inside("manifest.csv")
    """The cohort with a column for every fold."""
    recipes = Inside("recipes")
    """The folder of all recipes."""
    report_file = Inside("report.html")
    """The page."""
    out_of_fold = Inside("out_of_fold")
    """Predictions of the nested choice."""

    @property
    def mean(self) -> CrossValidationFolder:
        """The mean of the best recipes, as one model."""
        return CrossValidationFolder(self.path / "mean")

    @property
    def models(self) -> dict[str, CrossValidationFolder]:
        """What is compared, by name: the reference, the chosen recipe, and the mean of the best ones."""
        recipes = {name: self.recipe(name) for name in (self.asked["reference"], self.choice["recipe"])}
        return {**recipes, f"mean of the best {len(self.choice['mean_of'])}": self.mean}

    @property
    def tested(self) -> dict[str, Path]:
        """By name, predictions of the test parts by the reference, and by what each fold chose without its patients."""
        same = all(one["recipe"] == self.choice["recipe"] for one in self.choice["by_fold"])
        return {
            self.asked["reference"]: self.recipe(self.asked["reference"]).predictions_file,
            self.choice["recipe"] if same else "chosen fold by fold": self.out_of_fold / "chosen.csv",
            f"mean of the best {len(self.choice['mean_of'])}": self.out_of_fold / "mean.csv",
        }

    def recipe(self, name: str) -> CrossValidationFolder:
        """The folder of a recipe."""
        return CrossValidationFolder(self.recipes / FileNames()[name])

    @property
    def decisive(self) -> tuple[int, RungRecord]:
        """The last rung that has scores, with its number from 0: the one that the choice is made on."""
        return [(number, rung) for number, rung in enumerate(self.rungs) if rung.scores][-1]

    def open(self, asked: dict[str, Any]) -> None:
        """Start a tuning here, or take up the one that was started with the same settings."""
        plain = json.loads(json.dumps(asked))
        before = read_json(self.file)
        if not before:
            self.asked = plain
            self.save()
            return
        advice = (
            "Repeat the command that it was started with (the budget may change), or choose another folder with --out."
        )
        refuse_another(self.path, "tuning", _settled(before.get("asked", {})), _settled(plain), advice)
        self.asked = plain
        with stored_format(self.file, RunError, "Tune again in another folder, --out."):
            self.rungs = [RungRecord.from_json(rung) for rung in before["rungs"]]
            self.time = Spent(**before["time"])
        # Until there is a new one: an attempt with a larger budget may be stopped, and saves the record on its way.
        self.choice = before.get("choice", {})

    def save(self) -> None:
        """Write the record."""
        atomic.write_json(self.file, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "pams_mil": __version__,
            "asked": self.asked,
            "time": {key: round(value, 3) for key, value in vars(self.time).items()},
            "rungs": [rung.to_json() for rung in self.rungs],
            "choice": self.choice,
        }

    def forget_weights(self, kept: Sequence[str]) -> None:
        """Delete the weights of all recipes but some; predictions stay."""
        folders = {self.recipe(name).path for name in kept}
        for file in self.recipes.glob("*/fold*/*.safetensors"):
            if file.parent.parent not in folders:
                file.unlink(missing_ok=True)


def _settled(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, without the words for it, which another version may choose otherwise."""
    return {key: value for key, value in asked.items() if key != "in_words"}
