"""Training on bags in memory: the steps of a run, without its folder, validation and checkpoints.

For notebooks and scikit-learn. Every step is the same function of (seed, epoch, bag) as in `training.loop`; what is
missing is what a run adds around it: a chosen epoch, resuming, and the record of what was done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag
from pams_mil.data.bags.dataset import BagDataset, BagSample
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.inference_loop import infer
from pams_mil.engine.learner import Learner
from pams_mil.engine.run.spec import RunSpec
from pams_mil.engine.run.trained_slides import TrainedSlides
from pams_mil.engine.training.loop import add_gradients, rows_of
from pams_mil.engine.training.one_process import OneProcess
from pams_mil.engine.training.optimize import clip_gradients, learning_rate, make_optimizer, set_learning_rate
from pams_mil.engine.training.run_cohort import Cohort
from pams_mil.engine.training.train import initial_learner, refuse_missing_init, training_bags
from pams_mil.errors import PamsError, RunError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models.core.batch import in_packs


@dataclass(frozen=True)
class MemoryStore:
    """Bags by slide id, as a folder or a pack would give them."""

    bags: dict[str, AnyArray]

    def read(self, record: SlideRecord, *, verify: bool = True) -> Bag:
        """The bag of a slide."""
        return Bag(self.bags[record.slide_id])

    def fingerprint(self, record: SlideRecord) -> str:
        """What is in memory has no file to change."""
        return record.slide_id

    def identity(self, record: SlideRecord) -> None:
        """Arrays can be changed in place, and nothing would tell."""


def fit_in_memory(
    bags: Sequence[AnyArray],
    labels: Sequence[str],
    patients: Sequence[str],
    hierarchy: ClassHierarchy,
    config: RunConfig,
) -> tuple[Learner, RunSpec]:
    """A learner trained for all epochs on bags [n_i, d], and its spec; the caller's random state is left as it was."""
    config = complete(config)
    refuse_missing_init(config)
    cohort = _cohort(bags, labels, patients, hierarchy)
    spec = RunSpec.of(config, hierarchy, cohort.slides, cohort.features)
    steps = training_bags(config, cohort, spec.method)
    learner, _ = initial_learner(spec, config)
    optimizer, here = make_optimizer(learner, config.training), OneProcess()
    learner.train()
    # Every step seeds torch's global generator; in a notebook it belongs to someone else.
    with torch.random.fork_rng(devices=[]):
        for epoch in range(config.training.epochs):
            set_learning_rate(optimizer, learning_rate(config.training, epoch))
            keys = steps.epoch_keys(epoch)
            for start in range(0, len(keys), config.training.batch):
                group = [steps[key] for key in keys[start : start + config.training.batch]]
                for pack in in_packs(group, rows_of, most=len(group) if learner.packs else 1):
                    terms = add_gradients(here, learner, pack, of=len(group))
                    if not all(map(math.isfinite, terms.values())):
                        raise RunError(f"The loss is not finite on bag {pack[0].name!r}, epoch {epoch + 1}; lower lr.")
                clip_gradients(here, learner, optimizer, config.training)
                optimizer.step()
                optimizer.zero_grad()
    return learner.eval(), spec


def probabilities_in_memory(learner: Learner, bags: Sequence[AnyArray]) -> npt.NDArray[np.float64]:
    """Probabilities [b, c] of the finest level, in the order of the hierarchy."""
    samples = [BagSample(torch.from_numpy(bag), -1, str(number), "") for number, bag in enumerate(bags)]
    rows = []
    # One bag per pass: whatever bags come along, a bag's probabilities have the same bits.
    for _, _, outcome in infer([learner], samples, most=1):
        if isinstance(outcome, PamsError):
            raise outcome
        rows.append(outcome[0].probabilities[-1])
    table: npt.NDArray[np.float64] = torch.cat(rows).numpy()
    return table


def _cohort(
    bags: Sequence[AnyArray], labels: Sequence[str], patients: Sequence[str], hierarchy: ClassHierarchy
) -> Cohort:
    names = [str(number) for number in range(len(bags))]
    records = (SlideRecord(*row, split="train") for row in zip(names, patients, labels, strict=True))
    manifest = Manifest(tuple(records))
    train = BagDataset(manifest, hierarchy, MemoryStore(dict(zip(names, bags, strict=True))))
    return Cohort(hierarchy, train, train, {"width": int(bags[0].shape[1])}, TrainedSlides.of(manifest, "train"), ())
