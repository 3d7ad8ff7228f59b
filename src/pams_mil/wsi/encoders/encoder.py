"""What an encoder is, and how a name becomes one.

`efficientnet-lite0` is found by the `DISCOVER` line of its file; `onnx:FILE` and `timm:MODEL`
carry an argument; anything else with a colon is yours, `./file.py:encode` or `module:Class`: a
function of tiles, or a class that takes no arguments.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from pams_mil import discover
from pams_mil.digests import file_digest
from pams_mil.errors import ConfigError, listing, nearest

_WITH_ARGUMENT = {"onnx": "onnx_file", "timm": "timm_model"}
DEFAULT = "efficientnet-lite0"


class Encoder(Protocol):
    """Eight-bit RGB tiles [b, t, t, 3] in, features [b, d] out; `name` is stored in every bag."""

    name: str

    def __call__(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating[Any]]:
        """Encode one batch."""
        ...


@dataclass(frozen=True)
class EncoderOptions:
    """Where and how precisely to compute, and where weights are if not in a package or hub."""

    device: str = "auto"
    precision: str = "auto"
    weights: Path | None = None


def encoder_names() -> tuple[str, ...]:
    """The built-in names, read from files without importing them.

    >>> encoder_names()
    ('efficientnet-lite0', 'lunit-vits16')
    """
    return discover.available("wsi.encoders")


def create_encoder(
    name: str = DEFAULT,
    options: EncoderOptions | None = None,
    *,
    announce: Callable[[str], None] | None = None,
) -> Encoder:
    """The encoder of that name, ready to use.

    `announce` receives the terms of the weights, where they have any, before the weights are fetched or opened.
    """
    options = options or EncoderOptions()
    kind, _, argument = name.partition(":")
    # A colon and no kind of ours: module:Class. A lone name must be one of ours.
    if argument and kind not in _WITH_ARGUMENT:
        return _foreign(name)
    known = encoder_names()
    if not argument and name not in known:
        raise ConfigError(
            f"There is no encoder called {name!r}.{nearest(name, known)} Available: {listing(known)}, "
            "'timm:MODEL', 'onnx:FILE', or your own: './your_file.py:encode' or 'your_module:YourClass'."
        )
    module = importlib.import_module(f"{__package__}.{_WITH_ARGUMENT.get(kind) or name.replace('-', '_')}")
    notice = getattr(module, "NOTICE", "")
    if notice and announce is not None:
        announce(notice)
    arguments = (argument, options) if argument else (options,)
    return cast("Encoder", module.create(*arguments))


def weights_digest(encoder: Encoder) -> str:
    """The digest of an encoder's weights, empty where the encoder does not give one."""
    return str(getattr(encoder, "digest", ""))


def _foreign(full_name: str) -> Encoder:
    named = discover.load("wsi.encoders", full_name)
    path = discover.own_file(full_name)
    try:
        # A function of tiles is an encoder; of a class, one is made.
        encoder: Any = named if inspect.isfunction(named) else named()
    except TypeError as error:
        raise ConfigError(f"The encoder {full_name!r} must take no arguments: {error}.") from error
    if not callable(encoder):
        raise ConfigError(f"The encoder {full_name!r} cannot be called on tiles [b, t, t, 3] to give features [b, d].")
    try:
        if not isinstance(getattr(encoder, "name", None), str):
            encoder.name = full_name if path is None else f"{path.name}:{full_name.rpartition(':')[2]}"
        if path is not None and not hasattr(encoder, "digest"):
            encoder.digest = file_digest(path)
    except AttributeError as error:
        raise ConfigError(f"The encoder {full_name!r} needs an attribute 'name', stored in every bag.") from error
    return cast("Encoder", encoder)
