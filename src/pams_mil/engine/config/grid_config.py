"""The settings of a benchmark: methods x models x seeds x folds, everything else the same for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

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

AnyChoice = TypeVar("AnyChoice", bound=Choice)


def _all(package: str) -> Any:
    def read(values: Any) -> Any:
        choices = values if isinstance(values, (list, tuple)) else [values]
        return [read_choice(package, value) for value in choices]

    return BeforeValidator(read)


class GridConfig(Strict):
    """A benchmark; a `label` beside a method's or model's name tells variants apart in the table.

    A method may also bring `training` and `pairing` of its own: what it names there goes before the grid's. `arms`
    goes before both: the `training` of one method on one model, by their labels.
    """

    data: DataConfig
    classes: ClassFiles
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
    wanted = grid.reference or labels[0]
    if wanted not in labels:
        raise ConfigError(
            f"reference: there is no method labelled {wanted!r} in the grid.{nearest(wanted, labels)} "
            f"Found {listing(labels)}."
        )
    return wanted


def label(choice: Choice) -> str:
    """The name in the table."""
    return str(choice.options.get("label", short_name(choice.name)))


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
    _check_arms(grid)
    planned = []
    folds: tuple[int | None, ...] = grid.folds or (None,)
    # The method changes fastest: when time is up, all methods have the same seeds and folds behind them.
    for seed, fold, model, method in product(grid.seeds, folds, grid.models, grid.methods):
        name = f"{label(model)}--{label(method)}--seed{seed}" + ("" if fold is None else f"--fold{fold}")
        data = grid.data if fold is None else grid.data.model_copy(update={"fold": fold})
        config = RunConfig(
            data=data, classes=grid.classes, method=_plain(method, _ARM_KEYS), model=_plain(model, ("label",)),
            pairing={**grid.pairing, **_own(method, "pairing")}, training=_training(grid, model, method),
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


def _training(grid: GridConfig, model: Choice, method: Choice) -> TrainingConfig:
    arm = grid.arms.get(label(model), {}).get(label(method), {})
    where = f"arms: {label(model)}: {label(method)}" if arm else f"methods: training of {label(method)!r}"
    own = {**_own(method, "training"), **arm}
    return build(TrainingConfig, {**grid.training.model_dump(), **own}, where=where) if own else grid.training


def _check_arms(grid: GridConfig) -> None:
    """Arms name methods of the grid, and models of the grid or any others, which `models=` may have left out."""
    models = list(dict.fromkeys([*map(label, grid.models), *discover.available("models")]))
    methods = [label(choice) for choice in grid.methods]
    for model, arms in grid.arms.items():
        for kind, names, known in (("model", [model], models), ("method", list(arms), methods)):
            for name in names:
                if name not in known:
                    raise ConfigError(
                        f"arms: there is no {kind} labelled {name!r} in the grid.{nearest(name, known)} "
                        f"Found {listing(known)}."
                    )
