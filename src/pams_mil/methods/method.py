"""What a method is: towers, heads, a remix and an objective, held by a frozen dataclass of hyper-parameters.

A method stands in one place. Adding one touches nothing else: the command line, the config, docs/methods.md and the
conformance tests find it by the `DISCOVER` line of its file.

Towers: "per_level" trains one model per level, "shared" one model with a head per level, "finest" one model for
the finest level, whose probabilities are summed where a coarser level is reported.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from pams_mil import discover
from pams_mil.arrays import AnyArray
from pams_mil.errors import ConfigError, ParameterError, check_fields, listing, refuse_unknown, require_choice
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.findings_loss import FindingsTerm
from pams_mil.methods.objective import LevelLoss, LevelTerm, Objective, softmax_probabilities

Towers = Literal["finest", "shared", "per_level"]
Heads = Literal["linear", "normalized", "split"]


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Hyper-parameters of one training method.

    Attributes:
        towers: Which models are trained: one for the finest level, one shared by all levels, or one per level.
        remix: Name of the remix that makes training bags, or none.
        remix_options: Settings of the remix; those not given keep the paper's values.
    """

    towers: Towers = "per_level"
    remix: str | None = None
    remix_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    heads: ClassVar[Heads] = "linear"
    has_softmax: ClassVar[bool] = True
    allowed_towers: ClassVar[tuple[Towers, ...]] = ("finest", "shared", "per_level")
    paper_remix_options: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        require_choice("towers", self.towers, self.allowed_towers)
        check_fields(self)
        if self.remix is not None and not isinstance(self.remix, str):
            raise ParameterError(f"remix must be the name of a remix or none, found {self.remix!r}.")
        if self.remix is None and self.remix_options:
            raise ParameterError(f"remix_options need a remix, found {dict(self.remix_options)!r} and remix none.")
        if self.remix is not None and self.remix == type(self).remix:
            object.__setattr__(self, "remix_options", {**self.paper_remix_options, **self.remix_options})
        self.check()

    def check(self) -> None:  # noqa: B027  some methods have nothing to refuse
        """Refuse hyper-parameters that their annotations allow and that still cannot be meant."""

    @abstractmethod
    def objective(self, hierarchy: ClassHierarchy) -> Objective:
        """The terms to minimize for this hierarchy, a module that owns its matrices and any state."""

    def findings_term(self, hierarchy: ClassHierarchy) -> FindingsTerm:
        """The loss of several findings per slide, for hierarchies that have them."""
        raise ParameterError(
            f"The method {type(self).__name__} has no form for several findings per slide. Use 'pams', 'msce' or 'ce', "
            "or a class file with 'findings: one'."
        )

    def trained_levels(self, hierarchy: ClassHierarchy) -> range:
        """The levels that have an output, coarsest first."""
        return range(hierarchy.num_levels - 1 if self.towers == "finest" else 0, hierarchy.num_levels)


@dataclass(frozen=True, kw_only=True)
class LevelMethod(Method):
    """A method with one loss function on logits, applied at every trained level and summed.

    The function takes logits, classes, its `matrices`, and those fields of the method that it has parameters for.
    """

    function: ClassVar[Callable[..., Tensor]]

    @property
    def term(self) -> str:
        """The name of the loss in logs."""
        return type(self).function.__name__.removesuffix("_loss")

    def matrices(self, hierarchy: ClassHierarchy, level: int) -> dict[str, AnyArray]:
        """What the function is given of the classes of a level."""
        return {}

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level with its matrices."""
        known = inspect.signature(type(self).function).parameters
        options = {item.name: getattr(self, item.name) for item in fields(self) if item.name in known}
        matrices = self.matrices(hierarchy, level)
        return LevelLoss(type(self).function, num_classes=hierarchy.num_classes(level), matrices=matrices, **options)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Class probabilities [b, c] that belong to this loss."""
        return softmax_probabilities(logits)

    def objective(self, hierarchy: ClassHierarchy) -> Objective:
        """One term: the sum of the level losses."""
        levels = self.trained_levels(hierarchy)
        losses = {position: self.level_loss(hierarchy, level) for position, level in enumerate(levels)}
        return Objective(
            {self.term: (1.0, LevelTerm(losses))}, num_outputs=len(levels), probabilities=self.probabilities
        )


@dataclass(frozen=True, kw_only=True)
class FinestMethod(LevelMethod):
    """A level method whose paper trains the finest level only; other towers apply it at every level."""

    towers: Towers = "finest"


def create_method(name: str, **options: Any) -> Method:
    """The method behind a name of this package, './your_file.py:your_loss' or 'your_module:YourMethod'.

    >>> create_method("pams", alpha=1.8).remix
    'sfr'
    >>> create_method("pams", alfa=1.8)
    Traceback (most recent call last):
    pams_mil.errors.ConfigError: The method 'pams' has no option 'alfa'. Did you mean 'alpha'? ...
    """
    kind = method_kind(name)
    known = [item.name for item in fields(kind) if item.init]
    refuse_unknown(f"The method {name!r}", options, known, error=ConfigError)
    return kind(**options)


