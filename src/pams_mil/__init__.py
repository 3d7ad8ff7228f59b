"""PAMS: multiple-instance learning that knows which class is more urgent.

The names here need no torch. Losses are in `pams_mil.methods`, models in `pams_mil.models`, remix strategies in
`pams_mil.remix`, metrics in `pams_mil.metrics`, and the command line in `pams`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pams_mil.errors import PamsError

if TYPE_CHECKING:
    from pams_mil.hierarchy import ClassHierarchy

__version__ = "0.2.0"

__all__ = ["ClassHierarchy", "PamsError", "__version__"]


def __getattr__(name: str) -> Any:
    """`ClassHierarchy` on first use: it needs numpy, and `pams --help` should not wait for that."""
    if name == "ClassHierarchy":
        from pams_mil.hierarchy import ClassHierarchy  # noqa: PLC0415

        return ClassHierarchy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
