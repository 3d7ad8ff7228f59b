"""Predictions in, honest scores out: reading predictions files, scoring every level, comparing models.

The functions `audit`, `decide`, `compare` and `certify` live in the modules of the same names; `pams_mil.audit` and
`pams_mil.certify` are short for the first and the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.lazy import lazy_names

if TYPE_CHECKING:
    from pams_mil.evaluate.audit import Audit, ModelAudit
    from pams_mil.evaluate.calibration import Calibration, fit_calibration
    from pams_mil.evaluate.certify.certificate import Certificate
    from pams_mil.evaluate.compare import Comparison
    from pams_mil.evaluate.debias import msce_posterior
    from pams_mil.evaluate.decide import DecisionRule, least_risk, most_ascc, most_probable, redecide
    from pams_mil.evaluate.prediction_layouts import Source, read_predictions
    from pams_mil.evaluate.predictions import Predictions, write_predictions
    from pams_mil.evaluate.refinement import refined_nll
    from pams_mil.evaluate.scores import LevelScores, score
    from pams_mil.metrics.kappa_path import DecisionPath, decision_path

_HOMES = {
    "Audit": "audit",
    "Calibration": "calibration",
    "Certificate": "certify.certificate",
    "Comparison": "compare",
    "DecisionPath": "pams_mil.metrics.kappa_path",
    "DecisionRule": "decide",
    "LevelScores": "scores",
    "ModelAudit": "audit",
    "Predictions": "predictions",
    "Source": "prediction_layouts",
    "decision_path": "pams_mil.metrics.kappa_path",
    "fit_calibration": "calibration",
    "least_risk": "decide",
    "most_ascc": "decide",
    "most_probable": "decide",
    "msce_posterior": "debias",
    "read_predictions": "prediction_layouts",
    "redecide": "decide",
    "refined_nll": "refinement",
    "score": "scores",
    "write_predictions": "predictions",
}

__all__ = [
    "Audit",
    "Calibration",
    "Certificate",
    "Comparison",
    "DecisionPath",
    "DecisionRule",
    "LevelScores",
    "ModelAudit",
    "Predictions",
    "Source",
    "decision_path",
    "fit_calibration",
    "least_risk",
    "most_ascc",
    "most_probable",
    "msce_posterior",
    "read_predictions",
    "redecide",
    "refined_nll",
    "score",
    "write_predictions",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
