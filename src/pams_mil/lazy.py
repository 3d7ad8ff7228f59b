"""Names of a package that are imported when they are first used, so that `import` itself costs nothing.

Every name stands once, in the package's stub `__init__.pyi`, as `from module import name as name`. Type checkers and
editors read it there, and so does `lazy_names`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^from (?P<home>\S+) import (?P<name>\w+) as (?P=name)$", re.MULTILINE)


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names live in other modules.

    >>> import pams_mil.report
    >>> find, names, public = lazy_names("pams_mil.report", pams_mil.report.__file__)
    >>> find("Bench").__module__, names() == public
    ('pams_mil.report.bench', True)

    Args:
        package: The package's `__name__`. What the stub imports from the package itself are its modules, which are
            found and listed but are no part of `__all__`.
        file: Its `__file__`, beside which the stub is.
    """
    stub = Path(file).with_name("__init__.pyi").read_text(encoding="utf-8")
    homes = {found["name"]: found["home"] for found in _IMPORT.finditer(stub)}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # a module of the package, not a name in one
        if homes[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(homes[name]), name)

    return find, lambda: sorted(homes), sorted(name for name, home in homes.items() if home != package)
