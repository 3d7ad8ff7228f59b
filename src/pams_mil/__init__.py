"""PAMS: multiple-instance learning that knows which class is more urgent.

What people use is here, loaded on first use: `import pams_mil as pams` imports neither torch nor numpy.

    pams.audit([pams.read_predictions("model.csv", pams.ClassHierarchy.load("bracs"))])
    pams.train(pams.configure("manifest.csv", classes="bracs", method="pams", model="abmil"), "runs/pams")
    pams.create_model("abmil", in_features=1024, num_classes=7)

More is in the packages: `methods` (losses), `models`, `remix`, `metrics`, `data`, `evaluate`, `engine`, `report`,
`wsi`, `cohorts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.errors import PamsError
from pams_mil.lazy import lazy_names

if TYPE_CHECKING:
    from pams_mil.discover import list_methods, list_models, list_remixes
    from pams_mil.engine.config.run_config import configure
    from pams_mil.engine.estimator import PamsClassifier
    from pams_mil.engine.prediction.predict import predict
    from pams_mil.engine.training.train import train
    from pams_mil.evaluate.audit import audit
    from pams_mil.evaluate.certify.make import certify
    from pams_mil.evaluate.prediction_layouts import read_predictions
    from pams_mil.hierarchy import ClassHierarchy
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
    from pams_mil.methods.method_by_name import create_method
    from pams_mil.metrics.modules import (
        AsymmetricClassificationConfidence,
        AsymmetricMisclassificationConfidence,
        ClassificationConfidence,
        ExpectedRisk,
        MisclassificationConfidence,
        OverCallRate,
        SevereErrors,
        UnderCallRate,
    )
    from pams_mil.models.core.factory import create_model
    from pams_mil.remix.strategy import create_remix
    from pams_mil.wsi.encoders.encoder import create_encoder

__version__ = "0.2.0"

_LOSSES = (
    "CDWCELoss", "CELoss", "CO2Loss", "CORNLoss", "EMDLoss", "HXELoss", "MSCELoss", "SORDLoss", "SoftLabelsLoss",
    "WeightedCELoss",
)  # fmt: skip
_METRICS = (
    "AsymmetricClassificationConfidence", "AsymmetricMisclassificationConfidence", "ClassificationConfidence",
    "ExpectedRisk", "MisclassificationConfidence", "OverCallRate", "SevereErrors", "UnderCallRate",
)  # fmt: skip
_PACKAGES = (
    "cohorts", "data", "engine", "evaluate", "methods", "metrics", "models", "remix", "report", "wsi"
)  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ClassHierarchy": "hierarchy",
        "PamsClassifier": "engine.estimator",
        "PamsError": "errors",
        "audit": "evaluate.audit",
        "certify": "evaluate.certify.make",
        "configure": "engine.config.run_config",
        "create_encoder": "wsi.encoders.encoder",
        "create_method": "methods.method_by_name",
        "create_model": "models.core.factory",
        "create_remix": "remix.strategy",
        "list_methods": "discover",
        "list_models": "discover",
        "list_remixes": "discover",
        "predict": "engine.prediction.predict",
        "read_predictions": "evaluate.prediction_layouts",
        "train": "engine.training.train",
        **dict.fromkeys(_LOSSES, "methods.losses"),
        **dict.fromkeys(_METRICS, "metrics.modules"),
        **dict.fromkeys(_PACKAGES, ""),
    },
)

__all__ = [
    "AsymmetricClassificationConfidence",
    "AsymmetricMisclassificationConfidence",
    "CDWCELoss",
    "CELoss",
    "CO2Loss",
    "CORNLoss",
    "ClassHierarchy",
    "ClassificationConfidence",
    "EMDLoss",
    "ExpectedRisk",
    "HXELoss",
    "MSCELoss",
    "MisclassificationConfidence",
    "OverCallRate",
    "PamsClassifier",
    "PamsError",
    "SORDLoss",
    "SevereErrors",
    "SoftLabelsLoss",
    "UnderCallRate",
    "WeightedCELoss",
    "__version__",
    "audit",
    "certify",
    "configure",
    "create_encoder",
    "create_method",
    "create_model",
    "create_remix",
    "list_methods",
    "list_models",
    "list_remixes",
    "predict",
    "read_predictions",
    "train",
]
