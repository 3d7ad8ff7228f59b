"""Anyone's `nn.Module` as a model: from a bag [n, d] (or [1, n, d]) to logits [c] or [1, c], and attention if it can.

    class MyNet(nn.Module):
        def __init__(self, in_features, num_classes): ...
        def forward(self, bag): return logits                      # or (logits, attention), or a dict with these keys

It runs bag by bag, one module per level that a method trains; a shared module serves coarser levels by sums of its
classes. A constructor that is not told the number of classes makes modules of one logit, as torchmil's are: one module
per class then gives the logit of its class, and of two classes the more urgent one has a module. What the network has
beside logits is not known, so heads on its vectors (HAF, Chang) cannot be had.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pams_mil import discover
from pams_mil.errors import ConfigError, ModelInputError, first_line, listing, refuse_unknown, require_counts
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head, Scored
from pams_mil.models.core.mil_model import Embedded, MILModel
from pams_mil.ops import at_least_float32

WIDTH_NAMES = (
    "in_features", "in_dim", "input_dim", "dim_in", "in_size", "input_size", "in_channels", "n_features",
    "num_features", "feature_dim", "feat_dim", "features", "d", "dim", "embed_dim", "in_shape",
)  # fmt: skip
"""Parameters of a constructor that mean the width of the features, the first that it has."""
CLASSES_NAMES = (
    "num_classes", "n_classes", "num_class", "n_class", "out_features", "out_dim", "output_dim", "dim_out",
    "out_size", "output_size", "n_out", "out", "classes", "c",
)  # fmt: skip
"""Parameters that mean the number of classes."""
_SHAPE_NAME = "in_shape"
"""torchmil's name of the width, a tuple there."""
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
        width, classes = _size_names(type(self).factory)
        own = {key: one for key, one in inspect.signature(type(self).factory).parameters.items() if _is_required(one)}
        missing = [key for key in own if key not in (width, classes) and options.get(key) is None]
        if missing:
            raise ConfigError(f"{name} needs the option {listing(missing)}: set it with model.{missing[0]}=VALUE.")
        sizes: dict[str, Any] = {width: (in_features,) if width == _SHAPE_NAME else in_features}
        sizes |= {} if classes is None else {classes: num_classes}
        # One logit says all of two classes.
        copies = 1 if classes is not None or num_classes <= 2 else num_classes
        modules: list[Any] = [type(self).factory(**sizes, **options) for _ in range(copies)]
        for module in modules:
            if not isinstance(module, nn.Module):
                raise ConfigError(f"{name} must be or return a torch nn.Module, found {type(module).__name__}.")
        self.module: nn.Module = modules[0] if classes is not None else nn.ModuleList(modules)
        self._logits_each = num_classes if classes is not None else 1
        self._adds_axis: bool | None = None

    def trace(self, features: Tensor, groups: Tensor | None = None) -> Embedded:
        """The logits of one bag; whether the graph holds for every n is found out by comparing, as of any model."""
        axis = self._finds_axis(features) if self._adds_axis is None else self._adds_axis
        return Embedded(self._answer(features, attention=False, axis=axis)[0][None], None)

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
        if not isinstance(self.module, nn.ModuleList):
            return self._answer_of(self.module, bag, attention=attention, axis=axis)
        answers = [self._answer_of(module, bag, attention=attention, axis=axis) for module in self.module]
        scores = torch.cat([logit for logit, _ in answers])
        # Softmax over (0, z) is the sigmoid of z.
        logits = torch.cat([torch.zeros_like(scores), scores]) if self.num_classes == 2 else scores
        weights = [weight for _, weight in answers if weight is not None]
        return logits, torch.stack(weights).mean(0) if len(weights) == len(answers) else None

    def _answer_of(
        self, module: nn.Module, bag: Tensor, *, attention: bool, axis: bool
    ) -> tuple[Tensor, Tensor | None]:
        """What one module answers: its logits, and attention [n]."""
        known = inspect.signature(module.forward).parameters
        flag = next((name for name in _ATTENTION_FLAGS if name in known), None) if attention else None
        answer = module(bag[None] if axis else bag, **({} if flag is None else {flag: True}))
        logits, weights = _parts(answer)
        # torchmil's and MIL-Lab's are scores, also where all of them happen to be above 0.
        raw = flag == "return_att" or (isinstance(answer, tuple) and isinstance(answer[0], Mapping))
        count = self._logits_each
        if not isinstance(logits, Tensor) or logits.numel() != count or logits.ndim > 2:
            shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            why = "" if self.num_classes == count else (
                f" Its constructor has no parameter for the number of classes ({CLASSES_NAMES[0]!r}, ...), so one "
                "logit is expected of it."
            )  # fmt: skip
            raise ModelInputError(
                f"{_name(type(self).factory)} must return logits [{count}] or [1, {count}] for a bag "
                f"{list(bag.shape)}, alone, first of a tuple or under 'logits'; found {shape}.{why}"
            )
        return logits.reshape(-1), _shares(weights, len(bag), raw=raw) if attention else None

    def _finds_axis(self, features: Tensor) -> bool:
        """Whether the module takes [1, n, d] rather than [n, d]: tried once, without a trace in it."""
        # As many rows as no other size has, so that no axis is taken for another.
        bag = features.new_zeros(self.num_classes + self.in_features + 1, self.in_features)
        errors = []
        for axis in (False, True):
            try:
                with untouched(self.module):
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


