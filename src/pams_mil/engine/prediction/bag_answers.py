"""What trained models say about bags: small bags in one pass together, and one bad bag never stops the rest.

A probability may differ in its last bits with the company that its bag has in a pass, since the order of a sum follows
the length of what is summed. The same bags in the same order give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pams_mil.data.bags.dataset import BagDataset, BagSample
from pams_mil.engine.learner import Learner, Prediction
from pams_mil.errors import PamsError
from pams_mil.models.core.batch import PACKED_BAGS, BagBatch, in_packs
from pams_mil.models.core.limits import explain_out_of_memory


class BagAnswer(NamedTuple):
    """A bag by its number in the dataset, and what each learner says about it, or why there is nothing to say."""

    number: int
    sample: BagSample | None
    made: list[Prediction] | PamsError


def answers(
    learners: Sequence[Learner], bags: BagDataset, device: str, *, attention: bool = False
) -> Iterator[BagAnswer]:
    """One answer per bag of a dataset, in its order but for bags that cannot be read, which come last."""
    unreadable: list[BagAnswer] = []
    # All learners see the same packs, so one that cannot take several bags decides for all.
    most = PACKED_BAGS if all(learner.packs for learner in learners) else 1
    for pack in in_packs(_readable(bags, unreadable), lambda one: len(one[1].features), most=most):
        yield from _of_pack(learners, pack, device, attention)
    yield from unreadable


def _readable(bags: BagDataset, unreadable: list[BagAnswer]) -> Iterator[tuple[int, BagSample]]:
    for index in range(len(bags)):
        try:
            yield index, bags[index]
        except PamsError as error:
            unreadable.append(BagAnswer(index, None, error))


def _of_pack(
    learners: Sequence[Learner], pack: Sequence[tuple[int, BagSample]], device: str, attention: bool
) -> Iterator[BagAnswer]:
    batch = BagBatch.pack([sample.features for _, sample in pack], [sample.slide_id for _, sample in pack])
    try:
        with explain_out_of_memory(" and ".join(batch.keys), len(batch.features)):
            made = [learner.predict(batch.to(device), attention=attention) for learner in learners]
    except PamsError as error:
        if len(pack) == 1:
            yield BagAnswer(*pack[0], error)
            return
        for one in pack:  # each alone, to tell the bad one from its neighbors
            yield from _of_pack(learners, [one], device, attention)
        return
    apart = [one.apart(batch) for one in made]
    for number, (index, sample) in enumerate(pack):
        yield BagAnswer(index, sample, [one[number] for one in apart])
