"""How far a run is, and its checkpoints, which refuse to continue it as something else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pams_mil import atomic
from pams_mil.engine.learner import Learner
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.checkpoint import Checkpoint, load_weights, not_finite
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.run.spec import RunSpec, refuse_to_continue
from pams_mil.engine.training.optimize import AveragedWeights
from pams_mil.errors import CheckpointError, RunError, require_fields, stored_format
from pams_mil.metrics.metric import METRICS


@dataclass(frozen=True)
class RunCheckpoints:
    """The checkpoints of one run.

    Attributes:
        folder: The run folder.
        spec: What is trained; it must not change on the way.
    """

    folder: RunFolder
    spec: RunSpec

    def save_last(
        self, learner: Learner, optimizer: torch.optim.Optimizer, progress: RunProgress, average: AveragedWeights | None
    ) -> None:
        """Everything that is needed to go on as if nothing had happened."""
        state: dict[str, Any] = {"spec": self.spec.to_json(), "progress": progress.to_json()}
        moments = optimizer.state_dict()["state"].items()
        prefixed = {f"optimizer.{number}.{key}": one for number, own in moments for key, one in own.items()}
        weights = _finite_weights(learner)
        if average is not None:
            # `model.` always holds what to predict with, here the mean; what is trained on lies beside it. So a reader
            # of the last checkpoint need not know about averaging.
            prefixed |= {f"trained.{name}": weights[name] for name in average.tensors}
            weights |= average.tensors
            state["averaged_steps"] = average.steps
        checkpoint.save(self.folder.last, Checkpoint({**weights, **prefixed}, state))

    def save_best(self, learner: Learner, progress: RunProgress, metric: str) -> None:
        """The weights to predict with."""
        facts = {"metric": metric, "score": finite(progress.best), "epoch": progress.best_epoch}
        state = {"spec": self.spec.to_json(), **facts, "row": progress.history[-1]}
        checkpoint.save(self.folder.best, Checkpoint(_finite_weights(learner), state))

    def relabel_best(self) -> None:
        """Give the best checkpoint of a run that is extended the spec that the run has now."""
        if self.folder.best.exists():
            saved = checkpoint.load(self.folder.best)
            checkpoint.save(self.folder.best, Checkpoint(saved.tensors, {**saved.state, "spec": self.spec.to_json()}))

    def restore(
        self, learner: Learner, optimizer: torch.optim.Optimizer, average: AveragedWeights | None
    ) -> RunProgress:
        """Put learner, optimizer and average back to the last checkpoint; a fresh start when there is none."""
        if not self.folder.last.exists():
            return RunProgress()
        saved = checkpoint.load(self.folder.last)
        progress = RunProgress.from_json(saved.state.get("progress"), self.folder.last)
        stored = RunSpec.from_json(saved.state.get("spec"), self.folder.last)
        refuse_to_continue(stored, self.spec, self.folder.path, epochs_done=progress.epoch)
        load_weights(learner, saved)
        moments: dict[int, dict[str, Tensor]] = {}
        try:
            for name, tensor in saved.part("optimizer").items():
                number, _, key = name.partition(".")
                moments.setdefault(int(number), {})[key] = tensor
            # Rates and decays are of the settings, which are the same, and of the epoch, which the loop sets.
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"The optimizer state in {self.folder.last} does not fit the model: {error}."
            ) from error
        if average is not None:
            # The learner holds the mean now, as the file does; `restore` takes it from there and puts the trained
            # weights in.
            trained, steps = saved.part("trained"), saved.state.get("averaged_steps")
            if trained.keys() != average.tensors.keys() or not isinstance(steps, int):
                raise CheckpointError(f"{self.folder.last} does not hold the weights to go on training with.")
            average.restore(trained, steps)
        return progress

    def write_log(self, progress: RunProgress) -> None:
        """One row per epoch, rewritten whole: a resumed run never has an epoch twice."""
        columns = list(dict.fromkeys(key for row in progress.history for key in row))
        rows = [["" if row.get(key) is None else row[key] for key in columns] for row in progress.history]
        atomic.write_csv(self.folder.metrics_file, columns, rows)


def _finite_weights(learner: Learner) -> dict[str, Tensor]:
    tensors = dict(learner.state_dict())
    bad = not_finite(tensors)
    if bad:
        raise RunError(
            f"The weights are no longer finite numbers ({bad[0]} and {len(bad) - 1} more), so they were not saved; the "
            "last good checkpoint is kept. Lower training.lr or set training.clip_norm=1, and start again."
        )
    return tensors


WITHOUT_MISTAKES = ("asmc", "emc")
"""Metrics of mistakes, which are infinite where there are none: no epoch can be better."""


@dataclass
class RunProgress:
    """Where the loop stands.

    Attributes:
        epoch: Epochs that are complete.
        step: Bags of the next epoch that were trained on already.
        sums: Sum of every loss term over these bags.
        counts: What was done to these bags: remixed, dropped, capped, ...
        best: The best validation score so far; infinite, and null in JSON, for `WITHOUT_MISTAKES`.
        best_epoch: When it was reached, counted from 1; 0: never.
        waited: Epochs since then.
        history: One row per complete epoch.
    """

    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_epoch: int = 0
    waited: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_json(cls, content: Any, where: Path | str = "The checkpoint") -> RunProgress:
        """Progress from the state of a checkpoint; one with other fields is refused."""
        with stored_format(where, CheckpointError, "Start the run again in another folder."):
            require_fields(content, [one.name for one in dataclasses.fields(cls)], "progress.")
            progress = cls(**content)
        # JSON has no infinity: a best epoch without a score is one without mistakes.
        if progress.best is None and progress.best_epoch:
            progress.best = math.inf
        return progress

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "best": finite(self.best)}

    def is_over(self, epochs: int, patience: int | None) -> bool:
        """Whether all epochs are done, or patience has run out."""
        return self.epoch >= epochs or (patience is not None and self.waited >= patience)

    def add(self, terms: Mapping[str, float], counts: Sequence[Mapping[str, float]]) -> None:
        """Take note of bags: the mean of every term over them, and what was done to each.

        >>> progress = RunProgress()
        >>> progress.add({"ce": 0.5}, [{}, {"remixed": 1.0}])
        >>> progress.step, progress.sums, progress.counts
        (2, {'ce': 1.0}, {'remixed': 1.0})
        """
        self.step += len(counts)
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * len(counts)
        for bag in counts:
            for name, count in bag.items():
                self.counts[name] = self.counts.get(name, 0.0) + count

    def close_epoch(self, row: dict[str, Any], score: float, metric: str) -> bool:
        """Complete the epoch; whether its score is the best so far.

        A score that is not finite never is, but for one that says that there are no mistakes.

        >>> progress = RunProgress()
        >>> [progress.close_epoch({}, score, "ascc") for score in (0.5, float("nan"), 0.4, 0.6)]
        [True, False, False, True]
        >>> progress.best_epoch, progress.waited
        (4, 0)
        >>> progress = RunProgress()
        >>> [progress.close_epoch({}, score, "refined_nll") for score in (0.8, 0.9, 0.7)]
        [True, False, True]
        >>> progress = RunProgress()
        >>> [progress.close_epoch({}, score, "asmc") for score in (0.5, float("inf"), 0.9, float("inf"))]
        [True, True, False, False]
        """
        self.epoch += 1
        self.step, self.sums, self.counts = 0, {}, {}
        self.history.append({key: finite(value) for key, value in row.items()})
        counts = math.isfinite(score) or (score == math.inf and metric in WITHOUT_MISTAKES)
        higher = metric in ("last", "urgency_auc") or (metric in METRICS and METRICS[metric].higher_is_better)
        better = counts and (self.best is None or (score > self.best if higher else score < self.best))
        if better:
            self.best, self.best_epoch, self.waited = score, self.epoch, 0
        else:
            self.waited += 1
        return better


def finite(value: Any) -> Any:
    """The value, and None for a number that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