def _size_names(kind: Callable[..., Any]) -> tuple[str, str | None]:
    """What a constructor calls the width and, unless its modules have one logit, the number of classes."""
    parameters = inspect.signature(kind).parameters
    free = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    width, classes = (
        next((name for name in known if name in parameters), known[0] if free else None)
        for known in (WIDTH_NAMES, CLASSES_NAMES)
    )
    if width is None:
        raise ConfigError(
            f"{_name(kind)} has no parameter for the width of the features; it has {listing(parameters) or 'none'}. "
            f"Call it {WIDTH_NAMES[0]!r}, or one of {listing(WIDTH_NAMES[1:], most=20)}."
        )
    return width, classes


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


def _shares(weights: Any, rows: int, *, raw: bool = False) -> Tensor | None:
    """Attention [n] that sums to 1: the mean over heads or classes; scores go through a softmax.

    Scores are what has a value below 0, and with `raw` whatever does not sum to 1.
    """
    if not isinstance(weights, Tensor) or rows not in weights.shape:
        return None
    values = at_least_float32(weights.detach())
    position = next(axis for axis in reversed(range(values.ndim)) if values.shape[axis] == rows)
    table = values.movedim(position, -1).reshape(-1, rows)
    summed = bool(torch.isclose(table.sum(-1), table.new_ones(()), atol=1e-3).all())
    if bool((table < 0).any()) or (raw and not summed):
        table = table.softmax(-1)
    mean = table.mean(0)
    total = mean.sum()
    return mean / total if bool(total > 0) else torch.full_like(mean, 1 / rows)


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Evaluation without gradients, whose modes and random numbers are as before afterwards."""
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module.eval()
            yield
    finally:
        for submodule, mode in modes:
            submodule.training = mode


def _is_required(parameter: inspect.Parameter) -> bool:
    named = parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return named and parameter.default is inspect.Parameter.empty


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", type(kind).__name__))


def create_model(name: str | Callable[..., Any], *, in_features: int, num_classes: int, **options: Any) -> MILModel:
    """The model behind a file name of this package, './your_file.py:YourNet', 'your_module:YourNet', or a class.

    A class that is no `MILModel` is any torch module from a bag [n, d] to logits; see docs/bring-your-own.md.

    >>> create_model("abmil", in_features=384, num_classes=7).embedding_features
    512
    >>> create_model("abmil", in_features=384, num_classes=7, gate=False)
    Traceback (most recent call last):
    pams_mil.errors.ConfigError: The model 'abmil' has no option 'gate'. Did you mean 'gated'? ...
    """
    kind = model_kind(name)
    known = model_options(kind)
    if known is not None:
        what = name if isinstance(name, str) else kind.__name__
        refuse_unknown(f"The model {what!r}", options, known, error=ConfigError)
    make: Callable[..., MILModel] = kind
    return make(in_features=in_features, num_classes=num_classes, **options)


def model_kind(name: str | Callable[..., Any]) -> type[MILModel]:
    """The model class behind a name; a module that is not one of ours is adapted."""
    return adapt(discover.load("models", name) if isinstance(name, str) else name)


def model_options(kind: Any) -> tuple[str, ...] | None:
    """The option names of a model class; None when it takes any."""
    parameters = inspect.signature(kind).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return tuple(name for name in parameters if name not in ("in_features", "num_classes"))
