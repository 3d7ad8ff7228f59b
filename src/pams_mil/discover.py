"""File name -> object: a method, model, remix or encoder is found by the name of its file.

There is no registry to forget: `load("methods", "cdw_ce")` imports `pams_mil.methods.cdw_ce` and returns
the one public class that the module names in `DISCOVER`. `"my_package.module:Name"` loads from elsewhere.

Names of a package are imported when they are first used, so that `import` itself costs nothing. Every name stands once,
in the package's stub `__init__.pyi`, as `from module import name as name`; type checkers read it there, too.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
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


_IMPORT = re.compile(r"^from (?P<home>\S+) import (?P<name>\w+) as (?P=name)$", re.MULTILINE)


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names live in other modules.

    >>> import pams_mil.report
    >>> find, names, public = lazy_names("pams_mil.report", pams_mil.report.__file__)
    >>> find("Bench").__module__, names() == public
    ('pams_mil.report.bench', True)

    Args:
        package: The package's `__name__`. What the stub imports from the package itself are its modules, which are
            found and listed but are not part of `__all__`.
        file: Its `__file__`, beside which the stub is.
    """
    stub = Path(file).with_name("__init__.pyi").read_text(encoding="utf-8")
    homes = {match["name"]: match["home"] for match in _IMPORT.finditer(stub)}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # a module of the package, not a name in one
        if homes[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(homes[name]), name)

    return find, lambda: sorted(homes), sorted(name for name, home in homes.items() if home != package)
