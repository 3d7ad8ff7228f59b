"""Models by name."""

from __future__ import annotations

import inspect
from typing import Any

from pams_mil import discover
from pams_mil.errors import ConfigError
from pams_mil.models.core.mil_model import MILModel
from pams_mil.parameters import refuse_unknown


def create_model(name: str, *, in_features: int, num_classes: int, **options: Any) -> MILModel:
    """The model behind a file name of this package, or behind 'your_module:YourModel'.

    >>> create_model("abmil", in_features=384, num_classes=7).embedding_features
    512
    >>> create_model("abmil", in_features=384, num_classes=7, gate=False)
    Traceback (most recent call last):
    pams_mil.errors.ConfigError: The model 'abmil' has no option 'gate'. Did you mean 'gated'? ...
    """
    kind = discover.load("models", name)
    known = model_options(kind)
    if known is not None:
        refuse_unknown(f"The model {name!r}", options, known, error=ConfigError)
    model: MILModel = kind(in_features=in_features, num_classes=num_classes, **options)
    return model


def model_options(kind: Any) -> tuple[str, ...] | None:
    """The option names of a model class; None when it takes any."""
    parameters = inspect.signature(kind).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return tuple(name for name in parameters if name not in ("in_features", "num_classes"))
