"""Training methods and their losses; methods are chosen by name, losses imported from here.

Nothing here imports torch until a name is used, so listing the methods is instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.lazy import lazy_names

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
    from pams_mil.methods.method_by_name import create_method
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
    "create_method": "method_by_name",
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
    "create_method",
    "msce_loss",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
