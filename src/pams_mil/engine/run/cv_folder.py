"""The folder of a cross-validation, and its runs as one model: the folds together.

cv.json         what was asked for          manifest.csv, splits_<k>.csv   the folds
fold0, fold1    one run folder each         predictions.csv                every slide, by the fold that tested it
folds.csv       scores of every fold        report/                        the audit of predictions.csv

With several seeds a fold is trained once for each: `fold0` with the first one, `fold0-seed1` and so on with the others.
A committee has several members, `members/<name>`, each a cross-validation of its own on the same folds; its predictions
are the mean of theirs, and `reference` holds the networks that it is compared with. The members of a tuning's mean are
the recipes beside it, `../recipes/<name>`. `<committee>/fold0` names the networks of all members that test fold 0, a
model of its own; the folder exists once something was written about that model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pams_mil import atomic
from pams_mil.data import tables
from pams_mil.engine.run.folder import Inside, RunFolder, read_json
from pams_mil.errors import RunError, listing


@dataclass(frozen=True)
class CrossValidationFolder:
    """The paths of a cross-validation, or of one fold of it.

    Attributes:
        path: The folder.
        fold: Only the runs that test this fold; None: all.
    """

    path: Path
    fold: int | None = None
    file = Inside("cv.json")
    """What was asked for; its presence says that a cross-validation was started here."""
    manifest_file = Inside("manifest.csv")
    """The cohort with a column for every fold."""
    predictions_file = Inside("predictions.csv")
    """Out-of-fold predictions of all slides."""
    folds_file = Inside("folds.csv")
    """Scores of every fold."""

    @classmethod
    def at(cls, path: Path | str) -> CrossValidationFolder | None:
        """The cross-validation in a folder, or the fold of a committee that `<committee>/fold0` names; else None."""
        path = Path(path)
        if (whole := cls(path)).exists():
            return whole
        above = cls(path.parent)
        folds = [int(fold) for fold in above.asked().get("folds", [])] if above.members else []
        return next((cls(above.path, fold) for fold in folds if run_name(fold) == path.name), None)

    def exists(self) -> bool:
        """Whether a cross-validation was started here."""
        return self.file.is_file()

    def asked(self) -> dict[str, Any]:
        """What was asked for."""
        return read_json(self.file)

    def start(self, asked: dict[str, Any]) -> None:
        """Write what is asked for."""
        atomic.write_json(self.file, asked)

    def run(self, fold: int, seed: int | None = None) -> Path:
        """The run folder of a fold, of its first seed when none is named."""
        return self.path / run_name(fold, seed)

    def seeds(self) -> list[int | None]:
        """The seeds that every fold was trained with, as `run` takes them."""
        further = [int(seed) for seed in self.asked().get("seeds", [])[1:]]
        return [None, *further]

    def member(self, name: str) -> CrossValidationFolder:
        """The folder of a committee's member."""
        place = self.path.parent / "recipes" if self.asked().get("of_recipes") else self.path / "members"
        return CrossValidationFolder(place / name, self.fold)

    @property
    def members(self) -> list[CrossValidationFolder]:
        """The members of a committee; empty for a single recipe."""
        return [self.member(name) for name in self.asked().get("members", {})]

    @property
    def reference(self) -> CrossValidationFolder:
        """The networks that a committee is compared with."""
        return CrossValidationFolder(self.path / "reference")

    def tested(self) -> list[tuple[int, Path]]:
        """Every run, of all members and seeds, with the fold that it tests."""
        if self.members:
            return [run for member in self.members for run in member.tested()]
        folds = [int(fold) for fold in self.asked().get("folds", []) if self.fold in (None, int(fold))]
        return [(fold, self.run(fold, seed)) for seed in self.seeds() for fold in folds]

    def run_names(self) -> list[str]:
        """A path for every run, in the order of `tested`: `fold0`, or `members/<name>/fold0` in a committee."""
        if not self.members:
            return [run.name for _, run in self.tested()]
        return [f"members/{member.path.name}/{name}" for member in self.members for name in member.run_names()]

    def runs(self) -> list[Path]:
        """The run folders of all folds; refused until all are trained, since fewer would be another model."""
        folders = [run for _, run in self.tested()]
        open_ = [run.name for run in folders if RunFolder(run).status().get("state") != "finished"]
        if open_ or not folders:
            raise RunError(
                f"The cross-validation in {self.path} is not complete: {listing(open_) or 'no fold'} not finished. "
                "Run the same 'pams cv' command again to go on."
            )
        return folders


def run_name(fold: int, seed: int | None = None) -> str:
    """The name of a fold's run; the first seed's has no number, so that further seeds can join later.

    >>> run_name(2), run_name(2, seed=5)
    ('fold2', 'fold2-seed5')
    """
    return f"fold{fold}" if seed is None else f"fold{fold}-seed{seed}"


def with_folds(paths: Sequence[Path | str]) -> list[Path]:
    """Runs, with its runs in the place of a cross-validation, a fold of a committee, or one that was exported."""
    folders: list[Path] = []
    for path in map(Path, paths):
        folder = CrossValidationFolder.at(path)
        folders += folder.runs() if folder is not None else exported_runs(path) or [path]
    return folders


def exported_runs(path: Path) -> list[Path]:
    """The folders of the networks that an exported model is the mean of; empty for any other folder.

    Raises:
        RunError: a network is not below the folder.
    """
    names = read_json(path / "config.json").get("mean_of", []) if path.is_dir() else []
    for name in names:
        if not isinstance(name, str) or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise RunError(f"{path / 'config.json'}: {name!r} is not a folder below {path}. Export the model again.")
    return [path / name for name in names]


def run_of(file: Path) -> Path | None:
    """The run or cross-validation whose predictions are in a file; None where it is somebody else's."""
    homes = (file.parent, file.parent.parent)
    return next((one for one in homes if RunFolder(one).exists() or CrossValidationFolder(one).exists()), None)


def model_names(paths: Sequence[Path]) -> list[str]:
    """The names of the runs that predicted, or file names without suffixes, with folders added until they differ."""
    own = [path for path in paths if path.parent.name == "predictions" or path.name == "predictions.csv"]
    runs = [run.resolve().name for run in map(run_of, own) if run is not None]
    if len(set(runs)) == len(paths):
        return runs
    for depth in range(1, 6):
        names = [
            "/".join((*path.parts[:-1][max(0, len(path.parts) - depth) :], tables.table_name(path))) for path in paths
        ]
        if len(set(names)) == len(names):
            return names
    return [f"{tables.table_name(path)} ({number})" for number, path in enumerate(paths, 1)]
