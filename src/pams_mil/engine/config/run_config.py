"""The settings of a run: one YAML file or keyword arguments, checked before anything is read or trained.

Unknown keys are refused with the nearest known one. What is left at null follows the recipe of the model
(see `RECIPES`); `RunConfig.resolved` fills it in, so that the stored config says what was really used.
No torch here: the options of methods, models and remixes are checked by the code that builds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from pams_mil import discover
from pams_mil.class_file import locate_classes
from pams_mil.data.bags.filenames import features_of
from pams_mil.engine.config.yaml_file import parse_yaml, read_yaml
from pams_mil.errors import ConfigError, listing, nearest

Schedule = Literal["constant", "step", "cosine"]
Selection = Literal[
    "ascc", "acc", "balanced_acc", "auc", "asmc", "ecc", "emc", "risk", "missed_rate", "cohen_kappa", "urgency_auc",
    "refined_nll", "loss", "last",
]  # fmt: skip

RECIPES: dict[str, dict[str, Any]] = {
    "dtfd": {"clip_norm": 5.0, "clip_each_part": True, "schedule": "step"},
    "": {"clip_norm": 0.0, "clip_each_part": False, "schedule": "constant"},
}
"""What `training` leaves at null, by model; the empty name is everyone else. DTFD's is its authors'."""


def _class_files(value: Any) -> Any:
    """One class file or several, as text; a list of one is that one."""
    files = [
        str(one) if isinstance(one, Path) else one for one in (value if isinstance(value, (list, tuple)) else [value])
    ]
    if not files or not all(isinstance(one, str) for one in files):
        raise ValueError("expected a preset or a class file, by name")
    return files[0] if len(files) == 1 else files


ClassFiles = Annotated[str | Annotated[tuple[str, ...], Field(min_length=2)], BeforeValidator(_class_files)]


class Strict(BaseModel):
    """Settings that cannot be changed and have no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataConfig(Strict):
    """The cohort."""

    manifest: Path
    features: Path | None = None
    """Folder of feature files, or a pack; the manifest's folder when null."""
    fold: int | None = Field(default=None, ge=0)
    splits: Path | None = None
    clini: Path | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    patients_are_slides: bool = False
    merge_cases: bool = False
    """One bag per case instead of one per slide."""
    encoder: str | None = None
    """Of features whose files do not name it, as 'pams extract' would; likewise `mpp` and `tile_px`."""
    mpp: float | None = Field(default=None, gt=0)
    tile_px: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _manifest_alone(cls, content: Any) -> Any:
        """`data: manifest.csv` is short for `data: {manifest: manifest.csv}`."""
        return {"manifest": content} if isinstance(content, (str, Path)) else content


class Choice(BaseModel):
    """A name with options beside it: `pams`, or `{name: pams, alpha: 1.8}`."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        """The options beside the name."""
        return dict(self.model_extra or {})


class ModelChoice(Choice):
    """A model; `init` is a file of published weights that it starts from, of the same architecture."""

    init: Path | None = None

    @model_serializer(mode="wrap")
    def _only_given(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Settings say `init` only where there is one, so that runs of earlier versions are still themselves."""
        return {key: value for key, value in plain(self).items() if key != "init" or value is not None}


def read_choice(package: str, value: Any) -> Any:
    """A bare name as a choice, its name checked; anything else is left for pydantic to refuse."""
    chosen = {"name": value} if isinstance(value, str) else value
    name = chosen.get("name") if isinstance(chosen, Mapping) else None
    known = discover.available(package)
    if isinstance(name, str) and ":" not in name and name not in known:
        raise ValueError(
            f"there is no {package.rstrip('s')} called {name!r}.{nearest(name, known)} Available: "
            f"{listing(known, most=40)}, or your own: './your_file.py:YourClass' or 'your_module:YourClass'"
        )
    return chosen


