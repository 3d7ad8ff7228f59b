"""Options that several verbs share, alone or in groups, and checks of `--out` that are made before any work."""

from __future__ import annotations

import csv
import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from typer import Option

from pams_mil.atomic import require_folder
from pams_mil.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from pams_mil.engine.grid.grid import Engine
    from pams_mil.evaluate.predictions.prediction_layouts import Source


def add_metrics(names: list[str] | None) -> None:
    """Make metrics of one's own part of every score and comparison that follows."""
    for name in names or []:
        from pams_mil.discover import load
        from pams_mil.metrics import add_metric

        if ":" not in name:
            raise ConfigError(f"--metric takes './my_file.py:my_function' or 'my_module:my_function', found {name!r}.")
        add_metric(load("metrics", name))


SlideColumn = Annotated[str | None, Option(help="Column of the slide id.")]
LabelColumn = Annotated[str | None, Option(help="Column of the label.")]
Clini = Annotated[Path | None, Option(help="STAMP's clinical table; the table is its slide table.")]
CLASSES_HELP = "A preset (see 'pams classes') or a class file. Again: another order of its classes."
PatientsAreSlides = Annotated[
    bool, Option("--patients-are-slides", help="The table names no patients: take every slide for one.")
]
SEEN_PATIENTS = Option(
    False,
    "--seen-patients",
    help="Also use patients that the model has seen, where that is refused; everything made from it says so.",
)
"""Of the verbs that `pams_mil.data.exposure` may refuse."""
METRIC = Option(
    None,
    callback=add_metrics,
    help="A metric of your own, './my_metric.py:grave': a function of slides. Several: --metric again.",
)
FOLDS = Option(None, min=3, help="How many; default: the table's own fold_<k> columns, or 5.")
VAL_SHARE = Option(None, help="Share of all patients that validates each fold; default: a fold's worth.")


@dataclass(frozen=True)
class TableOptions:
    """How a cohort table is read."""

    patients_are_slides: PatientsAreSlides = False
    slide_column: SlideColumn = None
    patient_column: Annotated[str | None, Option(help="Column of the patient.")] = None
    label_column: LabelColumn = None
    clini: Clini = None

    def options(self) -> dict[str, Any]:
        """As `Manifest.read` takes it."""
        named = {"slide_id": self.slide_column, "patient_id": self.patient_column, "label": self.label_column}
        columns = {role: name for role, name in named.items() if name is not None}
        return {"columns": columns, "clini": self.clini, "patients_are_slides": self.patients_are_slides}


@dataclass(frozen=True)
class ColumnOptions:
    """Which columns of a table of predictions hold what."""

    true: Annotated[str | None, Option(help="Of a table: column of the true class.")] = None
    pred: Annotated[str | None, Option(help="Of a table: column of the predicted class.")] = None
    id_column: Annotated[str | None, Option("--id", help="Of a table: column of the slide.")] = None
    patient: Annotated[str | None, Option(help="Of a table: column of the patient.")] = None

    def source(self, **more: Any) -> Source:
        """How to read the table."""
        from pams_mil.evaluate.predictions.prediction_layouts import Source

        return Source(self.true, self.pred, self.id_column, self.patient, **more)


@dataclass(frozen=True)
class WorkerOptions:
    """Where runs are trained."""

    engine: Annotated[Literal["local", "ray"], Option(help="local (processes) or ray.")] = "local"
    workers: Annotated[int | None, Option(min=1, help="Runs at the same time; default: one per core.")] = None
    threads: Annotated[int | None, Option(min=1, help="Torch threads of each.")] = None
    address: Annotated[str | None, Option(help="Ray cluster, e.g. auto; default: one of our own.")] = None
    cpus: Annotated[float, Option(help="Cores that a Ray task claims.")] = 1.0
    gpus: Annotated[float, Option(help="GPUs that a Ray task claims; a fraction shares one.")] = 0.0

    def start(self) -> Engine:
        """What trains them."""
        from pams_mil.engine.grid.engines import LocalEngine, RayEngine

        if self.engine == "ray":
            return RayEngine(self.address, self.cpus, self.gpus)
        return LocalEngine(self.workers, self.threads)


def with_groups(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with the fields of every parameter that is a dataclass, a group of options, in place of the group."""
    signature = inspect.signature(verb, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if not is_dataclass(parameter.annotation):
            parameters.append(parameter)
            continue
        groups[name] = parameter.annotation
        hints = get_type_hints(groups[name], include_extras=True)
        for one in fields(groups[name]):
            parameters.append(parameter.replace(name=one.name, default=one.default, annotation=hints[one.name]))

    def run(**values: Any) -> None:
        own = {name: kind(**{one.name: values.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        verb(**values, **own)

    run.__name__, run.__doc__ = verb.__name__, verb.__doc__
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def out_folder(path: Path | None) -> Path | None:
    """`--out` as a folder that can be written; nothing is created."""
    return None if path is None else require_folder(path)


def out_file(path: Path) -> Path:
    """`--out` as a file that can be written; nothing is created."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder; expected the name of a file.")
    require_folder(path.parent)
    return path


def new_file(path: Path, *, force: bool) -> Path:
    """The same, and one that is there already is replaced with --force alone."""
    if path.exists() and not force:
        raise OutputError(f"{path} exists already; choose another name or replace it with --force.")
    return out_file(path)


def read_template(name: str, **words: str) -> str:
    """A commented file to fill in, with words in the place of their names in braces."""
    text = (Path(__file__).with_name("templates") / name).read_text("utf-8")
    for key, word in words.items():
        text = text.replace(f"{{{key}}}", word)
    return text


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
