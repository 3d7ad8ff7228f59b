"""RunSpec: all that a run's result depends on, as one frozen, versioned value.

    settings   method, model, remix, training, seed, devices: all that changes the weights, every option written out
    classes    the hierarchy
    cohort     slides, labels, patients and splits of training and validation, by digest
    features   width, encoder, tile size, resolution; and the content of the files, by digest

Where files lie and how many workers read them is not part of it. It is made once, before training; `run.json`,
checkpoints, cells of benchmarks, predictions and exports hold it, and a model can be built from it alone.
`differences` is the one place where two are compared, value by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pams_mil import discover
from pams_mil.data.bags.feature_origin import origin_differences
from pams_mil.digests import digest, file_digest
from pams_mil.engine.config.complete_config import CompleteConfig, model_defaults
from pams_mil.engine.config.run_config import TrainingConfig
from pams_mil.engine.learner import Learner
from pams_mil.engine.run.checkpoint import refuse_misfit
from pams_mil.engine.run.trained_slides import Difference, TrainedSlides, slide_differences
from pams_mil.errors import CheckpointError, RunError, require_fields, stored_format
from pams_mil.hierarchy import ClassHierarchy, hierarchy_from_json, hierarchy_to_json
from pams_mil.methods.method import Method, create_method, method_kind
from pams_mil.models.core.factory import model_kind
from pams_mil.models.core.hierarchical import HierarchicalModel

VERSION = 1
PARTS = ("classes", "cohort", "features", "settings")
DATA_PARTS = ("classes", "cohort", "origin")
"""What a run's own data must still be where it is read again; a damaged file is reported when it is read."""
MOST_OF_AN_OPTION = 1 << 16
"""Largest whole number that an option of a stored model may have: no width, count of blocks or of splits is larger."""
_MOST_SHOWN = 5
_ADVICE = "Train again, or use the version of PAMS that it was trained with."
_WEIGHT_SETTINGS = ("method", "model", "pairing", "training", "seed")


_OPTIONS: dict[str, Callable[[str], Sequence[str]]] = {
    "method": lambda name: [one.name for one in fields(method_kind(name)) if one.init],
    "model": lambda name: [*model_defaults(model_kind(name))],
}


