from pams_mil.evaluate.audit import Audit as Audit
from pams_mil.evaluate.audit import ModelAudit as ModelAudit
from pams_mil.evaluate.certify.certificate import Certificate as Certificate
from pams_mil.evaluate.compare import Comparison as Comparison
from pams_mil.evaluate.contrast import Contrast as Contrast
from pams_mil.evaluate.decisions.debias import msce_posterior as msce_posterior
from pams_mil.evaluate.decisions.decide import DecisionRule as DecisionRule
from pams_mil.evaluate.decisions.decide import least_risk as least_risk
from pams_mil.evaluate.decisions.decide import most_ascc as most_ascc
from pams_mil.evaluate.decisions.decide import most_probable as most_probable
from pams_mil.evaluate.decisions.decide import redecide as redecide
from pams_mil.evaluate.decisions.probability_calibration import ProbabilityCalibration as ProbabilityCalibration
from pams_mil.evaluate.decisions.probability_calibration import (
    fit_probability_calibration as fit_probability_calibration,
)
from pams_mil.evaluate.decisions.probability_calibration import refined_nll as refined_nll
from pams_mil.evaluate.inference import contrasts as contrasts
from pams_mil.evaluate.inference import estimate as estimate
from pams_mil.evaluate.predictions.join import join_seeds as join_seeds
from pams_mil.evaluate.predictions.prediction_layouts import Source as Source
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions as read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions as Predictions
from pams_mil.evaluate.predictions.predictions import write_predictions as write_predictions
from pams_mil.evaluate.scores import LevelScores as LevelScores
from pams_mil.evaluate.scores import score as score
from pams_mil.metrics.kappa_path import DecisionPath as DecisionPath
from pams_mil.metrics.kappa_path import decision_path as decision_path