def located(name: str) -> str:
    """The name of code in a file with the file's absolute path; other names as they are."""
    return name if (path := discover.own_file(name)) is None else f"{path.resolve()}:{name.rpartition(':')[2]}"


def short_name(name: str) -> str:
    """A method's or model's name as a part of a folder's name: of code of one's own, the class or function.

    >>> short_name("./my_model.py:MyNet")
    'MyNet'
    """
    return name.rpartition(":")[2]


class TrainingConfig(Strict):
    """Optimization and model selection; one bag per step by default."""

    epochs: int = Field(default=50, ge=1)
    patience: int | None = Field(default=10, ge=1)
    """Stop after this many epochs without a better validation score; null: never."""
    optimizer: Literal["adam", "adamw", "radam"] = "adam"
    lr: float = Field(default=1e-4, gt=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    weight_decay: float = Field(default=1e-4, ge=0)
    batch: int = Field(default=1, ge=1)
    """Bags per optimizer step that go through the model together, which is faster for small bags."""
    accumulate: int = Field(default=1, ge=1)
    """Batches per optimizer step, one after the other; the gradients of all their bags are averaged."""
    clip_norm: float | None = Field(default=None, ge=0)
    """Largest gradient norm, 0: not clipped; null: the model's recipe."""
    clip_each_part: bool | None = None
    """Clip every part of a model on its own; null: the model's recipe."""
    schedule: Schedule | None = None
    """constant; step: times `step_factor` at half time; cosine to 0. null: the model's recipe."""
    step_factor: float = Field(default=0.2, gt=0, le=1)
    warmup_epochs: int = Field(default=0, ge=0)
    select: Selection = "ascc"
    """The validation metric that chooses the checkpoint, at the finest level; last: none, the last epoch's is taken."""
    average: float | None = Field(default=None, gt=0)
    """Validate and predict with weights averaged over about this many epochs; null: with those of the last step."""
    max_instances: int | None = Field(default=None, ge=1)
    """Most instances of a training bag, another random choice every epoch; null: all."""
    drop_instances: float | None = Field(default=None, ge=0, lt=1)
    """Share of every bag's instances that a training step does not see, other ones each time; null: none."""
    drop_attended: float | None = Field(default=None, ge=0, lt=1)
    """Share of every bag's most attended instances, of which a training step hides most; null: none."""
    checkpoint_minutes: float | None = Field(default=15.0, gt=0)
    """Also save within an epoch after this long; null: only after every epoch."""


class ComputeConfig(Strict):
    """Where it runs; none of this changes the result on a CPU, except the number of devices."""

    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = Field(default=1, ge=1)
    strategy: str = "auto"
    precision: str = "32-true"
    threads: int | None = Field(default=None, ge=1)
    workers: int = Field(default=0, ge=0)
    cache_mb: int = Field(default=1024, ge=0)
    loggers: tuple[Literal["csv", "tensorboard", "mlflow", "wandb"], ...] = ("csv",)


class RunConfig(Strict):
    """Everything that defines a run."""

    data: DataConfig
    classes: ClassFiles
    """A preset or a class file; several are orders of the same classes, and their mean M is trained with."""
    method: Annotated[Choice, BeforeValidator(partial(read_choice, "methods"))] = Choice(name="pams")
    model: Annotated[ModelChoice, BeforeValidator(partial(read_choice, "models"))] = ModelChoice(name="abmil")
    pairing: dict[str, Any] = Field(default_factory=dict)
    """How often and with whom bags are remixed; see `pams_mil.remix.pairing`."""
    training: TrainingConfig = TrainingConfig()
    compute: ComputeConfig = ComputeConfig()
    seed: int = 0

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, content: Any) -> Any:
        """Options of a method or a model alone are the default's."""
        if not isinstance(content, Mapping):
            return content
        full = dict(content)
        for key in ("method", "model"):
            if isinstance(full.get(key), Mapping):
                full[key] = {"name": cls.model_fields[key].default.name, **full[key]}
        return full

    def resolved(self) -> RunConfig:
        """The same config with the model's recipe filled in and absolute paths."""
        # What is set stays; the stored settings then do not depend on a table that another version may change.
        recipe = RECIPES.get(self.model.name, RECIPES[""])
        missing = {key: value for key, value in recipe.items() if getattr(self.training, key) is None}
        data = {
            key: value.resolve()
            for key in ("manifest", "splits", "clini")
            if (value := getattr(self.data, key)) is not None
        }
        # Said in full: a cross-validation reads the same features with a table of its own.
        data["features"] = features_of(self.data.manifest, self.data.features).resolve()
        files = self.classes
        classes = locate_classes(files) if isinstance(files, str) else tuple(map(locate_classes, files))
        init = None if self.model.init is None else self.model.init.resolve()
        method = {"name": located(self.method.name)}
        if isinstance(remix := self.method.options.get("remix"), str):
            method["remix"] = located(remix)
        return self.model_copy(
            update={
                "classes": classes,
                "method": self.method.model_copy(update=method),
                "model": self.model.model_copy(update={"init": init, "name": located(self.model.name)}),
                "training": self.training.model_copy(update=missing),
                "data": self.data.model_copy(update=data),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, as they go into `config.yaml`; of `data` only what differs from its defaults.

        >>> configure("m.csv", classes="bracs", data={"fold": 0}).to_json()["data"]
        {'manifest': 'm.csv', 'fold': 0}
        """
        return {**self.model_dump(mode="json"), "data": self.data.model_dump(mode="json", exclude_defaults=True)}


Config = TypeVar("Config", bound=BaseModel)


def configure(
    manifest: Path | str,
    *,
    classes: str | Path | Sequence[str | Path],
    method: str | Mapping[str, Any] = "pams",
    model: str | Mapping[str, Any] = "abmil",
    features: Path | str | None = None,
    seed: int = 0,
    data: Mapping[str, Any] | None = None,
    pairing: Mapping[str, Any] | None = None,
    compute: Mapping[str, Any] | None = None,
    **training: Any,
) -> RunConfig:
    """A config from keyword arguments; those not named here are settings of `training`.

    >>> configure("manifest.csv", classes="bracs", method={"name": "pams", "alpha": 2.0}, epochs=5).training.epochs
    5
    >>> configure("manifest.csv", classes="bracs", epoch=5)
    Traceback (most recent call last):
    pams_mil.errors.ConfigError: the settings: there is no setting 'training.epoch'. Did you mean 'epochs'? ...
    """
    content = {
        "data": {"manifest": manifest, "features": features, **(data or {})},
        "classes": classes,
        "method": method,
        "model": model,
        "pairing": dict(pairing or {}),
        "compute": dict(compute or {}),
        "training": training,
        "seed": seed,
    }
    return build(RunConfig, content)


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """A config file with `key=value` overrides, e.g. `training.lr=3e-4`, `lr=3e-4` or `method=ce`."""
    return build(RunConfig, with_overrides(read_yaml(path), overrides, kind=RunConfig), where=str(path))


def build(kind: type[Config], content: Mapping[str, Any], *, where: str = "the settings") -> Config:
    """A checked config from plain values; every complaint names the key and what it should be."""
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        complaints = [_complaint(kind, dict(item)) for item in error.errors(include_url=False)]
        raise ConfigError(f"{where}: " + " ".join(complaints)) from error


def with_overrides(
    content: Mapping[str, Any], overrides: Sequence[str], *, kind: type[BaseModel] | None = None
) -> dict[str, Any]:
    """Settings changed by `dotted.key=value`; values are read as YAML.

    With `kind`, the section may be left out where only one has the key: `epochs=5` is `training.epochs=5`; and paths
    and names are taken as they are typed: `features=/data/run #3`, `classes=no`. Only `null` means nothing.

    >>> with_overrides({"method": "pams"}, ["method.alpha=2", "seed=1"])
    {'method': {'name': 'pams', 'alpha': 2}, 'seed': 1}
    >>> with_overrides({}, ["epochs=5", "fold=0"], kind=RunConfig)
    {'training': {'epochs': 5}, 'data': {'fold': 0}}
    >>> with_overrides({}, ["features=/data/run #3", "classes=no", "splits=null"], kind=RunConfig)
    {'data': {'features': '/data/run #3', 'splits': None}, 'classes': 'no'}
    """
    changed: dict[str, Any] = dict(content)
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"{override!r} is not a setting; expected key=value, e.g. lr=3e-4.")
        place = key.strip() if kind is None else full_key(kind, key.strip())
        # Else `classes=no` would be False, and `#3` at the end of a path a comment.
        as_typed = kind is not None and _is_text(kind, place.split(".")) and text != "null" and text[:1] != "{"
        value = text if as_typed else parse_yaml(text, where=f"the value of {key!r}")
        changed = with_setting(changed, place, value)
    return changed


def _is_text(kind: type[BaseModel], keys: Sequence[str]) -> bool:
    """Whether a setting is a path or a name; `data`, `method` and `model` are short for the first one below them."""
    field = kind.model_fields.get(keys[0])
    if field is None:
        return keys == ["name"]
    inner = field.annotation
    if isinstance(inner, type) and issubclass(inner, BaseModel):
        return keys[0] in ("data", "method", "model") if len(keys) == 1 else _is_text(inner, keys[1:])
    return len(keys) == 1 and bool({str, Path} & {inner, *get_args(inner)}) and int not in get_args(inner)


def with_setting(content: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Settings with one dotted key set to a value, taken as it is.

    >>> with_setting({"data": "m.csv"}, "data.features", "/data/run #3")
    {'data': {'manifest': 'm.csv', 'features': '/data/run #3'}}
    """
    first, dot, rest = key.partition(".")
    if not dot:
        return {**content, key: value}
    below = content.get(first)
    # A short form is spelled out before something is set beside it.
    below = {("manifest" if first == "data" else "name"): below} if isinstance(below, (str, Path)) else below or {}
    if not isinstance(below, Mapping):
        raise ConfigError(f"{key} cannot be set: {first} is {below!r}; expected a mapping of settings, or nothing.")
    return {**content, first: with_setting(below, rest, value)}


def full_key(kind: type[BaseModel], key: str) -> str:
    """A key with the section that has it; one that no section has, or several, stays as it is."""
    first = key.split(".")[0]
    if first in kind.model_fields:
        return key
    # Only where one section alone has the key; an ambiguous one is left to be refused by its name.
    homes = [section for section in kind.model_fields if first in _fields(kind, [section])]
    return f"{homes[0]}.{key}" if len(homes) == 1 else key


def _complaint(kind: type[BaseModel], item: dict[str, Any]) -> str:
    key = ".".join(str(name) for name in item["loc"]) or "the file"
    if item["type"] == "extra_forbidden":
        known = _fields(kind, item["loc"][:-1])
        sections = {} if len(item["loc"]) > 1 else {name: _fields(kind, [name]) for name in known}
        homes = [f"{name}.{key}" for name, below in sections.items() if key in below]
        hint = nearest(str(item["loc"][-1]), [*known, *chain(*sections.values())])
        hint = f" Did you mean {listing(homes)}?" if homes else hint
        if not hint and len(item["loc"]) == 1 and "method" in known:
            hint = f" An option of the method or the model is written method.{key}=... or model.{key}=..."
        return f"there is no setting {key!r}.{hint} Known here: {listing(known, most=20)}."
    if item["type"] == "missing":
        return f"the setting {key!r} is missing."
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{key}: {message[:1].lower()}{message[1:]}, found {item['input']!r}."


def _fields(kind: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    for name in place:
        field = kind.model_fields.get(str(name))
        inner = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        kind = inner
    return list(kind.model_fields)
