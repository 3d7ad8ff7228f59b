"""File name -> object: a method, model, remix or encoder is found by the name of its file.

There is no registry to forget: `load("methods", "cdw_ce")` imports `pams_mil.methods.cdw_ce` and returns
the one public class that the module names in `DISCOVER`. `"my_package.module:Name"` loads from elsewhere.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from pams_mil.errors import ConfigError, listing, nearest

_MARK = re.compile(r"^DISCOVER = ", re.MULTILINE)
_ALIASES = {"remix": {"remix": "prototype_mix"}}
"""Names that people type, where the file is called otherwise: {package: {typed: file}}."""


@cache  # every settings file asks, and a program does not change while it runs
def available(package: str) -> tuple[str, ...]:
    """The names in `pams_mil.<package>` whose module declares `DISCOVER`, sorted.

    Modules are looked at as text, so listing the choices imports nothing (torch stays out of `--help`).
    """
    modules = Path(__file__).parent.joinpath(*package.split(".")).glob("*.py")
    return tuple(sorted(module.stem for module in modules if _MARK.search(module.read_text("utf-8"))))


def list_methods() -> tuple[str, ...]:
    """The names that `create_method` and `pams train --method` take.

    >>> "pams" in list_methods(), "abmil" in list_models(), "sfr" in list_remixes()
    (True, True, True)
    """
    return available("methods")


def list_models() -> tuple[str, ...]:
    """The names that `create_model` and `pams train --model` take."""
    return available("models")


def list_remixes() -> tuple[str, ...]:
    """The names that `create_remix` and a method's `remix` take."""
    return available("remix")


def load(package: str, name: str) -> Any:
    """The object behind a name: ours by file name, anyone's by `module:attribute`."""
    if ":" in name:
        return _load_foreign(package, name)
    known = available(package)
    name = _ALIASES.get(package, {}).get(name, name)
    if name not in known:
        raise ConfigError(
            f"There is no {package.rstrip('s')} called {name!r}.{nearest(name, known)} "
            f"Available: {listing(known, most=40)}, or 'your_module:YourClass' for your own."
        )
    module = importlib.import_module(f"pams_mil.{package}.{name}")
    return getattr(module, module.DISCOVER)


def _load_foreign(package: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Could not load the {package.rstrip('s')} {name!r}: {error}. "
            "Expected 'module:attribute' importable from here; is the module on PYTHONPATH?"
        ) from error
