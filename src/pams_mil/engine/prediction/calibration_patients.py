"""Which patients may calibrate a run: those that neither trained it nor chose its epoch, and what else must be said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pams_mil.data.manifest.manifest import PARTS
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.prediction.predict import predict, predict_own
from pams_mil.engine.prediction.slide_predictions import SlidePredictions
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.run.trained_slides import TrainedSlides, trained_slides
from pams_mil.engine.training.run_cohort import read_manifest
from pams_mil.errors import CertificateError, PamsError, listing, nearest


@dataclass(frozen=True)
class CalibrationPart:
    """Predictions of calibration patients, why they are not fit to calibrate, and what else to say."""

    found: SlidePredictions
    reservations: tuple[str, ...]
    notes: tuple[str, ...]


def predict_calibration(
    runs: Sequence[Path],
    calibration: str | None = None,
    *,
    features: Path | None = None,
    trusted: bool = False,
    device: str = "auto",
    calibrated: bool = False,
    progress: Callable[[float], None] | None = None,
) -> CalibrationPart:
    """Predict the calibration patients of runs, which are averaged.

    Args:
        runs: Run folders.
        calibration: A split of the first run's table, or another table; None: `calib` where the table has one, else
            `val` where no run chose its epoch by it.
        features: Feature files of another table.
        trusted: As in `load_run`.
        device: "auto", "cpu", ...
        calibrated: Use calibrated probabilities; the patients that fitted them cannot certify them too.
        progress: Called with the share done.
    """
    configs = {run: RunFolder(run).config() if RunFolder(run).exists() else None for run in runs}
    first = configs[runs[0]]
    options: dict[str, Any] = {"trusted": trusted, "device": device, "calibrated": calibrated, "progress": progress}
    if calibration is None or calibration in PARTS:
        if first is None:
            raise CertificateError(
                f"{runs[0]} is no run folder, so it has no table of its own; name one with --calibration TABLE.csv."
            )
        split = calibration or _default_split(first, [config for config in configs.values() if config is not None])
        found = predict_own(runs, first.data, split=split, features=features, **options)
    elif Path(calibration).is_file():
        found = predict(runs, calibration, features=features, **options)
    else:
        raise CertificateError(
            f"--calibration must be a split ({listing(PARTS)}) or a table of slides, found {calibration!r}."
            f"{nearest(calibration, PARTS)}"
        )
    reservations = [why for run, config in configs.items() for why in _reservations(run, config, found, calibrated)]
    notes = ["Holds for calibrated probabilities: predict with --calibrated."] if calibrated else []
    if found.patient_ids == found.names:
        notes.append("Every slide counts as its own patient; slides of one patient would invalidate the guarantee.")
    return CalibrationPart(found, tuple(reservations), tuple(notes))


def refuse_reservations(reservations: Sequence[str], *, allowed: bool) -> None:
    """Stop unless the user said that it need not be a guarantee."""
    if reservations and not allowed:
        raise CertificateError(
            f"{' '.join(reservations)} Such patients look better than new ones will. Keep patients for "
            "calibration with 'pams split --calib-share 0.2', or train with training.select=last and calibrate on val; "
            "or accept a page that says 'not a guarantee', with --not-a-guarantee."
        )


def _default_split(config: RunConfig, configs: Sequence[RunConfig]) -> str:
    present = {record.split for record in read_manifest(config.data)}
    if "calib" in present:
        return "calib"
    chosen = sorted({one.training.select for one in configs} - {"last"})
    if chosen:
        raise CertificateError(
            f"{config.data.manifest} has no part 'calib', and the part 'val' chose the epoch (training.select is "
            f"{listing(chosen)}), so no patients are left to calibrate. Make a part with 'pams split "
            "--calib-share 0.2' and train again, or train with training.select=last; or name patients with "
            "--calibration."
        )
    return "val"


def _reservations(run: Path, config: RunConfig | None, found: SlidePredictions, calibrated: bool) -> list[str]:
    if config is None:
        return [f"It cannot be checked which patients trained {run}: it has no config.yaml."]
    try:
        seen = trained_slides(Path(run))
    except PamsError as error:
        return [f"It cannot be checked which patients trained {run}: {error}"]
    reasons = []
    used = [("train", f"trained {run}")]
    if config.training.select != "last":
        used.append(("val", f"chose the epoch of {run} (training.select={config.training.select})"))
    # The last epoch is taken whatever val says, so val is untouched, unless the calibration was fitted on it.
    elif calibrated:
        used.append(("val", f"fitted the calibration of {run}"))
    for split, what in used:
        known = _shared(seen, split, found)
        if known:
            reasons.append(f"{len(known)} of the calibration patients {what}: {listing(known, most=3)}.")
    return reasons


def _shared(seen: TrainedSlides, split: str, found: SlidePredictions) -> list[str]:
    """Patients, and slides under any other patient, that the run has seen in a part."""
    patients, slides = set(seen.patients(split)), set(seen.slides(split))
    return list(
        dict.fromkeys(
            patient
            for slide, patient in zip(found.names, found.patient_ids, strict=True)
            if patient in patients or slide in slides
        )
    )
