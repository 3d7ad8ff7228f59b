"""Recipes: named settings of a run, and the space of them that a tuning tries.

A space is a YAML file: what all recipes share (`training`), blocks of choices that are multiplied out (`try`), and
single points written as settings of a run (`recipes`). A block has seven choices; what it leaves out is plain:

    pooling   mean_pool, abmil, clam_mb, priority, smooth_max, or any other model by its name
    loss      ce; msce, PAMS' loss without alignment; pams: MSCE, alignment and SFR
    remix     how often SFR mixes a bag with one that leaves its label true; 0: never, for pams as often as by default
    drop      share of every bag's instances that a training step does not see
    attended  share of the instances, the most attended ones, most of which a training step does not see
    lr        learning rate; null: the one of `training`
    length    how long to train, as a multiple of the epochs of `training`: where a model soon knows its training slides
              verbatim, a quarter of them is the plainest remedy

Plain cross-entropy on AB-MIL is always the first recipe: whatever is chosen is compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from pams_mil.engine.config.complete_config import make_method
from pams_mil.engine.config.run_config import RunConfig, Strict, build, short_name, with_overrides
from pams_mil.engine.config.yaml_file import read_yaml
from pams_mil.errors import ConfigError, counted, listing, nearest
from pams_mil.methods.method import Method

REFERENCE = "abmil-ce"
"""The recipe that is in every rung, and that the chosen one is compared with."""
SPACES = Path(__file__).parent / "spaces"
POOLINGS: dict[str, dict[str, Any]] = {
    "priority": {"name": "priority", "pooling": "attention"},
    "smooth_max": {"name": "priority", "pooling": "smooth_max"},
}
"""Poolings that are a model with options; the others are the model of their name."""
LOSSES: dict[str, dict[str, Any]] = {
    "ce": {"name": "ce", "towers": "finest"},
    "msce": {"name": "msce", "towers": "finest"},
    "pams": {"name": "pams"},
}
PARTS = ("model", "method", "pairing", "training")
"""The parts of a run's settings that a recipe may set."""


@dataclass(frozen=True)
class Recipe:
    """A name and the settings that make it; everything else is shared by all recipes."""

    name: str
    settings: Mapping[str, Any]
    length: float = 1.0
    """Its epochs as a multiple of those of the others."""

    def config(self, shared: Mapping[str, Any], changes: tuple[str, ...] = ()) -> RunConfig:
        """The settings of a run: the shared ones, the recipe's, then what the user changes for all."""
        content = {**shared, **{key: self.settings[key] for key in PARTS if key in self.settings}}
        content["training"] = {**shared.get("training", {}), **self.settings.get("training", {})}
        config = build(RunConfig, with_overrides(content, changes, kind=RunConfig), where=f"the recipe {self.name!r}")
        epochs = max(1, round(self.length * config.training.epochs))
        return config.model_copy(update={"training": config.training.model_copy(update={"epochs": epochs})})


T = TypeVar("T")
Several = Annotated[
    tuple[T, ...], BeforeValidator(lambda value: value if isinstance(value, (list, tuple)) else [value])
]
"""One value or a list of them."""
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]


class Choices(Strict):
    """A block of a space; every combination is a recipe."""

    pooling: Several[str] = ("abmil",)
    loss: Several[str] = ("ce",)
    remix: Several[Annotated[float, Field(ge=0, le=1)]] = (0.0,)
    drop: Several[Share] = (0.0,)
    attended: Several[Share] = (0.0,)
    lr: Several[Positive | None] = (None,)
    length: Several[Positive] = (1.0,)

    def recipes(self) -> Iterator[Recipe]:
        """All combinations, the last choice changing fastest."""
        for loss in self.loss:
            if loss not in LOSSES and ":" not in loss:
                raise ConfigError(
                    f"There is no loss {loss!r}.{nearest(loss, LOSSES)} Choose from {listing(LOSSES)}, or your own: "
                    "'./my_loss.py:my_loss'."
                )
        choices = self.model_dump()
        return (recipe(**dict(zip(choices, point, strict=True))) for point in product(*choices.values()))


class SpaceFile(Strict):
    """A space as it is written."""

    training: dict[str, Any] = Field(default_factory=dict)
    try_: tuple[dict[str, Any], ...] = Field(default=(), alias="try")
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    reference: dict[str, Any] = Field(default_factory=dict)
    """For a committee: the plain network that it is compared with."""


