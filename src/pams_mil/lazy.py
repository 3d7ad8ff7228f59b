"""Names of a package that are imported when they are first used, so that `import` itself costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in other modules.

    >>> getattr_, dir_ = lazy_names("pams_mil", {"ClassHierarchy": "hierarchy"})
    >>> getattr_("ClassHierarchy").__name__, dir_()
    ('ClassHierarchy', ['ClassHierarchy'])

    Args:
        package: The package's name.
        homes: Module of every name, below the package or from the top (`pams_mil. ...`); "" when the name is itself a
            module.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return importlib.import_module(f"{package}.{name}")
        home = homes[name] if homes[name].startswith("pams_mil.") else f"{package}.{homes[name]}"
        return getattr(importlib.import_module(home), name)

    return find, lambda: sorted(homes)
