"""Anyone's `nn.Module` as a model: from a bag [n, d] (or [1, n, d]) to logits [c] or [1, c], and attention if it can.

    class MyNet(nn.Module):
        def __init__(self, in_features, num_classes): ...
        def forward(self, bag): return logits                      # or (logits, attention), or a dict with these keys

It runs bag by bag, one module per level that a method trains; a shared module serves coarser levels by sums of its
classes. A constructor that is not told the number of classes makes modules of one logit, as torchmil's are: one module
per class then gives the logit of its class, and of two classes the more urgent one has a module. What the network has
beside logits is not known, so heads on its vectors (HAF, Chang) cannot be had.

A forward that fails without a label, as of models with a loss of their own, is told one: any class for its logits,
which must not change with it, and in training, in a second pass, the true class for what it adds to the loss.
"""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, NamedTuple, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from pams_mil import discover, seeding
from pams_mil.errors import ConfigError, ModelInputError, PamsError, check_values, first_line, listing, refuse_unknown
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head, Scored
from pams_mil.models.core.inputs import is_out_of_memory
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
_SIZES = ("in_features", "num_classes")
_SHAPE_NAME = "in_shape"
"""torchmil's name of the width, a tuple there."""
_ATTENTION_FLAGS = ("return_attention", "return_att", "attention")
_ATTENTION_KEYS = ("attention", "att", "attn", "A", "attention_weights")
_LABEL_NAMES = ("label", "labels", "target", "targets", "y")
_LOSS_NAMES = ("loss_fn", "criterion", "loss_func", "loss")


class _Way(NamedTuple):
    """How a module wants to be called: with an axis of bags, and told a class."""

    axis: bool
    labeled: bool


class _Answer(NamedTuple):
    """Of one bag: logits [c], attention [n] that sums to 1, and what the module calls its loss."""

    logits: Tensor
    attention: Tensor | None
    loss: Any