@dataclass(frozen=True)
class Space:
    """What a tuning tries: shared settings of training, and recipes in the order in which a short budget takes them."""

    name: str
    training: Mapping[str, Any] = field(default_factory=dict)
    recipes: tuple[Recipe, ...] = ()
    reference: Recipe = Recipe(REFERENCE, {"method": LOSSES["ce"], "model": {"name": "abmil"}})
    """The plain network that everything is compared with."""


def recipe(
    pooling: str,
    *,
    loss: str = "ce",
    remix: float = 0.0,
    drop: float = 0.0,
    attended: float = 0.0,
    lr: float | None = None,
    length: float = 1.0,
) -> Recipe:
    """The recipe of seven choices, named after those that are not plain.

    >>> recipe("abmil").name, recipe("clam_mb", remix=0.5, drop=0.7, lr=2e-4).name
    ('abmil-ce', 'clam_mb-ce-sfr0.5-drop0.7-lr0.0002')
    >>> recipe("abmil", remix=0.5).settings["pairing"]
    {'rule': 'keep_label', 'own_class': True, 'probability': 0.5}
    """
    method = dict(LOSSES.get(loss, {"name": loss, "towers": "finest"}))
    settings: dict[str, Any] = {"model": dict(POOLINGS.get(pooling, {"name": pooling})), "method": method}
    if remix:
        method["remix"] = "sfr"
        settings["pairing"] = {"rule": "keep_label", "own_class": True, "probability": remix}
    training = {"drop_instances": drop, "drop_attended": attended, "lr": lr}
    settings["training"] = {key: value for key, value in training.items() if value}
    marks = {"sfr": remix, "drop": drop, "attended": attended, "lr": lr, "length": 0 if length == 1 else length}
    words = [short_name(pooling), short_name(loss), *(f"{mark}{value:g}" for mark, value in marks.items() if value)]
    return Recipe("-".join(words), settings, length)


def load_space(name: str | Path) -> Space:
    """A space by its name (`default`, `quick`) or from a file of one's own.

    >>> load_space("default").recipes[0].name
    'abmil-ce'
    """
    space = read_recipes(name)
    reference = recipe("abmil")
    return replace(space, recipes=(reference, *(one for one in space.recipes if one.name != reference.name)))


def load_committee(name: str | Path = "committee", *, most: int | None = None) -> Space:
    """The members of a committee, by the name of a packaged file or from one's own; the first `most` of them.

    >>> [member.name for member in load_committee(most=2).recipes]
    ['mean-hidden', 'attention-hidden']
    """
    space = read_recipes(name)
    if most is not None and most > len(space.recipes):
        raise ConfigError(f"The committee {space.name!r} has {len(space.recipes)} members, not {most}.")
    return replace(space, recipes=space.recipes[:most])


def read_recipes(name: str | Path) -> Space:
    """The recipes of a file, in its order; a packaged file by its name."""
    known = {path.stem: path for path in SPACES.glob("*.yaml")}
    path = known.get(str(name), Path(name))
    if not path.is_file():
        raise ConfigError(
            f"There is no file of recipes called {str(name)!r}.{nearest(str(name), known)} Packaged: "
            f"{listing(sorted(known))}, or a YAML file of your own; see docs/tune.md."
        )
    written = build(SpaceFile, read_yaml(path), where=str(path))
    recipes: list[Recipe] = []
    for number, block in enumerate(written.try_, 1):
        recipes += build(Choices, block, where=f"{path}, block {number} of try").recipes()
    recipes += [_own(name_, settings, path) for name_, settings in written.recipes.items()]
    unique: dict[str, Recipe] = {}
    for one in recipes:
        unique.setdefault(one.name, one)
    plain = {**Space.reference.settings, **written.reference}
    return Space(path.stem, written.training, tuple(unique.values()), Recipe(REFERENCE, plain))


