"""A run's probability calibration as it is stored beside its weights.

It says from which slides it was fitted, belongs to one set of weights, and is refused for any other, and when its own
content was changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pams_mil import __version__, atomic
from pams_mil.data.exposure import Exposure
from pams_mil.digests import digest, sealed, unsealed
from pams_mil.engine.run.folder import CALIBRATION, RunFolder
from pams_mil.errors import CheckpointError, RunError, stored_format
from pams_mil.evaluate.decisions.probability_calibration import ProbabilityCalibration

FORMAT = "pams-calibration"
VERSION = 1


@dataclass(frozen=True, eq=False)
class CalibratedLevel:
    """One level: the fitted numbers, the validation slides of each class, and scores before and after.

    `after` comes from fits that did not see the patient who is scored; None when the patients are too few for that.
    """

    name: str
    calibration: ProbabilityCalibration
    slides: Mapping[str, int]
    before: Mapping[str, float]
    after: Mapping[str, float] | None


@dataclass(frozen=True, eq=False)
class RunCalibration:
    """The probability calibration of every trained level of a run.

    Attributes:
        levels: Coarsest first.
        weights: Digest of the weights it is for.
        hierarchy: Digest of the classes.
        validation: The slides it was fitted on: a "digest" of them with patients and labels, how many "slides" and
            "patients" they are.
        exposure: These patients, by digest.
        notes: What to know about the fit.
    """

    levels: tuple[CalibratedLevel, ...]
    weights: str
    hierarchy: str
    validation: Mapping[str, Any]
    exposure: Exposure
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values with a digest of all of them."""
        levels = {
            one.name: {
                **atomic.plain(one.calibration), "slides": one.slides,
                "scores": {"before": one.before, "after": one.after},
            }
            for one in self.levels
        }  # fmt: skip
        # In the order of the file.
        facts = {name: getattr(self, name) for name in ("weights", "hierarchy", "validation")}
        content = {"pams_mil": __version__, **facts, "levels": levels, "exposure": self.exposure, "notes": self.notes}
        return sealed(atomic.plain(content), FORMAT, VERSION)

    @property
    def identity(self) -> str:
        """32 hex digits of what is applied, whoever fitted it and when."""
        return digest(atomic.plain({level.name: level.calibration for level in self.levels}))

    def write(self, folder: Path) -> Path:
        """Write `calibration.json` into a run folder."""
        atomic.write_json(folder / CALIBRATION, self.to_json())
        return folder / CALIBRATION

    def apply(self, probabilities: Sequence[Tensor]) -> list[Tensor]:
        """Calibrated probabilities [b, c] of every trained level."""
        return [
            torch.from_numpy(level.calibration(raw.numpy()))
            for level, raw in zip(self.levels, probabilities, strict=True)
        ]


def read_calibration(run: Path) -> RunCalibration:
    """The probability calibration of a run folder, an exported folder, or of the folder that a checkpoint lies in."""
    path = RunFolder.at(run).path / CALIBRATION
    try:
        content = unsealed(json.loads(path.read_text("utf-8")), FORMAT, VERSION)
    except FileNotFoundError:
        raise RunError(
            f"{run} has no probability calibration: there is no {path}. Fit it on the validation slides with "
            f"'pams calibrate {run}'."
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be used: {error}. Fit it again with 'pams calibrate'.") from error
    with stored_format(path, CheckpointError, "Fit it again with 'pams calibrate'."):
        levels = (
            CalibratedLevel(
                name, ProbabilityCalibration.from_json(level), dict(level["slides"]), dict(level["scores"]["before"]),
                level["scores"]["after"],
            )
            for name, level in content["levels"].items()
        )  # fmt: skip
        validation = {key: content["validation"][key] for key in ("digest", "slides", "patients")}
        exposure = Exposure.from_json(content["exposure"], f"The exposure in {path}")
        return RunCalibration(
            tuple(levels), content["weights"], content["hierarchy"], validation, exposure, tuple(content["notes"])
        )
