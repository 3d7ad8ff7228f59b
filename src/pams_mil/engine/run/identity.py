"""What a result is: all that it depends on, as one frozen value that every output carries and every reuse compares.

    settings   method, model, remixing, training, seed, devices: all that changes the weights
    classes    the hierarchy, with its order and groups
    cohort     slides, labels, patients and parts of training and validation, by digest
    features   width, encoder, tile size, resolution
    backends   code that is chosen by what is installed and changes results

Where files lie and how many workers read them is not part of it. It is computed once, before training; `run.json`,
checkpoints, cells of benchmarks, predictions and exports hold it. `refuse_other` is the one place where two are
compared, and names what differs value by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pams_mil.data.bags.feature_origin import origin_differences
from pams_mil.digests import digest, file_digest
from pams_mil.engine.config.run_config import RunConfig, build
from pams_mil.engine.run.blueprint import complete, make_method
from pams_mil.engine.run.trained_slides import Difference, TrainedSlides, digest_of_0_1_0, slide_differences
from pams_mil.errors import CheckpointError, PamsError, RunError
from pams_mil.hierarchy import ClassHierarchy, hierarchy_from_json
from pams_mil.remix.strategy import create_remix

PARTS = ("classes", "cohort", "features", "settings", "backends")
DATA_PARTS = ("classes", "cohort", "features")
EARLIER = "digest of version 0.1.0"
"""Version 0.1.0 kept one digest of slides, classes and features together, and neither slides nor backends."""
_MOST_SHOWN = 5
_CONTENT = "content "


@dataclass(frozen=True)
class Identity:
    """What a run is. `slides` are the rows behind `cohort`, where they are known; they are never written with it."""

    settings: Mapping[str, Any]
    classes: Mapping[str, Any]
    cohort: Mapping[str, Any]
    features: Mapping[str, Any]
    backends: Mapping[str, str]
    slides: TrainedSlides | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, config: RunConfig, hierarchy: ClassHierarchy, slides: TrainedSlides, features: Mapping[str, Any]
    ) -> Identity:
        """The identity of a run whose options are complete."""
        content = {
            "settings": settings_of(config),
            "classes": classes_of(hierarchy),
            "cohort": slides.summary(),
            "features": dict(features),
            "backends": backends_of(config),
        }
        # By way of JSON, as it will be read back: a tuple would never equal the list that a file gives.
        return replace(cls.from_json(json.loads(json.dumps(content))), slides=slides)

    @classmethod
    def from_json(cls, content: Any) -> Identity:
        """An identity as a file holds it."""
        if not isinstance(content, Mapping) or not all(isinstance(content.get(part), Mapping) for part in PARTS):
            raise CheckpointError("The file does not say what it was made from: its identity is incomplete.")
        classes, cohort, features, settings, backends = (dict(content[part]) for part in PARTS)
        return cls(settings, classes, cohort, features, backends)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Identity:
        """The identity that a checkpoint holds; one of version 0.1.0 says as much as it recorded."""
        if "identity" in state:
            return cls.from_json(state["identity"])
        try:
            blueprint = state["blueprint"]
            return cls(
                settings=dict(state["fingerprint"]),
                classes=classes_of(hierarchy_from_json(blueprint["hierarchy"])),
                cohort={EARLIER: state["cohort"]},
                features={"width": blueprint["in_features"], **blueprint["encoder"]},
                backends={},
            )
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"The checkpoint does not say what it was made from: {error!r}.") from error

    def to_json(self) -> dict[str, Any]:
        """Plain values, without any slide's or patient's name."""
        return {**{part: dict(getattr(self, part)) for part in PARTS}, "digest": self.digest}

    @property
    def digest(self) -> str:
        """32 hex digits of everything."""
        return digest({part: getattr(self, part) for part in PARTS})


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings that change the weights: not where data lies (the cohort says which), nor what computes."""
    content = config.to_json()
    wanted = ("method", "model", "pairing", "training", "seed")
    if config.model.init is not None:
        # The same weights under another path are the same start; other weights under the same path are not.
        content["model"]["init"] = _what_it_holds(config.model.init)
    return {
        **{key: content[key] for key in wanted},
        "devices": [config.compute.devices, config.compute.nodes, config.compute.precision],
        "merge_cases": config.data.merge_cases,
    }


def _what_it_holds(init: Path) -> str:
    """Initial weights by their content, wherever the file lies; settings that were stored say it already."""
    # `_brought_up_to_date` builds settings from a stored identity, whose `init` is such a text and no path.
    if str(init).startswith(_CONTENT):
        return str(init)
    try:
        return _CONTENT + file_digest(init)
    except OSError as error:
        raise CheckpointError(f"model.init: {init} cannot be read: {error.strerror or error}.") from error


def classes_of(hierarchy: ClassHierarchy) -> dict[str, Any]:
    """The hierarchy as people compare it: the order of every level and the group of every class."""
    names, groups = hierarchy.names(), {}
    if hierarchy.num_levels > 1:
        above = hierarchy.names(hierarchy.num_levels - 2)
        groups = dict(zip(names, (above[i] for i in hierarchy.groups(hierarchy.num_levels - 2)), strict=True))
    return {
        "digest": hierarchy.digest,
        "order": {name: hierarchy.order(level) for level, name in enumerate(hierarchy.level_names)},
        "groups": groups,
    }


