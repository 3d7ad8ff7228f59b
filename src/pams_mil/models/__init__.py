"""Models that turn a bag of instances into class logits; chosen by name, built by `create_model`.

Nothing here imports torch until a name is used, so listing the models is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pams_mil.models.base import BagBatch, LevelOutput, MILModel
    from pams_mil.models.factory import create_model
    from pams_mil.models.hierarchical import HierarchicalModel
    from pams_mil.models.limits import explain_out_of_memory, instance_cap
    from pams_mil.models.published import load_published

_HOME = {
    "BagBatch": "base",
    "HierarchicalModel": "hierarchical",
    "LevelOutput": "base",
    "MILModel": "base",
    "create_model": "factory",
    "explain_out_of_memory": "limits",
    "instance_cap": "limits",
    "load_published": "published",
}

__all__ = [
    "BagBatch",
    "HierarchicalModel",
    "LevelOutput",
    "MILModel",
    "create_model",
    "explain_out_of_memory",
    "instance_cap",
    "load_published",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
