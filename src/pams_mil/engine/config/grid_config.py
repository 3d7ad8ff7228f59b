"""The settings of a benchmark: methods x models x seeds x folds, everything else the same for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pams_mil import discover
from pams_mil.data.bags.filenames import FileNames
from pams_mil.engine.config.run_config import (
    Choice,
    ClassFiles,
    ComputeConfig,
    DataConfig,
    ModelChoice,
    RunConfig,
    Strict,
    TrainingConfig,
    build,
    read_choice,
    short_name,
    with_overrides,
)
from pams_mil.engine.config.yaml_file import read_yaml
from pams_mil.errors import ConfigError, listing, nearest


def _all(package: str) -> Any:
    def read(values: Any) -> Any:
        choices = values if isinstance(values, (list, tuple)) else [values]
        if not choices:
            raise ValueError("expected at least one")
        return [read_choice(package, value) for value in choices]

    return BeforeValidator(read)


class GridMethod(Choice):
    """A row of the table; what `training` and `pairing` name goes before the grid's."""

    label: Annotated[str, Field(coerce_numbers_to_str=True)] = ""
    training: dict[str, Any] = Field(default_factory=dict)
    pairing: dict[str, Any] = Field(default_factory=dict)


class GridModel(ModelChoice):
    """A model under a name of its own."""

    label: Annotated[str, Field(coerce_numbers_to_str=True)] = ""


class GridConfig(Strict):
    """A benchmark; a `label` beside a method's or model's name tells variants apart in the table.

    `arms` goes before the settings of the grid and of a method: the `training` of one method on one model, by their
    labels.
    """

    data: DataConfig
    classes: ClassFiles
    methods: Annotated[tuple[GridMethod, ...], _all("methods")]
    models: Annotated[tuple[GridModel, ...], _all("models")] = (GridModel(name="abmil"),)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2, 3, 4), min_length=1)
    folds: tuple[int, ...] | None = None
    reference: str | None = None
    """Label of the method that the others are compared with; the first when null."""
    split: Literal["test", "val"] = "test"
    """What is scored; `val` to compare settings without spending the test split."""
    subset: str | None = None
    """COLUMN=VALUE of the cohort table: these slides are also scored apart from the others."""
    pairing: dict[str, Any] = Field(default_factory=dict)
    training: TrainingConfig = TrainingConfig()
    arms: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    """{model: {method: settings}}, e.g. {abmil: {CE: {epochs: 10}}}: settings chosen arm by arm."""
    compute: ComputeConfig = ComputeConfig()


@dataclass(frozen=True)
class Cell:
    """One run of a benchmark: its folder name, its place in the table and its settings."""

    key: str
    model: str
    method: str
    seed: int
    fold: int | None
    config: RunConfig
    split: str = "test"
    """What is predicted when it is trained. A cell that tunes predicts `val`, never the test split."""

    @property
    def repetition(self) -> str:
        """What tells runs of one row apart."""
        return f"seed {self.seed}" if self.fold is None else f"seed {self.seed}, fold {self.fold}"


def load_grid(path: Path | str, overrides: Sequence[str] = ()) -> GridConfig:
    """A grid file with `key=value` overrides."""
    return build(GridConfig, with_overrides(read_yaml(path), overrides, kind=GridConfig), where=str(path))


def reference_label(grid: GridConfig) -> str:
    """The method that the others are compared with."""
    labels = [label(choice) for choice in grid.methods]
    _require("reference", "method", grid.reference or labels[0], labels)
    return grid.reference or labels[0]


def label(choice: GridMethod | GridModel) -> str:
    """The name in the table."""
    return choice.label or short_name(choice.name)


def cells(grid: GridConfig) -> list[Cell]:
    """All runs, seed by seed, so that a benchmark that is cut short is balanced."""
    for kind, choices in (("methods", grid.methods), ("models", grid.models)):
        twice = [name for name, count in Counter(map(label, choices)).items() if count > 1]
        if twice:
            raise ConfigError(
                f"{kind}: {listing(twice)} appears more than once; tell variants apart with 'label', "
                "e.g. {name: pams, label: PAMS without remix, remix: null}."
            )
    # Arms may be of models that `models=` has left out.
    models = list(dict.fromkeys([*map(label, grid.models), *discover.available("models")]))
    for column, arms in grid.arms.items():
        _require("arms", "model", column, models)
        for row in arms:
            _require("arms", "method", row, [label(choice) for choice in grid.methods])
    planned = []
    folds: tuple[int | None, ...] = grid.folds or (None,)
    # The method changes fastest: when time is up, all methods have the same seeds and folds behind them.
    for seed, fold, model, method in product(grid.seeds, folds, grid.models, grid.methods):
        row, column = label(method), label(model)
        own = {**method.training, **(arm := grid.arms.get(column, {}).get(row, {}))}
        where = f"arms: {column}: {row}" if arm else f"methods: training of {row!r}"
        training = build(TrainingConfig, {**grid.training.model_dump(), **own}, where=where) if own else grid.training
        config = RunConfig(
            data=grid.data if fold is None else grid.data.model_copy(update={"fold": fold}), classes=grid.classes,
            method=Choice(name=method.name, **method.options),
            model=ModelChoice(name=model.name, init=model.init, **model.options),
            pairing={**grid.pairing, **method.pairing}, training=training, compute=grid.compute, seed=seed,
        )  # fmt: skip
        key = FileNames()[f"{column}--{row}--seed{seed}" + ("" if fold is None else f"--fold{fold}")]
        planned.append(Cell(key, column, row, seed, fold, config, grid.split))
    return planned


def _require(where: str, kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ConfigError(
            f"{where}: there is no {kind} labelled {name!r} in the grid.{nearest(name, known)} Found {listing(known)}."
        )
