"""PAMS: multiple-instance learning that knows which class is more urgent.

What people use is here, loaded on first use: `import pams_mil as pams` imports neither torch nor numpy.

    pams.audit(y_true, {"mine": P, "baseline": Q}, ["benign", ["FEA", "ADH"], "malignant"], patients=ids)
    pams.audit(pams.read_predictions("model.csv", "bracs")).save("report")
    pams.train(pams.configure("manifest.csv", classes="bracs", method="pams", model="abmil"), "runs/pams")
    pams.create_model("abmil", in_features=1024, num_classes=7)

More is in the packages: `methods` (losses), `models`, `remix`, `metrics`, `data`, `evaluate`, `engine`, `report`,
`notebook`, `wsi`, `cohorts`.
"""

from pams_mil.discover import lazy_names

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
