"""The training loop, top to bottom: a few bags per step, validation after every epoch, a checkpoint after that.

There is no way in for the test split: `fit` takes training and validation bags and nothing else.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

import torch

from pams_mil.data.bags.dataset import BagDataset, BagSample
from pams_mil.engine.config.run_config import RunConfig, TrainingConfig
from pams_mil.engine.learner import Learner
from pams_mil.engine.training.observers import Loggers, StopRequest, Watch
from pams_mil.engine.training.one_process import Processes
from pams_mil.engine.training.optimize import (
    AveragedWeights,
    clip_gradients,
    make_optimizer,
    set_learning_rate,
)
from pams_mil.engine.training.run_checkpoints import RunCheckpoints, RunProgress
from pams_mil.engine.training.training_bags import BagLoader, TrainingBags, packed, rows_of
from pams_mil.engine.training.validate import validate
from pams_mil.errors import RunError, RunInterruptedError
from pams_mil.models.core.batch import in_packs
from pams_mil.models.core.inputs import explain_out_of_memory


@dataclass(frozen=True)
class LoopContext:
    """What the loop needs besides model and bags."""

    config: RunConfig
    checkpoints: RunCheckpoints
    watch: Watch
    stop: StopRequest
    loggers: Loggers


def fit(fabric: Processes, learner: Learner, train: TrainingBags, val: BagDataset, context: LoopContext) -> RunProgress:
    """Train until the epochs are done or patience runs out; resume where the last checkpoint was."""
    config, checkpoints, watch = context.config, context.checkpoints, context.watch
    training = config.training
    module, optimizer = fabric.setup(learner, make_optimizer(learner, training))
    average = None if training.average is None else AveragedWeights(learner, epochs=training.average)
    progress = checkpoints.restore(learner, optimizer, average)
    context.loggers.open(progress.epoch)
    loader = BagLoader(train, workers=config.compute.workers, pin_memory=fabric.device.type == "cuda")
    if progress.epoch < training.epochs and progress.is_over(training.epochs, training.patience):
        watch.noted(
            f"The run stopped after {progress.epoch} epochs, since the last {progress.waited} brought no better "
            f"{training.select}; a larger training.patience, or null, lets it go on."
        )
    while not progress.is_over(training.epochs, training.patience):
        epoch = progress.epoch
        rate = set_learning_rate(optimizer, training, epoch)
        # A pure function of the epoch, so a run that was stopped within it finds its place by counting.
        keys = train.epoch_keys(epoch, rank=fabric.global_rank, world_size=fabric.world_size)
        watch.epoch_started(epoch, training.epochs, len(keys), progress.step)
        bags = loader.bags(keys[progress.step :])
        _train_epoch(fabric, learner, module, optimizer, average, bags, len(keys), progress, context)
        # Inside, the learner has the averaged weights: what is validated is what is saved as best.
        with nullcontext() if average is None else average.in_use():
            scores = validate(fabric, learner, val)
            row = _row(epoch, rate, progress, scores)
            score = float(epoch + 1) if training.select == "last" else scores[training.select]
            best = progress.close_epoch(row, score, training.select)
            if best and fabric.is_global_zero:
                checkpoints.save_best(learner, progress, training.select)
        if fabric.is_global_zero:
            # After best weights and log: a kill in between repeats this epoch, bit for bit, and writes the same again.
            # The other way round, a kill after the last epoch's would leave a log that nobody completes.
            checkpoints.write_log(progress)
            checkpoints.save_last(learner, optimizer, progress, average)
            context.loggers.log(progress.history[-1])
        watch.epoch_finished(progress.history[-1], best=best)
        for note in first_epoch_notes(row) if epoch == 0 and fabric.is_global_zero else ():
            watch.noted(note)
        # A signal to one process stops all of them.
        asked = fabric.all_reduce(torch.tensor(float(context.stop.requested), device=fabric.device), reduce_op="sum")
        if torch.as_tensor(asked) > 0 and not progress.is_over(training.epochs, training.patience):
            raise RunInterruptedError(
                f"Stopped after epoch {progress.epoch}; everything is saved.", context.stop.signal
            )
    return progress


def _train_epoch(
    fabric: Processes, learner: Learner, module: Any, optimizer: Any, average: AveragedWeights | None,
    bags: Iterator[BagSample], total: int, progress: RunProgress, context: LoopContext,
) -> None:  # fmt: skip
    training = context.config.training
    learner.train()
    per_step = training.batch * training.accumulate
    steps_per_epoch = math.ceil(total / per_step)
    saved_at = time.monotonic()
    while progress.step < total:
        # The last step of an epoch may have fewer bags; its gradients are averaged over those that it has.
        group = min(per_step, total - progress.step)
        for pack, values in take_step(fabric, learner, module, optimizer, training, bags, group):
            _refuse_non_finite(values, pack, progress)
            progress.add(values, [bag.counts for bag in pack])
            context.watch.stepped(values, len(pack))
        if average is not None:
            average.update(steps_per_epoch=steps_per_epoch)
        # Only here, between two optimizer steps, is the state complete. Several processes hear a signal at different
        # steps and would have to agree on one; they save after the epoch.
        if progress.step < total and fabric.world_size == 1:
            minutes = (time.monotonic() - saved_at) / 60
            if context.stop.requested or (training.checkpoint_minutes and minutes >= training.checkpoint_minutes):
                context.checkpoints.save_last(learner, optimizer, progress, average)
                saved_at = time.monotonic()
            if context.stop.requested:
                raise RunInterruptedError(
                    f"Stopped in epoch {progress.epoch + 1} after {progress.step} bags; all is saved.",
                    context.stop.signal,
                )


def take_step(
    fabric: Processes, learner: Learner, module: Any, optimizer: Any, training: TrainingConfig,
    bags: Iterator[BagSample], group: int,
) -> Iterator[tuple[list[BagSample], dict[str, float]]]:  # fmt: skip
    """One optimizer step on the next `group` bags; the bags of every pass, and the mean of every term over them."""
    # Bags that may not share a pass still share an optimizer step: their gradients are added up.
    most = training.batch if learner.packs else 1
    waiting = group
    for pack in in_packs(islice(bags, group), rows_of, most=most):
        waiting -= len(pack)
        with explain_out_of_memory(_names(pack), sum(map(rows_of, pack))):
            values = add_gradients(fabric, module, pack, of=group, last=not waiting)
        yield pack, values
    clip_gradients(fabric, learner, optimizer, training)
    optimizer.step()
    optimizer.zero_grad()


def add_gradients(
    fabric: Processes, module: Any, bags: Sequence[BagSample], *, of: int, last: bool = True
) -> dict[str, float]:
    """Add the gradients of bags, out of `of` of an optimizer step; the mean of every term over these bags."""
    # Before every pass: a resumed run draws what it would have drawn, however many passes came before.
    seed_everything(fabric.device, bags[0].seed)
    # Processes exchange gradients once per optimizer step, with its last pass.
    with fabric.no_backward_sync(module, enabled=not last):
        terms = forward(module, bags, fabric.device)
        # Read once, since on a GPU every read waits for it.
        read = torch.stack([value.detach() for value in terms.values()]).tolist()
        values = dict(zip(terms, read, strict=True))
        # Added one by one, so that the order of the sum, and so its last bit, is that of the terms.
        loss = reduce(operator.add, terms.values())
        # Terms are means over these bags; the step wants the mean over all of its bags. A step of one pass is not
        # touched, not even by a division by 1.
        fabric.backward(loss if len(bags) == of else loss / (of / len(bags)))
    return values


def forward(module: Any, bags: Sequence[BagSample], device: torch.device) -> dict[str, torch.Tensor]:
    """The loss terms of bags, each the mean over them."""
    terms: dict[str, torch.Tensor] = module(*packed(bags, device))
    return terms


def _names(bags: Sequence[BagSample]) -> str:
    return " and ".join(bag.name or bag.slide_id for bag in bags)


def seed_everything(device: torch.device, seed: int) -> None:
    """Seed torch's generators for every step: dropout is a function of (seed, epoch, slide), and resumes so."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _refuse_non_finite(values: Mapping[str, float], bags: Sequence[BagSample], progress: RunProgress) -> None:
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        shown = ", ".join(f"{name} = {values[name]}" for name in bad)
        raise RunError(
            f"The loss is not finite on slide {_names(bags)!r} ({sum(map(rows_of, bags))} instances), in epoch "
            f"{progress.epoch + 1} after {progress.step} bags: {shown}. The last good checkpoint is kept. Look at the "
            "slide with 'pams check', lower training.lr, or set training.clip_norm=1."
        )


