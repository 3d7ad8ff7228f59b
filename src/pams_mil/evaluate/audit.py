"""The audit: one or several models, every level, an optional subset beside the whole, and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pams_mil import __version__
from pams_mil.atomic import plain
from pams_mil.evaluate.cautions import Caution, cautions
from pams_mil.evaluate.committee import CommitteeAudit
from pams_mil.evaluate.compare import Comparison, compare_all
from pams_mil.evaluate.decisions.decide import DecisionRule
from pams_mil.evaluate.operating_points import OperatingPoints
from pams_mil.evaluate.orders import OrderAudit, audit_orders, with_joint_orders
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import FindingScores, LevelScores, SevereError, finding_scores, score, severe_errors
from pams_mil.evaluate.subgroups import SubgroupAudit, subgroups
from pams_mil.evaluate.verdict import verdict
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.resampling import RESAMPLES
from pams_mil.severity import PENALTY

OnStage = Callable[[str, float], None]
"""Called with what is being done and the fraction done."""


@dataclass(frozen=True)
class ModelAudit:
    """One model's scores on all its slides and, where asked, on a tagged subset."""

    predictions: Predictions
    levels: list[LevelScores]
    subset: Predictions | None
    subset_levels: list[LevelScores]
    severe: list[SevereError]
    cautions: tuple[Caution, ...] = ()
    findings: FindingScores | None = None
    """Of every single finding, where slides have several."""

    @property
    def name(self) -> str:
        """The model's name in tables."""
        return self.predictions.name

    @property
    def points(self) -> list[OperatingPoints | None]:
        """Operating points by level; None where the file has no probabilities."""
        return [scores.points for scores in self.levels]

    @property
    def finest(self) -> LevelScores:
        """Scores at the finest level."""
        return self.levels[-1]

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        content: dict[str, Any] = {
            "name": self.name,
            "layout": self.predictions.layout,
            "slides": len(self.predictions),
            "patients": self.predictions.num_patients,
            "decided_by": self.predictions.decided_by or None,
            "made_by": list(self.predictions.made_by),
            "cautions": plain(self.cautions),
            "notes": list(self.predictions.notes),
            "seeds": self.predictions.num_seeds,
            "table": dict(self.predictions.table),
            "weights": list(self.predictions.weights),
            "seen_patients": any(caution.kind == "seen patients" for caution in self.cautions),
            "levels": {scores.name: scores.to_json() for scores in self.levels},
        }
        if self.findings is not None:
            content["findings"] = plain(self.findings)
        if self.subset is not None:
            content["subset"] = {
                "name": self.subset.name,
                "slides": len(self.subset),
                "levels": {scores.name: scores.to_json() for scores in self.subset_levels},
            }
        return content


@dataclass(frozen=True)
class Audit:
    """Everything that `pams audit` prints and writes."""

    hierarchy: ClassHierarchy
    models: list[ModelAudit]
    comparisons: list[Comparison]
    penalty: float
    resamples: int
    seed: int
    subgroups: list[SubgroupAudit] = field(default_factory=list)
    orders: OrderAudit | None = None
    """Where the classes have several orders of urgency; everything else is under the first."""
    committee: CommitteeAudit | None = None
    """What each member adds, where one of the models is a committee."""

    @property
    def cautions(self) -> list[str]:
        """What must be said before any score, once for all models that it is true of."""
        sentences: dict[str, list[str]] = {}
        for model in self.models:
            for caution in model.cautions:
                sentences.setdefault(caution.message, []).append(model.name)
        return [f"{', '.join(names)}: {message}" for message, names in sentences.items()]

    @property
    def verdicts(self) -> list[str]:
        """One sentence per comparison."""
        return [verdict(comparison) for comparison in self.comparisons]

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: `files` in the order given, each with `levels -> <level name> -> metrics`."""
        return {
            "pams_version": __version__,
            "hierarchy": {
                "name": self.hierarchy.name,
                "digest": self.hierarchy.digest,
                "order": [self.hierarchy.order(level) for level in range(self.hierarchy.num_levels)],
                "distance": self.hierarchy.distance_by,
                "notes": list(self.hierarchy.tie_notes()),
            },
            "penalty": self.penalty,
            "resamples": self.resamples,
            "seed": self.seed,
            "files": plain(self.models),
            "comparisons": plain(self.comparisons),
            **{key: plain(value) for key in ("subgroups", "orders", "committee") if (value := getattr(self, key))},
            "verdicts": self.verdicts,
        }


def _findings(model: Predictions, resamples: int, seed: int) -> FindingScores | None:
    if model.finding_probabilities is None:
        return None
    # Any text may be in the column of a file; only that of an operating point has a κ.
    kappa = DecisionRule.parse(model.decided_by).kappa if model.decided_by.startswith("kappa=") else 1.0
    return finding_scores(model, kappa=kappa, resamples=resamples, seed=seed)


def audit(
    models: Sequence[Predictions],
    *,
    tag: tuple[str, str] | None = None,
    by: Sequence[str] = (),
    reference: int = 0,
    candidate: int | None = None,
    penalty: float = PENALTY,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: OnStage | None = None,
    seen_patients: bool = False,
) -> Audit:
    """Score every model, also by the groups of the columns `by`, and compare the others with the reference.

    With a `candidate`, that one is compared with every other instead.

    Patients that a model has seen are refused unless `seen_patients` allows them; then every page and file says so.
    Where the models' hierarchies have several orders, rates and comparisons are also those of each of them.
    """
    models = [model.admitted("test scores", seen_patients=seen_patients) for model in with_joint_orders(models)]
    report = progress or (lambda what, fraction: None)
    sampling: dict[str, Any] = {"penalty": penalty, "seed": seed, "resamples": resamples}
    sides: dict[str, Any] = {"reference": reference, "candidate": candidate}
    audited = []
    for model in models:
        subset = None if tag is None else model.tagged(*tag)
        audited.append(
            ModelAudit(
                predictions=model,
                levels=score(model, **sampling, progress=partial(report, f"Resampling {model.name}")),
                subset=subset,
                subset_levels=[] if subset is None else score(subset, **sampling),
                severe=severe_errors(model, penalty=penalty),
                cautions=cautions(model),
                findings=_findings(model, resamples, seed),
            )
        )
    comparisons = compare_all(models, **sides, **sampling, progress=partial(report, "Comparing"))
    groups = subgroups(models, by, seed=seed, resamples=resamples)
    several = models[0].hierarchy.other_orders
    by_order = audit_orders(models, comparisons, **sides, **sampling) if several else None
    return Audit(models[0].hierarchy, audited, comparisons, penalty, resamples, seed, groups, by_order)
