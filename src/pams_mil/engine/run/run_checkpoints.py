"""Writes and reads a run's checkpoints, and refuses to continue a run as something else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pams_mil import atomic
from pams_mil.engine.run import checkpoint, optimizer_state
from pams_mil.engine.run.blueprint import Blueprint
from pams_mil.engine.run.checkpoint import Checkpoint
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.run.progress import RunProgress
from pams_mil.engine.training.learner import Learner
from pams_mil.errors import CheckpointError, RunError, listing


@dataclass(frozen=True)
class RunCheckpoints:
    """The checkpoints of one run.

    Attributes:
        folder: The run folder.
        blueprint: What is trained.
        fingerprint: The settings that must not change on the way.
        cohort: Digest of the training and validation slides.
    """

    folder: RunFolder
    blueprint: Blueprint
    fingerprint: Mapping[str, Any]
    cohort: str

    def save_last(self, learner: Learner, optimizer: torch.optim.Optimizer, progress: RunProgress) -> None:
        """Everything that is needed to go on as if nothing had happened."""
        tensors, rest = optimizer_state.flatten(optimizer.state_dict())
        state = {**self._identity(), "progress": progress.to_json(), "optimizer": rest}
        prefixed = {f"optimizer.{name}": tensor for name, tensor in tensors.items()}
        checkpoint.save(self.folder.last, Checkpoint({**_finite_weights(learner), **prefixed}, state))

    def save_best(self, learner: Learner, progress: RunProgress, metric: str) -> None:
        """The weights to predict with."""
        facts = {"metric": metric, "score": progress.best, "epoch": progress.best_epoch, "row": progress.history[-1]}
        checkpoint.save(self.folder.best, Checkpoint(_finite_weights(learner), {**self._identity(), **facts}))

    def restore(self, learner: Learner, optimizer: torch.optim.Optimizer) -> RunProgress:
        """Put learner and optimizer back to the last checkpoint; a fresh start when there is none."""
        if not self.folder.last.exists():
            return RunProgress()
        saved = checkpoint.load(self.folder.last)
        self._refuse_another(saved.state)
        load_weights(learner, saved)
        rest = saved.state.get("optimizer")
        try:
            optimizer.load_state_dict(optimizer_state.unflatten(saved.part("optimizer"), rest or {}))
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"The optimizer state in {self.folder.last} does not fit the model: {error}."
            ) from error
        return RunProgress.from_json(saved.state.get("progress"))

    def write_log(self, progress: RunProgress) -> None:
        """One row per epoch, rewritten whole: a resumed run never has an epoch twice."""
        columns = list(dict.fromkeys(key for row in progress.history for key in row))
        rows = [["" if row.get(key) is None else row[key] for key in columns] for row in progress.history]
        atomic.write_csv(self.folder.metrics_file, columns, rows)

    def _identity(self) -> dict[str, Any]:
        content = {
            "blueprint": self.blueprint.to_json(),
            "fingerprint": dict(self.fingerprint),
            "cohort": self.cohort,
            "hierarchy_digest": self.blueprint.hierarchy.digest,
        }
        plain: dict[str, Any] = json.loads(json.dumps(content))  # as it will be read back: tuples are lists
        return plain

    def _refuse_another(self, saved: Mapping[str, Any]) -> None:
        mine = self._identity()
        for what in ("hierarchy_digest", "cohort"):
            if saved.get(what) != mine[what]:
                name = {"hierarchy_digest": "class hierarchy", "cohort": "training or validation slides"}[what]
                raise CheckpointError(
                    f"{self.folder.path} was trained with another {name} (digest {saved.get(what)}, now {mine[what]}). "
                    "A run can only be resumed on the same data; start a new one in another folder."
                )
        for part in ("blueprint", "fingerprint"):
            changes = list(differences(saved.get(part), mine[part]))
            if changes:
                key, before, now = changes[0]
                raise CheckpointError(
                    f"{self.folder.path} was trained with {key} = {before!r}, but now it is {now!r}. "
                    "Resume with the settings it was started with, or start a new run in another folder."
                )


def load_weights(learner: Learner, saved: Checkpoint) -> None:
    """Put a checkpoint's weights and objective state into a learner built from its blueprint."""
    own = learner.state_dict()
    given = {name: tensor for name, tensor in saved.tensors.items() if not name.startswith("optimizer.")}
    odd = sorted(set(own) ^ set(given)) or [name for name in own if own[name].shape != given[name].shape]
    if odd:
        found = {name: list(given[name].shape) if name in given else "missing" for name in odd[:3]}
        raise CheckpointError(f"The checkpoint does not fit the model that it describes: {found}.")
    bad = [name for name, tensor in given.items() if not optimizer_state.all_finite({name: tensor})]
    if bad:
        raise CheckpointError(
            f"The checkpoint holds weights that are not finite numbers, in {listing(bad, most=3)}, so it cannot tell "
            "one class from another. Restore it from a copy, or train again."
        )
    learner.load_state_dict(given)


def differences(before: Any, now: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Where two nested mappings differ.

    >>> differences({"model": {"name": "abmil"}, "seed": 0}, {"model": {"name": "dtfd"}, "seed": 0})
    [('model.name', 'abmil', 'dtfd')]
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = list(dict.fromkeys([*before, *now]))
        inner = (differences(before.get(k), now.get(k), f"{key}.{k}" if key else str(k)) for k in keys)
        return [found for part in inner for found in part]
    return [] if before == now else [(key, before, now)]


def _finite_weights(learner: Learner) -> dict[str, Tensor]:
    tensors = dict(learner.state_dict())
    if not optimizer_state.all_finite(tensors):
        bad = [name for name, tensor in tensors.items() if not optimizer_state.all_finite({name: tensor})]
        raise RunError(
            f"The weights are no longer finite numbers ({bad[0]} and {len(bad) - 1} more), so they were not saved; the "
            "last good checkpoint is kept. Lower training.lr or set training.clip_norm=1, and start again."
        )
    return tensors
