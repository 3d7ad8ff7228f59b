"""The settings of a benchmark: methods x models x seeds x folds, everything else the same for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from pams_mil.data.bags.filenames import FileNames
from pams_mil.engine.config.run_config import (
    Choice,
    ComputeConfig,
    DataConfig,
    ModelChoice,
    RunConfig,
    Strict,
    TrainingConfig,
    build,
    read_choice,
    with_overrides,
)
from pams_mil.engine.config.yaml_file import read_yaml
from pams_mil.errors import ConfigError, listing, nearest

AnyChoice = TypeVar("AnyChoice", bound=Choice)


def _all(package: str) -> Any:
    def read(values: Any) -> Any:
        choices = values if isinstance(values, (list, tuple)) else [values]
        return [read_choice(package, value) for value in choices]

    return BeforeValidator(read)


class GridConfig(Strict):
    """A benchmark; a `label` beside a method's or model's name tells variants apart in the table.

    A method may also bring `training` and `pairing` of its own: what it names there goes before the grid's.
    """

    data: DataConfig
    classes: str
    methods: Annotated[tuple[Choice, ...], _all("methods")] = Field(min_length=1)
    models: Annotated[tuple[ModelChoice, ...], _all("models")] = (ModelChoice(name="abmil"),)
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
    wanted = grid.reference or labels[0]
    if wanted not in labels:
        raise ConfigError(
            f"reference: there is no method labelled {wanted!r} in the grid.{nearest(wanted, labels)} "
            f"Found {listing(labels)}."
        )
    return wanted


def label(choice: Choice) -> str:
    """The name in the table."""
    return str(choice.options.get("label", choice.name))


def cells(grid: GridConfig) -> list[Cell]:
    """All runs, seed by seed, so that a benchmark that is cut short is balanced."""
    for kind, choices in (("methods", grid.methods), ("models", grid.models)):
        labels = [label(choice) for choice in choices]
        twice = sorted({name for name in labels if labels.count(name) > 1})
        if twice:
            raise ConfigError(
                f"{kind}: {listing(twice)} appears more than once; tell variants apart with 'label', "
                "e.g. {name: pams, label: PAMS without remix, remix: null}."
            )
    planned = []
    folds: tuple[int | None, ...] = grid.folds or (None,)
    # The method changes fastest: when time is up, all methods have the same seeds and folds behind them.
    for seed, fold, model, method in product(grid.seeds, folds, grid.models, grid.methods):
        name = f"{label(model)}--{label(method)}--seed{seed}" + ("" if fold is None else f"--fold{fold}")
        data = grid.data if fold is None else grid.data.model_copy(update={"fold": fold})
        config = RunConfig(
            data=data, classes=grid.classes, method=_plain(method, _ARM_KEYS), model=_plain(model, ("label",)),
            pairing={**grid.pairing, **_own(method, "pairing")}, training=_training(grid, method),
            compute=grid.compute, seed=seed,
        )  # fmt: skip
        planned.append(Cell(FileNames()[name], label(model), label(method), seed, fold, config, grid.split))
    return planned


_ARM_KEYS = ("label", "training", "pairing")
"""What stands beside a method's options in a grid, and belongs to its row of the table instead."""


def _plain(choice: AnyChoice, without: Sequence[str]) -> AnyChoice:
    return type(choice)(**{key: value for key, value in choice.model_dump().items() if key not in without})


def _own(method: Choice, section: str) -> dict[str, Any]:
    own = method.options.get(section, {})
    if not isinstance(own, Mapping):
        raise ConfigError(
            f"methods: {section} of {label(method)!r} must be settings such as {{drop_instances: 0.5}}, found {own!r}."
        )
    return dict(own)


def _training(grid: GridConfig, method: Choice) -> TrainingConfig:
    own = _own(method, "training")
    where = f"methods: training of {label(method)!r}"
    return build(TrainingConfig, {**grid.training.model_dump(), **own}, where=where) if own else grid.training
