"""For the site: the public names of a package that imports them on first use, which its source alone does not tell."""

from __future__ import annotations

from typing import Any

import griffe

from pams_mil.discover import lazy_names


class LazyExports(griffe.Extension):
    """Takes a package's `__all__` from its stub, as the package itself does."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called when all modules are read."""
        for module in (pkg, *pkg.modules.values()):
            if module.is_init_module and module.filepath.with_suffix(".pyi").exists():
                module.exports = lazy_names(module.path, str(module.filepath))[2]
