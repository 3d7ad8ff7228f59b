"""Settings with every option written out: checked once, at the boundary, and passed on as they are."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pams_mil.engine.config.run_config import Choice, ModelChoice, RunConfig
from pams_mil.errors import ConfigError, refuse_unknown
from pams_mil.evaluate.decisions.reveal import Reveal
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.method import Method, create_method
from pams_mil.models.core.factory import AdaptedModel, model_kind
from pams_mil.models.core.hierarchical import sums_classes
from pams_mil.severity import boundary_costs


class CompleteConfig(RunConfig):
    """A `RunConfig` that was checked and completed; only `complete` makes one, and nothing completes it again."""


def complete(config: RunConfig, hierarchy: ClassHierarchy | None = None) -> CompleteConfig:
    """The config with absolute paths and every option of its method and model; unknown options are refused.

    `hierarchy` stands for `config.classes` where there is no file.

    >>> from pams_mil.engine.config.run_config import configure
    >>> settled = complete(configure("manifest.csv", classes="bracs"))
    >>> complete(settled) is settled
    True
    """
    if isinstance(config, CompleteConfig):
        return config
    config = config.resolved()
    method = make_method(config.method)
    options = {item.name: _plain(getattr(method, item.name)) for item in dataclasses.fields(method) if item.init}
    kind = model_kind(config.model.name)
    defaults = model_defaults(kind)
    refuse_unknown(f"The model {config.model.name!r}", config.model.options, list(defaults), error=ConfigError)
    _refuse_unfit(config, method, kind, hierarchy or ClassHierarchy.load(config.classes))
    model = ModelChoice(name=config.model.name, init=config.model.init, **{**defaults, **config.model.options})
    values = {name: getattr(config, name) for name in RunConfig.model_fields}
    values |= {"method": Choice(name=config.method.name, **options), "model": model}
    return CompleteConfig.model_construct(**values)


def make_method(choice: Choice) -> Method:
    """The method behind a name with its options."""
    return create_method(choice.name, **choice.options)


def model_defaults(kind: Any) -> dict[str, Any]:
    """The options of a model and their defaults, without those that the data and the method decide."""
    parameters = inspect.signature(kind).parameters.values()
    return {
        parameter.name: None if parameter.default is inspect.Parameter.empty else parameter.default
        for parameter in parameters
        if parameter.name not in ("in_features", "num_classes", "head", "heads", "ranks")
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def _refuse_unfit(config: RunConfig, method: Method, kind: Any, hierarchy: ClassHierarchy) -> None:
    """Refuse a method that needs other heads, logits or classes than there are, before any slide is read."""
    if hierarchy.findings == "several":
        method.findings_term(hierarchy)  # methods without a form for sets refuse
    if config.training.drop_attended and config.model.name in ("mean_pool", "linear"):
        raise ConfigError(f"training.drop_attended needs a model with attention, found {config.model.name!r}.")
    names = f"The method {config.method.name!r} does not fit the model {config.model.name!r}: it"
    if method.heads != "linear" and (sums_classes(kind, method.towers) or issubclass(kind, AdaptedModel)):
        raise ConfigError(
            f"{names} trains {method.heads} heads of every level on one vector per bag, and the model has a head of "
            "its own. Use a model with one vector per bag, such as 'abmil', or another method."
        )
    if not method.has_softmax and (sums_classes(kind, method.towers) or getattr(kind, "one_tower", False)):
        raise ConfigError(
            f"{names} reads outputs as answers of its own chain of questions, and here they are probabilities of "
            "classes. Use method 'ce' (on the chain of 'priority' it is the same loss), or a model such as 'abmil'."
        )
    if config.model.options.get("splits", 1) != 1 and not method.has_softmax:
        raise ConfigError(
            f"model.splits is {config.model.options['splits']}, but several looks at a bag are averaged as softmax "
            f"probabilities and the outputs of the method {config.method.name!r} are none. Use splits=1."
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def with_revealed_costs(config: RunConfig, file: Path | str) -> RunConfig:
    """The config with the loss's costs of missed urgency as `pams reveal` found that readers weigh it."""
    reveal, hierarchy = Reveal.read(file), ClassHierarchy.load(config.classes)
    if reveal.classes != hierarchy.digest:
        raise ConfigError(f"{file} was made with other classes than {config.classes!r}; reveal it with the same ones.")
    if config.method.name not in ("msce", "pams"):
        raise ConfigError(f"--kappa-from sets the costs of 'msce' or 'pams', found the method {config.method.name!r}.")
    kappas = {name: fit.kappa for name, fit in reveal.boundaries.items()}
    costs = boundary_costs(hierarchy, kappas, reveal.overall.kappa)
    return config.model_copy(update={"method": Choice(**{**config.method.model_dump(), "costs": costs})})
