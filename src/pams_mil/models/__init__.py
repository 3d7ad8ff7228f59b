"""Models that turn a bag of instances into class logits; chosen by name, built by `create_model`.

Nothing here imports torch until a name is used, so listing the models is instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.lazy import lazy_names

if TYPE_CHECKING:
    from pams_mil.models.core.factory import create_model
    from pams_mil.models.core.hierarchical import HierarchicalModel
    from pams_mil.models.core.limits import explain_out_of_memory, instance_cap
    from pams_mil.models.core.mil_model import BagBatch, LevelOutput, MILModel
    from pams_mil.models.core.published import load_published
    from pams_mil.models.kernels.switch import plain_kernels

_HOME = {
    "BagBatch": "core.mil_model",
    "HierarchicalModel": "core.hierarchical",
    "LevelOutput": "core.mil_model",
    "MILModel": "core.mil_model",
    "create_model": "core.factory",
    "explain_out_of_memory": "core.limits",
    "instance_cap": "core.limits",
    "load_published": "core.published",
    "plain_kernels": "kernels.switch",
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
    "plain_kernels",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
