"""An answer that is not a finite number is no answer: found here, before any class is read from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pams_mil.errors import NotFiniteError
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.mil_model import LevelOutput


def refuse_non_finite(batch: BagBatch, outputs: Sequence[LevelOutput], probabilities: Sequence[Tensor]) -> None:
    """Raise an error that names the first bag with a logit, probability or attention that is NaN or infinite."""
    for output, level in zip(outputs, probabilities, strict=True):
        found = {"logits": output.logits, "probabilities": level, "attention": output.attention}
        for what, values in found.items():
            if values is None or all_finite(values):
                continue
            parts = batch.split(values) if what == "attention" else list(values)
            index = next(number for number, part in enumerate(parts) if not all_finite(part))
            raise NotFiniteError(
                f"Slide {batch.key(index) or index!r} has no prediction: the model's {what} for its "
                f"{batch.sizes[index]} instances are not finite numbers. Look at its features with 'pams check'; if "
                "other slides fail too, the fault is in the model."
            )


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite.

    >>> all_finite(torch.tensor([1.0])), all_finite(torch.tensor([1.0, float("nan")]))
    (True, False)
    """
    return bool(torch.isfinite(values).all())
