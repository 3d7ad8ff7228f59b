"""Models by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pams_mil import discover
from pams_mil.errors import ConfigError
from pams_mil.models.core.adapter import adapt
from pams_mil.models.core.mil_model import MILModel
from pams_mil.parameters import refuse_unknown


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
