"""Training methods and their losses; methods are chosen by name, losses imported from here.

Nothing here imports torch until a name is used, so listing the methods is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pams_mil.methods.alignment import alignment_loss
    from pams_mil.methods.losses import (
        CDWCELoss,
        CELoss,
        CO2Loss,
        CORNLoss,
        EMDLoss,
        HXELoss,
        MSCELoss,
        SoftLabelsLoss,
        SORDLoss,
        WeightedCELoss,
    )
    from pams_mil.methods.method import FinestMethod, LevelMethod, Method
    from pams_mil.methods.msce import msce_loss
    from pams_mil.methods.objective import LevelLoss, LevelTerm, Objective

_HOME = {
    "CDWCELoss": "losses",
    "CELoss": "losses",
    "CO2Loss": "losses",
    "CORNLoss": "losses",
    "EMDLoss": "losses",
    "FinestMethod": "method",
    "HXELoss": "losses",
    "LevelLoss": "objective",
    "LevelMethod": "method",
    "LevelTerm": "objective",
    "MSCELoss": "losses",
    "Method": "method",
    "Objective": "objective",
    "SORDLoss": "losses",
    "SoftLabelsLoss": "losses",
    "WeightedCELoss": "losses",
    "alignment_loss": "alignment",
    "msce_loss": "msce",
}

__all__ = [
    "CDWCELoss",
    "CELoss",
    "CO2Loss",
    "CORNLoss",
    "EMDLoss",
    "FinestMethod",
    "HXELoss",
    "LevelLoss",
    "LevelMethod",
    "LevelTerm",
    "MSCELoss",
    "Method",
    "Objective",
    "SORDLoss",
    "SoftLabelsLoss",
    "WeightedCELoss",
    "alignment_loss",
    "msce_loss",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
