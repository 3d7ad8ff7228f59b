"""Inference: the one place where trained learners see bags.

Validation, prediction, calibration, the viewer's heat and the evidence of tiles use `infer` or its single pass. Small
bags go through one pass together, and one bad bag never stops the rest. A probability may differ in its last bits with
batch composition, since the order of a sum follows the length of what is summed. The same bags in the same order give
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch

from pams_mil.data.bags.dataset import BagSample
from pams_mil.engine.learner import Learner, Prediction
from pams_mil.errors import PamsError
from pams_mil.models.core.batch import PACKED_BAGS, BagBatch, in_packs
from pams_mil.models.core.inputs import explain_out_of_memory


class Bags(Protocol):
    """Bags by their number: a `BagDataset`, or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> BagSample: ...


class BagOutcome(NamedTuple):
    """A bag by its number, and what each learner predicts of it, or why there is no prediction."""

    number: int
    sample: BagSample | None
    outcome: list[Prediction] | PamsError


def infer(
    learners: Sequence[Learner],
    bags: Bags,
    *,
    numbers: Iterable[int] | None = None,
    attention: bool = False,
    losses: bool = False,
    most: int | None = None,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[BagOutcome]:
    """One outcome per bag (or per one of `numbers`), in their order but for bags that cannot be read, which come last.

    Learners must be in evaluation mode. Bags are read as their pass is due, and not all at once; `most` of them share a
    pass, by default `PACKED_BAGS`. For `losses`, those of a pass, every bag must be labeled.
    """
    unreadable: list[BagOutcome] = []

    def readable() -> Iterator[tuple[int, BagSample]]:
        for number in range(len(bags)) if numbers is None else numbers:
            try:
                yield number, bags[number]
            except PamsError as error:
                unreadable.append(BagOutcome(number, None, error))

    def of_pack(pack: Sequence[tuple[int, BagSample]]) -> Iterator[BagOutcome]:
        samples = [sample for _, sample in pack]
        batch = BagBatch.pack([sample.features for sample in samples], [sample.slide_id for sample in samples])
        labels = [sample.target for sample in samples] if losses else None
        findings = [sample.findings for sample in samples]
        try:
            with autocast():
                predictions = infer_batch(learners, batch, attention=attention, targets=labels, findings=findings)
        except PamsError as error:
            if len(pack) == 1:
                yield BagOutcome(*pack[0], error)
                return
            for one in pack:  # each alone, to tell the bad one from its neighbors
                yield from of_pack([one])
            return
        by_bag = [prediction.apart(batch) for prediction in predictions]
        for position, (number, sample) in enumerate(pack):
            yield BagOutcome(number, sample, [prediction[position] for prediction in by_bag])

    # All learners see the same packs, so one that cannot take several bags decides for all.
    most = (most or PACKED_BAGS) if all(learner.packs for learner in learners) else 1
    for pack in in_packs(readable(), lambda one: len(one[1].features), most=most):
        yield from of_pack(pack)
    yield from unreadable


def infer_batch(
    learners: Sequence[Learner],
    batch: BagBatch,
    *,
    attention: bool = False,
    targets: Sequence[int] | None = None,
    findings: Sequence[Sequence[int]] = (),
) -> list[Prediction]:
    """What each learner, in evaluation mode, predicts of the bags of one pass, on the device where the learner is.

    With `targets`, the finest class of every bag, also the loss; `findings` are what was found in each bag, if several.

    Raises:
        NotFiniteError: an answer that is not a finite number.
        RunError: memory ran out.
    """
    predictions, placed = [], batch
    with explain_out_of_memory(" and ".join(dict.fromkeys(batch.keys)), len(batch.features)):
        for learner in learners:
            labels = None if targets is None else torch.tensor(targets, device=learner.device)
            placed = placed.to(learner.device)
            predictions.append(learner.predict(placed, attention=attention, targets=labels, findings=findings))
    return predictions