@dataclass(frozen=True, kw_only=True)
class FunctionMethod(LevelMethod):
    """A plain loss function of logits [b, c] and classes [b], at every trained level."""

    @property
    def term(self) -> str:
        """The same for all functions."""
        return "loss"

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The function with its options; `hierarchy` and `level` are passed where it has parameters of these names."""
        function = type(self).function
        options = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _OWN_FIELDS}
        about = {"hierarchy": hierarchy, "level": hierarchy.level(level)}
        options |= {key: value for key, value in about.items() if key in inspect.signature(function).parameters}

        def per_bag(logits: Tensor, target: Tensor) -> Tensor:
            values: Any = function(logits, target, **options)
            if isinstance(values, Tensor) and not values.ndim and len(target) > 1:
                # A mean over the batch cannot be weighed bag by bag.
                rows = [slice(row, row + 1) for row in range(len(target))]
                values = torch.stack([function(logits[row], target[row], **options) for row in rows])
            if not isinstance(values, Tensor) or values.numel() != len(target):
                kind = f"shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
                raise ParameterError(f"The loss must return a tensor [{len(target)}] or one number, found {kind}.")
            return values.reshape(-1)

        return LevelLoss(per_bag, num_classes=hierarchy.num_classes(level))


_OWN_FIELDS = {item.name for item in fields(Method)}


def method_kind(name: str) -> type[Method]:
    """The class of a method, by its name; a function of logits and target as one, its further parameters as options."""
    kind = discover.load("methods", name)
    if isinstance(kind, type) and issubclass(kind, Method):
        return kind
    if not inspect.isfunction(kind) or len(inspect.signature(kind).parameters) < 2:
        raise ConfigError(
            f"The method {name!r} must be a function of logits [b, c] and classes [b] that returns losses [b], or a "
            f"subclass of pams_mil.methods.Method; found {type(kind).__name__}."
        )
    further = list(inspect.signature(kind).parameters.values())[2:]
    options = [parameter for parameter in further if parameter.name not in ("hierarchy", "level")]
    required = [parameter.name for parameter in options if parameter.default is inspect.Parameter.empty]
    if required or _OWN_FIELDS & {parameter.name for parameter in options}:
        raise ConfigError(
            f"Options of the loss {name!r} need defaults and names other than {listing(sorted(_OWN_FIELDS))}; found "
            f"{listing([parameter.name for parameter in options])}."
        )
    members = [(parameter.name, Any, field(default=parameter.default)) for parameter in options]
    method: Any = make_dataclass(kind.__name__, members, bases=(FunctionMethod,), frozen=True, kw_only=True)
    method.function = staticmethod(kind)
    return cast("type[Method]", method)


_REDUCTIONS = ("mean", "sum", "none")


class HierarchyLoss(nn.Module):
    """The loss of a method as a PyTorch module, for training loops without bags: `MSCELoss(hierarchy)(logits, target)`.

    Args:
        hierarchy: Names, order and tree of the classes.
        level: 0 is the coarsest level, -1 the finest.
        reduction: "mean" or "sum" over samples, or "none".
        **parameters: Hyper-parameters of the method.
    """

    method: ClassVar[type[LevelMethod]]

    def __init__(self, hierarchy: ClassHierarchy, level: int = -1, reduction: str = "mean", **parameters: Any) -> None:
        super().__init__()
        require_choice("reduction", reduction, _REDUCTIONS)
        known = [field.name for field in fields(self.method) if field.name not in _OWN_FIELDS]
        own = ["level", "reduction", *known]
        refuse_unknown(type(self).__name__, parameters, own, kind="parameter", error=ParameterError)
        self.reduction = reduction
        self.loss: LevelLoss = self.method(**parameters).level_loss(hierarchy, hierarchy.level(level))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Logits [b, c] and class indices [b] to a scalar, or [b] without reduction."""
        values: Tensor = self.loss(logits, target)
        if self.reduction == "none":
            return values
        return values.mean() if self.reduction == "mean" else values.sum()

    @classmethod
    def of(cls, method: type[LevelMethod], name: str | None = None) -> type[HierarchyLoss]:
        """The class of the loss of a method.

        >>> from pams_mil.methods import MSCELoss
        >>> loss = MSCELoss(ClassHierarchy.flat(["benign", "atypical", "malignant"]))
        >>> loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([2]))
        tensor(6.1249)
        """
        text = f"The loss of the method `{method.__name__}`; arguments as `HierarchyLoss`."
        members = {"method": method, "__doc__": text, "__module__": method.__module__}
        return type(name or f"{method.__name__}Loss", (cls,), members)