def _row(epoch: int, rate: float, progress: RunProgress, scores: Mapping[str, float]) -> dict[str, Any]:
    """The log's row: mean loss terms of training, what was done to bags, and validation scores."""
    terms = {name: value / progress.step for name, value in progress.sums.items()}
    counts = dict(progress.counts)
    if counts.get("remixed"):
        # A share of each remixed bag's rows: its mean says more than its sum.
        counts["copied"] /= counts["remixed"]
    row = {"epoch": epoch + 1, "lr": rate, "loss": sum(terms.values())}
    return {**row, **terms, **counts, **{f"val_{name}": value for name, value in scores.items()}}


def first_epoch_notes(row: Mapping[str, Any]) -> list[str]:
    """Notes on what the first epoch did to bags, shown once per run; later epochs are in the log.

    >>> first_epoch_notes({"remixed": 120.0, "degenerate": 3.0})[0][:57]
    'In 3 of 120 remixes so few clusters were occupied that al'
    >>> first_epoch_notes({"remixed": 120.0, "degenerate": 0.0})
    []
    """
    notes = []
    if row.get("degenerate"):
        notes.append(
            f"In {row['degenerate']:.0f} of {row['remixed']:.0f} remixes so few clusters were occupied that all rows "
            "of the more urgent bag were copied and nothing was selected. Use init='quantile', a smaller top_k, or "
            "larger bags; every epoch's count is in metrics.csv."
        )
    if row.get("capped"):
        notes.append(
            f"{row['capped']:.0f} bags had more instances than training.max_instances; each epoch trains on another "
            "random choice of them. Validation and prediction use all."
        )
    return notes