def backends_of(config: RunConfig) -> dict[str, str]:
    """Code that depends on what is installed and changes results: what clusters, where the remix clusters."""
    method = make_method(config.method)
    if method.remix in (None, "none"):
        return {}
    backend = getattr(create_remix(method.remix, **method.remix_options), "backend", None)
    return {} if backend is None else {"clustering": backend}


def refuse_other(stored: Identity, now: Identity, where: Path | str, *, parts: Sequence[str] = PARTS) -> None:
    """Stop where `where`, made as `stored`, would be taken for what is asked for `now`.

    Raises:
        CheckpointError: every difference with both values, the first few in full.
    """
    found = differences(stored, now, parts=parts)
    if not found:
        return
    shown = "; ".join(f"{key} = {before!r}, but now it is {after!r}" for key, before, after in found[:_MOST_SHOWN])
    more = f"; and {len(found) - _MOST_SHOWN} more differences" if len(found) > _MOST_SHOWN else ""
    advice = "Use the settings and the data it was started with, or start a new run in another folder."
    if [key for key, _, _ in found] == ["backends.clustering"]:
        advice = (
            "With and without Numba (the extra 'fast') or FAISS a remix may select other rows: install what it was "
            "started with, or start a new run in another folder."
        )
    raise CheckpointError(f"{where} was trained with {shown}{more}. {advice}")


def differences(stored: Identity, now: Identity, *, parts: Sequence[str] = PARTS) -> list[Difference]:
    """Where two identities differ: what, its stored value, its value now. What was not recorded is no difference."""
    compare: dict[str, Callable[[Identity, Identity], list[Difference]]] = {
        "classes": _class_differences,
        "cohort": _cohort_differences,
        "features": lambda one, two: [
            (f"features.{key}", before, after) for key, before, after in origin_differences(one.features, two.features)
        ],
        "settings": _setting_differences,
        "backends": lambda one, two: [
            (f"backends.{name}", one.backends[name], two.backends[name])
            for name in one.backends
            # Only what both say: what was not recorded is no difference.
            if name in two.backends and one.backends[name] != two.backends[name]
        ],
    }
    return [found for part in parts for found in compare[part](stored, now)]


def nested_differences(before: Any, now: Any, key: str = "") -> list[Difference]:
    """Where two nested mappings differ.

    >>> nested_differences({"model": {"name": "abmil"}, "seed": 0}, {"model": {"name": "dtfd"}, "seed": 0})
    [('model.name', 'abmil', 'dtfd')]
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = list(dict.fromkeys([*before, *now]))
        inner = (nested_differences(before.get(k), now.get(k), f"{key}.{k}" if key else str(k)) for k in keys)
        return [found for part in inner for found in part]
    return [] if before == now else [(key, before, now)]


def refuse_another(path: Path, kind: str, before: Mapping[str, Any], asked: Mapping[str, Any], advice: str) -> None:
    """Stop where a folder holds a cross-validation or a tuning that was asked for with other settings.

    Args:
        path: The folder.
        kind: What it holds.
        before: What was asked for then, as JSON gave it back.
        asked: What is asked for now.
        advice: What to do about it, the end of the message.
    """
    changes = nested_differences(before, json.loads(json.dumps(asked)))
    if changes:
        key, was, now = changes[0]
        name = {"slides_and_folds": "the slides, labels or folds (digest)", "classes": "the class hierarchy (digest)"}
        raise RunError(f"{path} holds another {kind}: {name.get(key, key)} was {was!r} and is now {now!r}. {advice}")


def _class_differences(stored: Identity, now: Identity) -> list[Difference]:
    if stored.classes["digest"] == now.classes["digest"]:
        return []
    if not stored.classes["order"]:  # a `run.json` of version 0.1.0
        return [("classes.digest", stored.classes["digest"], now.classes["digest"])]
    found = [
        item
        for key in ("order", "groups")
        for item in nested_differences(stored.classes[key], now.classes[key], f"classes.{key}")
    ]
    return found or [("classes.digest", stored.classes["digest"], now.classes["digest"])]


def _cohort_differences(stored: Identity, now: Identity) -> list[Difference]:
    if EARLIER in stored.cohort:
        if now.slides is None:
            return []
        # All that version 0.1.0 left is this digest, so the same one is made of today's slides.
        mine = digest_of_0_1_0(now.slides, now.classes["digest"], now.features)
        return [] if stored.cohort[EARLIER] == mine else [("cohort.digest", stored.cohort[EARLIER], mine)]
    if stored.cohort == now.cohort:
        return []
    if stored.slides is not None and now.slides is not None:
        return slide_differences(stored.slides, now.slides)
    return nested_differences(stored.cohort, now.cohort, "cohort")


def _setting_differences(stored: Identity, now: Identity) -> list[Difference]:
    # A key that an earlier version did not store (merge_cases, say) says nothing about that run.
    known = {key: value for key, value in now.settings.items() if key in stored.settings}
    return nested_differences(_brought_up_to_date(stored.settings), known)


def _brought_up_to_date(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an earlier version with the options that were added since, at their defaults."""
    try:
        known = {key: settings[key] for key in ("method", "model", "pairing", "training", "seed")}
        config = build(RunConfig, {**known, "data": "any", "classes": "any"})
        filled = json.loads(json.dumps(settings_of(complete(config))))
    except (PamsError, KeyError):  # a method or an option that is gone is named as a difference
        return dict(settings)
    return {key: filled[key] if key in known else settings[key] for key in settings}