@dataclass(frozen=True)
class RunSpec:
    """What a run is.

    Attributes:
        settings: All that changes the weights; plain values.
        hierarchy: The classes, with every order of urgency that the run was trained with.
        cohort: Slides, patients and digest of every split that the run has seen.
        features: What the bags have in common (`feature_origin`), and `files`, a digest of their content per split.
        slides: The rows behind `cohort`, where they are known; they are never written with it.
    """

    settings: Mapping[str, Any]
    hierarchy: ClassHierarchy
    cohort: Mapping[str, Any]
    features: Mapping[str, Any]
    slides: TrainedSlides | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, config: CompleteConfig, hierarchy: ClassHierarchy, slides: TrainedSlides, features: Mapping[str, Any]
    ) -> RunSpec:
        """The spec of a run with these settings on this data."""
        spec = cls(_settings(config), hierarchy, slides.summary(), features)
        return replace(cls.from_json(spec.to_json()), slides=slides)

    @classmethod
    def from_json(cls, content: Any, where: Path | str = "The checkpoint") -> RunSpec:
        """A spec as the file `where` holds it; one with other fields than those of this version is refused."""
        if not isinstance(content, Mapping):
            raise CheckpointError(f"{where} does not say what it was made from: its run spec is missing.")
        if content.get("version") != VERSION:
            raise CheckpointError(
                f"{where} has run spec version {content.get('version')!r}; this PAMS reads {VERSION}. {_ADVICE}"
            )
        with stored_format(where, CheckpointError, _ADVICE):
            require_fields(content, (*PARTS, "version", "digest"))
            settings, cohort, features = (content[section] for section in ("settings", "cohort", "features"))
            require_fields(settings, (*_WEIGHT_SETTINGS, "devices", "merge_cases"), "settings.")
            require_fields(settings["training"], TrainingConfig.model_fields, "settings.training.")
            for choice in ("method", "model"):
                require_fields(settings[choice], ["name"], f"settings.{choice}.", optional=settings[choice])
                # The options of code outside of PAMS are known only to that code, which is not run here.
                if ":" not in str(name := settings[choice]["name"]):
                    known = _OPTIONS[choice](name)
                    require_fields(settings[choice], ("name", *known), f"settings.{choice}.", optional=["init"])
            for split, rows in cohort.items():
                require_fields(rows, ("slides", "patients", "digest"), f"cohort.{split}.")
            require_fields(features, ["width"], "features.", optional=features)
            if not isinstance(features["width"], int) or isinstance(features["width"], bool):
                raise ValueError(f"the width of its features is {features['width']!r}")
            return cls(dict(settings), hierarchy_from_json(content["classes"]), dict(cohort), dict(features))

    def to_json(self) -> dict[str, Any]:
        """Plain values, without any slide's or patient's name."""
        parts = {section: dict(getattr(self, section)) for section in ("cohort", "features", "settings")}
        content = {"version": VERSION, "classes": hierarchy_to_json(self.hierarchy), **parts}
        # As it will be read back: a tuple would never equal the list that a file gives.
        plain: dict[str, Any] = json.loads(json.dumps(content))
        return {**plain, "digest": digest(plain)}

    @cached_property
    def digest(self) -> str:
        """32 hex digits of everything."""
        return str(self.to_json()["digest"])

    @property
    def in_features(self) -> int:
        """Feature width d."""
        return int(self.features["width"])

    @property
    def origin(self) -> dict[str, Any]:
        """Width and encoder: what the bags of a prediction must share with those of the training."""
        return {key: value for key, value in self.features.items() if key != "files"}

    @property
    def encoder(self) -> dict[str, Any]:
        """How the features were made, as far as the files or the settings say."""
        return {key: value for key, value in self.origin.items() if key != "width"}

    @cached_property
    def method(self) -> Method:
        """The method: towers, heads, remix and objective."""
        return create_method(**self.settings["method"])

    @property
    def model_options(self) -> dict[str, Any]:
        """Name and options of the model, without the file that it was initialized from."""
        return {key: value for key, value in self.settings["model"].items() if key != "init"}

    def build(self, *, trusted: bool = False, weights: Mapping[str, Tensor] | None = None) -> Learner:
        """The untrained learner.

        With `trusted`, methods and models are also imported from modules that the spec names: a checkpoint of someone
        else could name any module, so that takes an explicit yes. A model with others than these `weights`, from the
        file that the spec is from, is refused before memory is claimed on the file's word.
        """
        for name in () if trusted else self.code:
            raise CheckpointError(
                f"The checkpoint names code outside of PAMS, {name!r}, which would be imported and run. "
                "If you know where the checkpoint comes from, allow it with --trust-code (trusted=True)."
            )
        if weights is not None:
            self._refuse_other_shapes(weights)
        objective, levels = self.method.objective(self.hierarchy), self.method.trained_levels(self.hierarchy)
        findings = self.method.findings_term(self.hierarchy) if self.hierarchy.findings == "several" else None
        return Learner(self._model(), objective, self.hierarchy, levels, findings)

    def _refuse_other_shapes(self, weights: Mapping[str, Tensor]) -> None:
        """The model is laid out without storage, so a description with sizes in the billions costs nothing."""
        # Also without storage, every block of a model is an object: billions of them would take all memory and hours.
        options = self.model_options.items()
        large = {key: value for key, value in options if isinstance(value, int) and value > MOST_OF_AN_OPTION}
        if large:
            raise CheckpointError(f"The checkpoint describes a model of impossible size: {large}.")
        try:
            # By the code that builds the model, so that no table of shapes can disagree with it.
            with torch.device("meta"):
                expected = self._model().state_dict()
        except (RuntimeError, TypeError, KeyError, OverflowError) as error:
            raise CheckpointError(f"The checkpoint describes a model that cannot be built: {error}.") from error
        refuse_misfit(expected, weights)

    def _model(self) -> HierarchicalModel:
        hierarchy, options = self.hierarchy, self.model_options
        return HierarchicalModel(
            options.pop("name"),
            in_features=self.in_features,
            num_classes=[hierarchy.num_classes(level) for level in range(hierarchy.num_levels)],
            towers=self.method.towers,
            heads=self.method.heads,
            hierarchy=hierarchy,
            **options,
        )

    @property
    def code(self) -> list[str]:
        """The names of method, model and remix that are code outside of PAMS."""
        method, model = self.settings["method"], self.settings["model"]
        return [name for name in (method.get("name"), model.get("name"), method.get("remix")) if ":" in str(name)]


