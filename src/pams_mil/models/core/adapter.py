"""Anyone's `nn.Module` as a model: from a bag [n, d] (or [1, n, d]) to logits [c] or [1, c], and attention if it can.

    class MyNet(nn.Module):
        def __init__(self, in_features, num_classes): ...
        def forward(self, bag): return logits                      # or (logits, attention), or a dict with these keys

It runs bag by bag, one module per level that a method trains; a shared module serves coarser levels by sums of its
classes. What the network has beside logits is not known, so heads on its vectors (HAF, Chang) cannot be had.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pams_mil.errors import ConfigError, ModelInputError, first_line, listing
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head, Scored
from pams_mil.models.core.mil_model import Embedded, MILModel
from pams_mil.ops import at_least_float32
from pams_mil.parameters import require_counts

WIDTH_NAMES = (
    "in_features", "in_dim", "input_dim", "dim_in", "in_size", "input_size", "in_channels", "n_features",
    "num_features", "feature_dim", "feat_dim", "features", "d", "dim", "embed_dim",
)  # fmt: skip
"""Parameters of a constructor that mean the width of the features, the first that it has."""
CLASSES_NAMES = (
    "num_classes", "n_classes", "num_class", "n_class", "out_features", "out_dim", "output_dim", "dim_out",
    "out_size", "output_size", "n_out", "out", "classes", "c",
)  # fmt: skip
"""Parameters that mean the number of classes."""
_ATTENTION_FLAGS = ("return_attention", "return_att", "attention")
_ATTENTION_KEYS = ("attention", "att", "attn", "A", "attention_weights")


class AdaptedModel(MILModel):
    """A module that knows nothing of packed bags, run bag by bag; `adapt` makes one subclass per module."""

    own_head: ClassVar[bool] = True
    factory: ClassVar[Callable[..., nn.Module]]

    def __init__(self, *, in_features: int, num_classes: int, head: str = "linear", **options: Any) -> None:
        # Not MILModel's: its head would be weights that nothing trains.
        nn.Module.__init__(self)
        require_counts(in_features=in_features, num_classes=num_classes)
        name = _name(type(self).factory)
        if head != "linear":
            raise ConfigError(f"{name} gives logits, so there is no vector to put {head} heads on; use another method.")
        self.in_features, self.num_classes, self.embedding_features = in_features, num_classes, num_classes
        self.tier1_head = None
        parameters = inspect.signature(type(self).factory).parameters
        missing = [key for key, value in options.items() if value is None and _is_required(parameters.get(key))]
        if missing:
            raise ConfigError(f"{name} needs the option {listing(missing)}: set it with model.{missing[0]}=VALUE.")
        width, classes = _size_names(type(self).factory)
        module: Any = type(self).factory(**{width: in_features, classes: num_classes}, **options)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{name} must be or return a torch nn.Module, found {type(module).__name__}.")
        self.module = module
        self._adds_axis: bool | None = None

    @property
    def graph_refusal(self) -> str:
        """What a module of one's own does with other sizes of bags is not known."""
        return "the model is code of your own"

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Logits [b, c], which stand for the bags' vectors, and attention where the module gives it for all bags."""
        if self._adds_axis is None:
            self._adds_axis = self._finds_axis(batch.features)
        answers = [self._answer(bag, attention=attention, axis=self._adds_axis) for bag in batch.bags()]
        weights = [weight for _, weight in answers if weight is not None]
        complete = attention and len(weights) == len(answers)
        return Embedded(torch.stack([logits for logits, _ in answers]), torch.cat(weights) if complete else None)

    def score(self, embedded: Embedded) -> Scored:
        """The logits as they are."""
        return Scored(embedded.vectors, embedded.vectors, None)

    def _answer(self, bag: Tensor, *, attention: bool, axis: bool) -> tuple[Tensor, Tensor | None]:
        """Logits [c] and attention [n] of one bag."""
        flags = {name: True for name in _ATTENTION_FLAGS if name in inspect.signature(self.module.forward).parameters}
        answer = self.module(bag[None] if axis else bag, **(dict(list(flags.items())[:1]) if attention else {}))
        logits, weights = _parts(answer)
        if not isinstance(logits, Tensor) or logits.numel() != self.num_classes or logits.ndim > 2:
            shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ModelInputError(
                f"{_name(type(self).factory)} must return logits [{self.num_classes}] or [1, {self.num_classes}] for a "
                f"bag {list(bag.shape)}, alone, first of a tuple or under 'logits'; found {shape}."
            )
        return logits.reshape(-1), _shares(weights, len(bag)) if attention else None

    def _finds_axis(self, features: Tensor) -> bool:
        """Whether the module takes [1, n, d] rather than [n, d]: tried once, without a trace in it."""
        # As many rows as no other size has, so that no axis is taken for another.
        bag = features.new_zeros(self.num_classes + self.in_features + 1, self.in_features)
        errors = []
        for axis in (False, True):
            try:
                with _untouched(self.module):
                    self._answer(bag, attention=False, axis=axis)
                return axis
            except Exception as error:  # whatever someone's code raises of a shape that it does not take
                errors.append(f"{'[1, n, d]' if axis else '[n, d]'}: {first_line(error)}")
        raise ModelInputError(
            f"{_name(type(self).factory)} takes neither a bag [n, d] nor [1, n, d] with n = {len(bag)} and "
            f"d = {self.in_features}. Its answers: {'; '.join(errors)}"
        )


