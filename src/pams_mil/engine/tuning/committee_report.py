"""The report of a committee: read from its folder, compared with single networks and with as many averaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.prediction.scored_runs import of_folds
from pams_mil.engine.run.cv_folder import CrossValidationFolder
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.tuning.recipes import in_words
from pams_mil.evaluate.audit import Audit, OnStage, audit
from pams_mil.evaluate.committee import audit_committee
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.resampling import RESAMPLES

_MODELS = {"abmil": "AB-MIL", "clam_sb": "CLAM-SB", "clam_mb": "CLAM-MB", "dtfd": "DTFD-MIL", "transmil": "TransMIL"}
_METHODS = {"ce": "cross-entropy", "pams": "PAMS", "msce": "MSCE"}


def report_committee(
    folder: CrossValidationFolder,
    hierarchy: ClassHierarchy,
    *,
    resamples: int = RESAMPLES,
    progress: OnStage | None = None,
) -> Audit:
    """The audit of a committee, compared with single networks of its reference and with as many averaged.

    Single networks are one method, whose networks are chance; the committee and the averaged ones are one model each.
    """
    committee = read_predictions(folder.predictions_file, hierarchy, name=f"committee of {len(folder.members)}")
    names = {member.path.name: member.predictions_file for member in folder.members}
    members = {name: read_predictions(file, hierarchy, name=name) for name, file in names.items()}
    models = [committee]
    if folder.reference.exists():
        seeds = folder.reference.seeds()
        plain = model_name(RunFolder(folder.reference.run(0)).config())
        models.append(read_predictions(folder.reference.predictions_file, hierarchy, name=plain))
        if len(seeds) > 1:
            models[1] = replace(models[1], name=f"{plain}, {len(seeds)} averaged")
            models.insert(1, single_networks(folder.reference, hierarchy, plain))
    result = audit(models, candidate=0, resamples=resamples, progress=progress)
    recipes = {member.path.name: in_words(RunFolder(member.run(0)).config()) for member in folder.members}
    reference = models[1] if len(models) > 1 else None
    shares = audit_committee(
        committee, members, recipes=recipes, reference=reference, comparisons=result.comparisons, resamples=resamples
    )
    return replace(result, committee=shares)


def single_networks(folder: CrossValidationFolder, hierarchy: ClassHierarchy, name: str) -> Predictions:
    """Every network of a cross-validation with several seeds by itself: one sample with fold and seed of each row."""
    seeds = {}
    for number, seed in enumerate(folder.seeds()):
        runs = ((int(fold), folder.run(int(fold), seed)) for fold in folder.asked()["folds"])
        tested = of_folds(runs, hierarchy, name, "test")
        # Where folds of a table overlap, a slide is tested by several; the first one counts.
        _, rows = np.unique(np.array(tested.slide_ids, dtype=object), return_index=True)
        seeds[str(number)] = tested.take(np.sort(rows))
    pooled = read_predictions(folder.predictions_file, hierarchy, name=name)
    return replace(join_seeds(name, seeds), notes=pooled.notes)  # about all slides; each file's are about one fold


def model_name(config: RunConfig) -> str:
    """A plain network for people, e.g. "AB-MIL with cross-entropy"."""
    model, method = config.model.name, config.method.name
    return f"{_MODELS.get(model, model)} with {_METHODS.get(method, method)}"