def _settings(config: CompleteConfig) -> dict[str, Any]:
    """The settings that change the weights: not where data lies (the cohort says which), nor what computes."""
    content = config.to_json()
    if config.model.init is not None:
        # The same weights under another path are the same start; other weights under the same path are not.
        try:
            content["model"]["init"] = f"content {file_digest(config.model.init)}"
        except OSError as error:
            raise CheckpointError(
                f"model.init: {config.model.init} cannot be read: {error.strerror or error}."
            ) from error
    for choice, key in (("method", "name"), ("method", "remix"), ("model", "name")):
        # Code in a file is its content, wherever it lies.
        if isinstance(name := content[choice].get(key), str):
            content[choice][key] = discover.pinned(name)
    return {
        **{key: content[key] for key in _WEIGHT_SETTINGS},
        "devices": [config.compute.devices, config.compute.nodes, config.compute.precision],
        "merge_cases": config.data.merge_cases,
    }


def differences(stored: RunSpec, now: RunSpec, *, parts: Sequence[str] = PARTS) -> list[Difference]:
    """Where two specs differ: what, its stored value, its value now.

    What features do not state is not a difference; slides are named where both know theirs. The part "origin" is
    "features" without the digest of the files.
    """
    changes: list[Difference] = []
    for section in parts:
        if section == "classes":
            changes += _class_differences(stored.hierarchy, now.hierarchy)
        elif section == "cohort" and stored.cohort != now.cohort and stored.slides and now.slides:
            changes += slide_differences(stored.slides, now.slides)
        elif section in ("features", "origin"):
            changes += [(f"features.{key}", *both) for key, *both in origin_differences(stored.features, now.features)]
            before, after = (spec.features.get("files") if section == "features" else None for spec in (stored, now))
            changes += nested_differences(before, after, "digest of the feature files")
        else:
            prefix = "" if section == "settings" else section
            changes += nested_differences(getattr(stored, section), getattr(now, section), prefix)
    return changes


def refuse_to_continue(stored: RunSpec, now: RunSpec, where: Path | str, *, epochs_done: int = 0) -> None:
    """Stop where a run cannot go on as asked; more epochs or patience extend it, as if it was started with them."""
    refuse_changes([one for one in differences(stored, now) if not _extends(one, now, epochs_done)], where)


def _extends(change: Difference, now: RunSpec, epochs_done: int) -> bool:
    key, before, after = change
    if key == "training.epochs":
        # Other schedules have given every epoch so far a rate that depends on how many there will be.
        return bool(now.settings["training"]["schedule"] == "constant" and after >= epochs_done)
    return key == "training.patience" and (after is None or (before is not None and after >= before))