class AdaptedModel(MILModel):
    """A module that knows nothing of packed bags, run bag by bag; `adapt` makes one subclass per module."""

    own_head: ClassVar[bool] = True
    factory: ClassVar[Callable[..., nn.Module]]

    def __init__(self, *, in_features: int, num_classes: int, head: str = "linear", **options: Any) -> None:
        # Not MILModel's: its head would be weights that nothing trains.
        nn.Module.__init__(self)
        name = _name(type(self).factory)
        if head != "linear":
            raise ConfigError(f"{name} gives logits, so there is no vector to put {head} heads on; use another method.")
        self.in_features, self.num_classes = in_features, num_classes
        self.embedding_features = self.vector_features = num_classes
        self.tier1_head = None
        width, classes = _size_names(type(self).factory)
        needed = [key for key, one in inspect.signature(type(self)).parameters.items() if one.default is one.empty]
        missing = [key for key in needed if key not in _SIZES and options.get(key) is None]
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
        # Now rather than with the first bag: a trial that fails while a graph is traced ends the process. Where a model
        # is only laid out, without storage, nothing can be tried.
        self._way = _Way(False, False) if torch.empty(0).is_meta else self._find_way()

    def trace(self, features: Tensor, groups: Tensor | None = None) -> Embedded:
        """The logits of one bag; whether the graph holds for every n is found out by comparing, as of any model."""
        return Embedded(self._answer(features, self._way).logits[None], None)

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Logits [b, c], which stand for the bags' vectors, and attention where the module gives it for all bags."""
        answers = self._answers(batch, attention=attention)
        weights = [answer.attention for answer in answers if answer.attention is not None]
        complete = attention and len(weights) == len(answers)
        return Embedded(
            torch.stack([answer.logits for answer in answers]),
            torch.cat(weights) if complete else None,
            auxiliary=partial(self._own_loss, batch) if self.training and self._way.labeled else None,
        )

    def score(self, embedded: Embedded) -> Scored:
        """The logits as they are."""
        return Scored(embedded.vectors, embedded.vectors, None)

    def _own_loss(self, batch: BagBatch, targets: Tensor) -> dict[str, Tensor]:
        """What the module adds to a loss of 0 of its logits, in a pass that is told the true classes."""
        losses = [answer.loss for answer in self._answers(batch, labels=targets.tolist())]
        known = [at_least_float32(loss).mean() for loss in losses if isinstance(loss, Tensor)]
        return {"model": torch.stack(known)} if len(known) == len(losses) else {}

    def _answers(self, batch: BagBatch, *, attention: bool = False, labels: Sequence[int] = ()) -> list[_Answer]:
        """What the module says of every bag, its random numbers fixed by the seed or, in evaluation, the slide id."""
        answers = []
        for index, bag in enumerate(batch.bags()):
            key = batch.key(index)
            seed = batch.seeds[index] if self.training and batch.seeds else seeding.derive(0, key)
            try:
                with _drawing(seed, torch_too=not self.training):
                    label = labels[index] if labels else 0
                    answers.append(self._answer(bag, self._way, attention=attention, label=label))
            except Exception as error:  # whatever someone's code raises of a bag that it does not take
                if isinstance(error, PamsError) or is_out_of_memory(error):
                    raise
                frames = traceback.extract_tb(error.__traceback__)
                place = [one for one in frames if not one.filename.startswith(str(Path(torch.__file__).parent))][-1]
                raise ModelInputError(
                    f"{_name(type(self).factory)} fails on {f'slide {key!r}' if key else f'bag {index}'}, "
                    f"{list(bag.shape)}: {first_line(error)} ({Path(place.filename).name}, line {place.lineno})."
                ) from error
        return answers

    def _answer(self, bag: Tensor, way: _Way, *, attention: bool = False, label: int = 0) -> _Answer:
        """Logits [c] and attention [n] of one bag."""
        modules = self.module if isinstance(self.module, nn.ModuleList) else [self.module]
        answers = [self._answer_of(module, bag, way, attention, label) for module in modules]
        logits = torch.cat([answer.logits for answer in answers])
        if len(logits) < self.num_classes:
            # One logit of two classes: softmax over (0, z) is the sigmoid of z.
            logits = torch.cat([torch.zeros_like(logits), logits])
        weights = [answer.attention for answer in answers if answer.attention is not None]
        mean = torch.stack(weights).mean(0) if len(weights) == len(answers) else None
        return _Answer(logits, mean, answers[0].loss)

    def _answer_of(self, module: nn.Module, bag: Tensor, way: _Way, attention: bool, label: int) -> _Answer:
        """What one module answers: its logits, attention [n] if asked for, and its loss if it is told a label."""
        flag = _named(module, _ATTENTION_FLAGS) if attention else None
        extra: dict[str, Any] = {} if flag is None else {flag: True}
        if way.labeled:
            target = torch.tensor([label], device=bag.device)
            pairs = ((_named(module, _LABEL_NAMES), target), (_named(module, _LOSS_NAMES), _no_loss))
            extra |= {name: value for name, value in pairs if name is not None}
        answer = module(bag[None] if way.axis else bag, **extra)
        logits, weights, loss = _parts(answer)
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
        return _Answer(logits.reshape(-1), _shares(weights, len(bag), raw=raw) if attention else None, loss)

    def _find_way(self) -> _Way:
        """How the module is called, without a trace in it: [n, d] or [1, n, d], told a label only if it must be."""
        # As many rows as no other size has, so that no axis is taken for another.
        rows = self.num_classes + self.in_features + 1
        bag = torch.rand(rows, self.in_features, generator=seeding.generator(0), device="cpu").to(torch.empty(0))
        takes_label = not isinstance(self.module, nn.ModuleList) and _named(self.module, _LABEL_NAMES) is not None
        errors = []
        for way in (_Way(axis, labeled) for labeled in (False, True)[: 1 + takes_label] for axis in (False, True)):
            try:
                answers = [self._tried(bag, way, label) for label in (0, self.num_classes - 1)[: 1 + way.labeled]]
            except Exception as error:  # whatever someone's code raises of a shape that it does not take
                shape = "[1, n, d]" if way.axis else "[n, d]"
                errors.append(f"{shape}{' and a label' if way.labeled else ''}: {first_line(error)}")
                continue
            if not torch.equal(answers[0], answers[-1]):
                raise ModelInputError(
                    f"The logits of {_name(type(self).factory)} change with the label that it is told, so they are no "
                    "prediction. Its forward must use the label for the loss alone."
                )
            return way
        raise ModelInputError(
            f"{_name(type(self).factory)} takes neither a bag [n, d] nor [1, n, d] with n = {rows} and "
            f"d = {self.in_features}. Its answers: {'; '.join(errors)}"
        )

    def _tried(self, bag: Tensor, way: _Way, label: int) -> Tensor:
        with untouched(self.module), _drawing(0, torch_too=True):
            return self._answer(bag, way, label=label).logits


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
        and (parameter.default is parameter.empty or isinstance(parameter.default, (bool, int, float, str, NoneType)))
    ]
    ours = {"head": inspect.Parameter("head", inspect.Parameter.KEYWORD_ONLY, default="linear")}
    ours |= {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in _SIZES}
    members = {
        "factory": staticmethod(kind),
        "__signature__": inspect.Signature([*(ours | {parameter.name: parameter for parameter in own}).values()]),
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


def _parts(answer: Any) -> tuple[Any, Any, Any]:
    """Logits, attention and loss, as far as an answer has them: alone, a tuple that starts with them, or a dict."""
    if isinstance(answer, Mapping):
        weights = next((answer[key] for key in _ATTENTION_KEYS if key in answer), None)
        return answer.get("logits"), weights, answer.get("loss")
    if not isinstance(answer, (tuple, list)) or not answer:
        return answer, None, None
    # MIL-Lab gives a dict of results and a dict of what is logged.
    if isinstance(answer[0], Mapping):
        merged = {key: value for one in reversed(answer) if isinstance(one, Mapping) for key, value in one.items()}
        return _parts(merged)
    return answer[0], answer[1] if len(answer) == 2 else None, None


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


def _named(module: nn.Module, names: Sequence[str]) -> str | None:
    """The first of several names that is a parameter of a module's forward."""
    known = inspect.signature(module.forward).parameters
    return next((name for name in names if name in known), None)


def _no_loss(logits: Tensor, *_: Any) -> Tensor:
    """The loss of the logits for a module that asks for one: 0, since the method has a loss of its own."""
    return logits.new_zeros(())


@contextmanager
def _drawing(seed: int, *, torch_too: bool) -> Iterator[None]:
    """Python's and NumPy's global random numbers, and torch's, from a seed; as before afterwards."""
    # DTFD's authors, for one, shuffle with the first.
    python, arrays = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with torch.random.fork_rng(devices=[], enabled=torch_too):
            if torch_too:
                torch.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


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
    options |= {"in_features": in_features, "num_classes": num_classes}
    check_values(_annotations(MILModel) | _annotations(kind), options)
    return kind(**options)


def _annotations(kind: Any) -> dict[str, Any]:
    """The annotations of a constructor's parameters; none where a name in them exists for type checkers only."""
    try:
        return get_type_hints(kind.__init__, include_extras=True)
    except NameError:
        return {}


def model_kind(name: str | Callable[..., Any]) -> type[MILModel]:
    """The model class behind a name; a module that is not one of ours is adapted."""
    return adapt(discover.load("models", name) if isinstance(name, str) else name)


def model_options(kind: Any) -> tuple[str, ...] | None:
    """The option names of a model class; None when it takes any."""
    parameters = inspect.signature(kind).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return tuple(name for name in parameters if name not in _SIZES)