def _own(name: str, settings: Mapping[str, Any], path: Path) -> Recipe:
    """A recipe of the user's, as settings of a run."""
    odd = [key for key in settings if key not in PARTS]
    if odd:
        raise ConfigError(
            f"{path}: the recipe {name!r} sets {listing(odd)}.{nearest(odd[0], PARTS)} "
            f"A recipe may set {listing(PARTS)}."
        )
    if name == REFERENCE:
        raise ConfigError(f"{path}: {REFERENCE!r} is plain cross-entropy on AB-MIL; choose another name.")
    return Recipe(name, {"method": {"name": "ce", "towers": "finest"}, "model": {"name": "abmil"}, **settings})


SIMPLER_POOLINGS = ("mean_pool", "max_pool", "abmil", "priority smooth_max", "clam_sb", "clam_mb", "priority attention")
"""From the fewest to the most learned weights of pooling."""
Simplicity = tuple[int, int, float, float, float, float, str]


def simplicity(name: str, config: RunConfig, shared: RunConfig) -> Simplicity:
    """Which of two recipes is simpler, for sorting: the one that has less at the first line in which they differ.

        1. parts beside plain cross-entropy: another loss, alignment of levels, remixing, instance dropout, hiding what
           is attended most (one each)
        2. the pooling's place in SIMPLER_POOLINGS, from a mean to one question per boundary; other models come last
        3. the share of instances dropped
        4. how often bags are remixed
        5. how far the learning rate is from the shared one, as a ratio
        6. how far the number of epochs is from the shared one, as a ratio
        7. its name, so that no two are equally simple

    `shared` are the settings of the reference.

    >>> from pams_mil.engine.config.run_config import configure
    >>> plain = configure("m.csv", classes="bracs", method="ce", lr=1e-3)
    >>> simplicity("plain", plain, plain)
    (0, 2, 0.0, 0.0, 0.0, 0.0, 'plain')
    >>> parts_of(configure("m.csv", classes="bracs", method="pams"))
    ('loss', 'alignment', 'remix')
    """
    method = make_method(config.method)
    remixed = float(config.pairing.get("probability", 0.5)) if _remixes(method) else 0.0
    pooling = f"{config.model.name} {config.model.options.get('pooling', '')}".strip()
    place = SIMPLER_POOLINGS.index(pooling) if pooling in SIMPLER_POOLINGS else len(SIMPLER_POOLINGS)
    mine, theirs = config.training, shared.training
    rate, epochs = (
        round(abs(math.log(one / two)), 9) for one, two in ((mine.lr, theirs.lr), (mine.epochs, theirs.epochs))
    )
    return (len(parts_of(config)), place, mine.drop_instances or 0.0, remixed, rate, epochs, name)


def parts_of(config: RunConfig) -> tuple[str, ...]:
    """What a recipe has beside plain cross-entropy."""
    method = make_method(config.method)
    has = {
        "loss": config.method.name != "ce" and getattr(method, "alpha", 1.0) is not None,
        "alignment": bool(getattr(method, "lambda_align", 0)),
        "remix": _remixes(method),
        "dropout": bool(config.training.drop_instances),
        "attended": bool(config.training.drop_attended),
    }
    return tuple(component for component, there in has.items() if there)


def in_words(config: RunConfig) -> str:
    """A recipe for people, e.g. 'clam_mb, cross-entropy, SFR on 50 % of the bags, 70 % of instances dropped'."""
    method: Any = make_method(config.method)
    pooling = config.model.options.get("pooling")
    name = short_name(config.model.name)
    words = [f"{name} ({pooling})" if pooling else name]
    losses = {"ce": "cross-entropy", "pams": "MSCE", "msce": "MSCE"}
    words.append(losses.get(config.method.name, short_name(config.method.name)))
    if getattr(method, "lambda_align", 0):
        words.append("levels aligned")
    if _remixes(method):
        relabels = ", urgent label" if config.pairing.get("rule") == "urgent_label" else ""
        share = 100 * config.pairing.get("probability", 0.5)
        words.append(f"{method.remix.upper()} on {share:g} % of the bags{relabels}")
    if config.training.drop_instances:
        words.append(f"{100 * config.training.drop_instances:g} % of the instances dropped")
    if config.training.drop_attended:
        words.append(f"most of the {100 * config.training.drop_attended:g} % most attended instances hidden")
    return ", ".join([*words, counted(config.training.epochs, "epoch"), f"lr {config.training.lr:g}"])


def _remixes(method: Method) -> bool:
    return method.remix not in (None, "none")