def refuse_changes(changes: Sequence[Difference], where: Path | str) -> None:
    """Stop where a run would go on as something else, naming the first few differences with both values."""
    if not changes:
        return
    shown = "; ".join(f"{key} = {before!r}, but now it is {after!r}" for key, before, after in changes[:_MOST_SHOWN])
    more = f"; and {len(changes) - _MOST_SHOWN} more differences" if len(changes) > _MOST_SHOWN else ""
    advice = "Use the settings and the data it was started with, or start a new run in another folder."
    if all(key.startswith("digest of the feature files") for key, _, _ in changes):
        advice = (
            "Feature files of training or validation were changed or replaced since, and a run of old and new features "
            "would be neither: put the old files back, or start a new run in another folder."
        )
    if len(changes) == 1 and discover.same_file(*changes[0][1:]):
        advice = (
            f"The file was changed: put back the one that {where}/code holds, or start a new run in another folder."
        )
    if "training.epochs" in (key for key, _, _ in changes):
        advice = (
            "Only a run with training.schedule=constant can be extended, and none to fewer epochs than it has: every "
            "other schedule sets its rates by the number of epochs. Start a new run in another folder."
        )
    raise CheckpointError(f"{where} was trained with {shown}{more}. {advice}")


def nested_differences(before: Any, now: Any, key: str = "") -> list[Difference]:
    """Where two nested mappings differ.

    >>> nested_differences({"model": {"name": "abmil"}, "seed": 0}, {"model": {"name": "dtfd"}, "seed": 0})
    [('model.name', 'abmil', 'dtfd')]
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = list(dict.fromkeys([*before, *now]))
        inner = (nested_differences(before.get(k), now.get(k), f"{key}.{k}" if key else str(k)) for k in keys)
        return [change for changes in inner for change in changes]
    return [] if before == now else [(key, before, now)]


def refuse_another(path: Path, kind: str, before: Mapping[str, Any], asked: Mapping[str, Any], advice: str) -> None:
    """Stop where a folder holds a cross-validation or a tuning (`kind`) that was asked for with other settings."""
    changes = nested_differences(before, json.loads(json.dumps(asked)))
    if changes:
        key, was, now = changes[0]
        name = {"slides_and_folds": "the slides, labels or folds (digest)", "classes": "the class hierarchy (digest)"}
        raise RunError(f"{path} holds another {kind}: {name.get(key, key)} was {was!r} and is now {now!r}. {advice}")


def _class_differences(stored: ClassHierarchy, now: ClassHierarchy) -> list[Difference]:
    if [one.digest for one in stored.orders] == [one.digest for one in now.orders]:
        return []
    if stored.digest == now.digest:
        before, after = ([one.order() for one in tree.other_orders] for tree in (stored, now))
        return [("classes.other_orders", before, after)]
    changes = nested_differences(_order_and_groups(stored), _order_and_groups(now), "classes")
    return changes or [("classes.digest", stored.digest, now.digest)]


def _order_and_groups(hierarchy: ClassHierarchy) -> dict[str, Any]:
    """The hierarchy as people compare it: the order of every level and the group of every class."""
    level, groups = hierarchy.num_levels - 2, {}
    if level >= 0:
        above = hierarchy.names(level)
        groups = {name: above[i] for name, i in zip(hierarchy.names(), hierarchy.groups(level), strict=True)}
    order = {name: hierarchy.order(level) for level, name in enumerate(hierarchy.level_names)}
    return {"order": order, "groups": groups}


def stored_spec(folder: Path) -> RunSpec:
    """The spec that the `run.json` of a run folder holds, with the slides of `cohort.csv` where it is there and fits.

    Raises:
        CheckpointError: it holds none, or one of another version.
    """
    try:
        content = json.loads((folder / "run.json").read_text("utf-8"))["spec"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} does not say what it was made from: run.json has no run spec.") from error
    return with_slides(RunSpec.from_json(content, folder / "run.json"), folder)


def with_slides(spec: RunSpec, folder: Path) -> RunSpec:
    """The spec with the slides that `cohort.csv` lists, where it is there and fits."""
    try:
        return replace(spec, slides=TrainedSlides.read(folder, dict(spec.cohort)))
    except RunError:  # differences can then be found, but not named
        return spec
