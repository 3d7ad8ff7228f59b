"""What a model's own training must do: move every one of its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tests.engine.cohort import run, settings

from pams_mil.engine.run import checkpoint
from pams_mil.engine.training import train

WIDTHS: dict[str, dict[str, Any]] = {
    "abmil": {"attention_features": 4},
    "clam_mb": {"attention_features": 4},
    "clam_sb": {"attention_features": 4},
    "dtfd": {"attention_features": 4, "pseudo_bags": 2},
    "priority": {"attention_features": 4},
    "transmil": {"landmarks": 4},
}


def check_training_moves_everything(
    cohort: Path, out: Path, name: str, *, pooling: str | None = None, **changes: Any
) -> None:
    """Train with the real loop, without weight decay, and refuse a parameter that is what it was before.

    Weight decay would move parameters that no loss reaches. A constant added to all scores leaves a softmax as it is,
    so the bias behind the scores has no gradient by right.
    """
    before: dict[str, torch.Tensor] = {}

    def watched(fabric, learner, *rest):
        before.update({key: value.detach().clone() for key, value in learner.named_parameters()})
        return original(fabric, learner, *rest)

    original = train.fit
    model = {
        "name": name,
        "embedding_features": 16,
        **WIDTHS.get(name, {}),
        **({"pooling": pooling} if pooling else {}),
    }
    with patch.object(train, "fit", watched):
        run(settings(cohort, model=model, epochs=1, weight_decay=0.0, **changes), out)
    after = checkpoint.load(out / "last.safetensors").tensors
    still = [key for key, value in before.items() if torch.equal(value, after[key])]
    still = [key for key in still if not key.endswith("outer.bias")]
    assert before
    assert not still, f"training never moves {still}"