def adapt(kind: Any) -> type[MILModel]:
    """A model class of ours as it is; any other module, or function that returns one, as a model class.

    >>> class Mean(nn.Module):
    ...     def __init__(self, in_dim, n_classes):
    ...         super().__init__()
    ...         self.linear = nn.Linear(in_dim, n_classes)
    ...     def forward(self, bag):
    ...         return self.linear(bag.mean(0))
    >>> adapt(Mean)(in_features=4, num_classes=3)(torch.zeros(5, 4)).logits.shape
    torch.Size([1, 3])
    """
    if isinstance(kind, type) and issubclass(kind, MILModel):
        return kind
    if not callable(kind) or isinstance(kind, nn.Module):
        raise ConfigError(
            f"A model must be a class of torch modules or a function that returns one, found {type(kind).__name__}."
        )
    sizes = _size_names(kind)
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.name not in sizes
        and parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        # A default that no file of settings can hold stays the module's own.
        and (parameter.default is inspect.Parameter.empty or _is_plain(parameter.default))
    ]
    own_names = {parameter.name for parameter in own}
    fixed = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        for name in ("in_features", "num_classes")
        if name not in own_names
    ]
    head = [] if "head" in own_names else [inspect.Parameter("head", inspect.Parameter.KEYWORD_ONLY, default="linear")]
    members = {
        "factory": staticmethod(kind),
        "__signature__": inspect.Signature([*fixed, *own, *head]),
        "__doc__": kind.__doc__ or f"{_name(kind)}, run bag by bag.",
        "__module__": kind.__module__,
    }
    return type(_name(kind), (AdaptedModel,), members)


def _size_names(kind: Callable[..., Any]) -> tuple[str, str]:
    """What a constructor calls the width of the features and the number of classes."""
    parameters = inspect.signature(kind).parameters
    free = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    names = []
    for what, known in (("the width of the features", WIDTH_NAMES), ("the number of classes", CLASSES_NAMES)):
        name = next((name for name in known if name in parameters), known[0] if free else None)
        if name is None:
            raise ConfigError(
                f"{_name(kind)} has no parameter for {what}; it has {listing(parameters) or 'none'}. Call it "
                f"{known[0]!r}, or one of {listing(known[1:], most=20)}."
            )
        names.append(name)
    return names[0], names[1]


def _parts(answer: Any) -> tuple[Any, Any]:
    """Logits and attention, as far as an answer has them: alone, a tuple that starts with them, or a dict."""
    if isinstance(answer, Mapping):
        return answer.get("logits"), next((answer[key] for key in _ATTENTION_KEYS if key in answer), None)
    if not isinstance(answer, (tuple, list)) or not answer:
        return answer, None
    # MIL-Lab gives a dict of results and a dict of what is logged.
    if isinstance(answer[0], Mapping):
        merged = {key: value for one in reversed(answer) if isinstance(one, Mapping) for key, value in one.items()}
        return _parts(merged)
    return answer[0], answer[1] if len(answer) == 2 else None


def _shares(weights: Any, rows: int) -> Tensor | None:
    """Attention [n] that sums to 1: the mean over heads or classes; scores below 0 go through a softmax."""
    if not isinstance(weights, Tensor) or rows not in weights.shape:
        return None
    values = at_least_float32(weights.detach())
    position = next(axis for axis in reversed(range(values.ndim)) if values.shape[axis] == rows)
    table = values.movedim(position, -1).reshape(-1, rows)
    if bool((table < 0).any()):
        table = table.softmax(-1)
    mean = table.mean(0)
    total = mean.sum()
    return mean / total if bool(total > 0) else torch.full_like(mean, 1 / rows)


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Evaluation without gradients, whose modes and random numbers are as before afterwards."""
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module.eval()
            yield
    finally:
        for submodule, mode in modes:
            submodule.training = mode


def _is_required(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", type(kind).__name__))
