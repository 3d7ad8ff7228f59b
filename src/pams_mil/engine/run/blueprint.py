"""What a trained model is made of, as plain values: enough to build it again from a checkpoint alone."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pams_mil import discover
from pams_mil.engine.config.run_config import Choice, ModelChoice, RunConfig
from pams_mil.engine.training.learner import Learner
from pams_mil.errors import CheckpointError, ConfigError, HierarchyError
from pams_mil.hierarchy import ClassHierarchy, hierarchy_from_json, hierarchy_to_json
from pams_mil.methods.method import Method
from pams_mil.methods.method_by_name import create_method
from pams_mil.models.core.hierarchical import HierarchicalModel, sums_classes
from pams_mil.parameters import refuse_unknown

MOST_OF_AN_OPTION = 1 << 16
"""Largest whole number that an option of a stored model may have: no width, count of blocks or of splits is larger."""


@dataclass(frozen=True)
class Blueprint:
    """Method, model, classes and features of a learner.

    Attributes:
        method: `name` and all options.
        model: `name` and all options.
        hierarchy: The class tree.
        in_features: Feature width d.
        encoder: How the features were made, as far as the files said.
    """

    method: dict[str, Any]
    model: dict[str, Any]
    hierarchy: ClassHierarchy
    in_features: int
    encoder: dict[str, Any]

    @classmethod
    def of(
        cls, config: RunConfig, hierarchy: ClassHierarchy, in_features: int, encoder: Mapping[str, Any]
    ) -> Blueprint:
        """The blueprint of a run whose options are complete."""
        return cls(
            method={"name": config.method.name, **config.method.options},
            model={"name": config.model.name, **config.model.options},
            hierarchy=hierarchy,
            in_features=in_features,
            encoder=dict(encoder),
        )

    @classmethod
    def from_json(cls, content: Any) -> Blueprint:
        """A blueprint from a checkpoint's state."""
        try:
            return cls(**{**content, "hierarchy": hierarchy_from_json(content["hierarchy"])})
        except HierarchyError as error:
            raise CheckpointError(f"The checkpoint does not describe its classes as expected: {error}") from error
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"The checkpoint does not describe its model as expected: {error}.") from error

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        parts = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {**parts, "hierarchy": hierarchy_to_json(self.hierarchy)}

    def build(self, *, trusted: bool = False) -> Learner:
        """The untrained learner.

        Args:
            trusted: Also import methods and models from modules that the blueprint names. A checkpoint of
                someone else could name any module, so that takes an explicit yes.
        """
        self._refuse_foreign_code(trusted=trusted)
        hierarchy, method = self.hierarchy, self.recipe
        return Learner(self._model(), method.objective(hierarchy), hierarchy, method.trained_levels(hierarchy))

    @cached_property
    def recipe(self) -> Method:
        """The method itself: towers, heads, remix and objective."""
        if not isinstance(self.method.get("name"), str):
            raise CheckpointError("The checkpoint does not name its method.")
        return create_method(**self.method)

    def refuse_other_shapes(self, tensors: Mapping[str, Tensor], *, trusted: bool = False) -> None:
        """Refuse weights that the described model does not have, before memory is claimed on a file's word.

        The model is laid out without storage, so a description with sizes in the billions costs nothing.
        """
        self._refuse_foreign_code(trusted=trusted)
        # Also without storage, every block of a model is an object: billions of them would take all memory and hours.
        large = {
            key: value for key, value in self.model.items() if isinstance(value, int) and value > MOST_OF_AN_OPTION
        }
        if large:
            raise CheckpointError(f"The checkpoint describes a model of impossible size: {large}.")
        try:
            # Shapes without storage, by the code that builds the model, so that no table of shapes can disagree with
            # it.
            with torch.device("meta"):
                shapes = {name: one.shape for name, one in self._model().state_dict().items()}
        except (RuntimeError, TypeError, KeyError, OverflowError) as error:
            raise CheckpointError(f"The checkpoint describes a model that cannot be built: {error}.") from error
        odd = [
            name
            for name in sorted(set(shapes) | set(tensors))
            if name not in shapes or name not in tensors or shapes[name] != tensors[name].shape
        ]
        if odd:
            said = {name: list(shapes[name]) if name in shapes else "none" for name in odd[:3]}
            found = {name: list(tensors[name].shape) if name in tensors else "none" for name in odd[:3]}
            raise CheckpointError(
                f"The checkpoint does not fit the model that it describes: expected {said}, found {found}."
            )

    def _model(self) -> HierarchicalModel:
        hierarchy, method = self.hierarchy, self.recipe
        return HierarchicalModel(
            self.model["name"],
            in_features=self.in_features,
            num_classes=[hierarchy.num_classes(level) for level in range(hierarchy.num_levels)],
            towers=method.towers,
            heads=method.heads,
            hierarchy=hierarchy,
            **{key: value for key, value in self.model.items() if key != "name"},
        )

    def _refuse_foreign_code(self, *, trusted: bool) -> None:
        for part in (self.method, self.model):
            if ":" in str(part.get("name")) and not trusted:
                raise CheckpointError(
                    f"The checkpoint names code outside of PAMS, {part['name']!r}, which would be imported and run. "
                    "If you know where the checkpoint comes from, allow it with --trust-code (trusted=True)."
                )


def complete(config: RunConfig) -> RunConfig:
    """The config with every option of its method and model written out; unknown ones are refused."""
    method = make_method(config.method)
    options = {item.name: _plain(getattr(method, item.name)) for item in dataclasses.fields(method) if item.init}
    kind = discover.load("models", config.model.name)
    # Left out are those that the data and the method decide.
    defaults = option_defaults(kind, without=("in_features", "num_classes", "head", "heads", "ranks"))
    refuse_unknown(f"The model {config.model.name!r}", config.model.options, list(defaults), error=ConfigError)
    _refuse_unfit(config, method, kind)
    if config.model.options.get("splits", 1) != 1 and not method.has_softmax:
        raise ConfigError(
            f"model.splits is {config.model.options['splits']}, but several looks at a bag are averaged as softmax "
            f"probabilities and the outputs of the method {config.method.name!r} are none. Use splits=1."
        )
    return config.model_copy(
        update={
            "method": Choice(name=config.method.name, **options),
            "model": ModelChoice(
                name=config.model.name, init=config.model.init, **{**defaults, **config.model.options}
            ),
        }
    )


def _refuse_unfit(config: RunConfig, method: Method, kind: Any) -> None:
    """Refuse a method that needs other heads or logits than the model has, before anything is read."""
    names = f"The method {config.method.name!r} does not fit the model {config.model.name!r}: it"
    if sums_classes(kind, method.towers) and method.heads != "linear":
        raise ConfigError(
            f"{names} trains {method.heads} heads of every level on one vector per bag, and the model has a head of "
            "its own. Use a model with one vector per bag, such as 'abmil', or another method."
        )
    if not method.has_softmax and (sums_classes(kind, method.towers) or getattr(kind, "one_tower", False)):
        raise ConfigError(
            f"{names} reads outputs as answers of its own chain of questions, and here they are probabilities of "
            "classes. Use method 'ce' (on the chain of 'priority' it is the same loss), or a model such as 'abmil'."
        )


def make_method(choice: Choice) -> Method:
    """The method behind a name with its options."""
    return create_method(choice.name, **choice.options)


def option_defaults(kind: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The options of a class and their defaults."""
    parameters = inspect.signature(kind).parameters.values()
    return {
        parameter.name: None if parameter.default is inspect.Parameter.empty else parameter.default
        for parameter in parameters
        if parameter.name not in without and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
