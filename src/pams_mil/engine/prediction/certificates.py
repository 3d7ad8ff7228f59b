"""Certificates of runs: the patients that calibrate one, the runs that it holds for, and the folder that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pams_mil import atomic
from pams_mil.data.manifest.manifest import PARTS
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.prediction.predict import LoadedRun, identity_of, predict, predict_own
from pams_mil.engine.prediction.prediction_table import read_for_prediction
from pams_mil.engine.prediction.slide_predictions import SlidePredictions
from pams_mil.engine.training.run_cohort import read_manifest
from pams_mil.errors import CertificateError, OutputError, listing, nearest
from pams_mil.evaluate.certify import Certificate, OrderCertificate, load_certificate
from pams_mil.hierarchy import ClassHierarchy


def predict_calibration(
    runs: Sequence[LoadedRun],
    calibration: str | None = None,
    *,
    features: Path | None = None,
    device: str = "auto",
    calibrated: bool = False,
    patients_are_slides: bool = False,
    progress: Callable[[float], None] | None = None,
) -> SlidePredictions:
    """Predict the calibration patients of runs, which are averaged.

    Args:
        runs: The runs.
        calibration: A split of the first run's table, or another table, of which the split `calib` is taken where it
            has one; None: `calib` where the run's table has one, else `val` where no run chose its epoch by it.
        features: Feature files of another table.
        device: "auto", "cpu", ...
        calibrated: Use calibrated probabilities; the patients that fitted them cannot certify them too.
        patients_are_slides: Each slide of a table without patients is a patient.
        progress: Called with the share done.
    """
    configs = [run.folder.config() for run in runs if run.folder.exists()]
    options: dict[str, Any] = {"device": device, "calibrated": calibrated, "progress": progress}
    if calibration is None or calibration in PARTS:
        if not runs[0].folder.exists():
            raise CertificateError(
                f"{runs[0].path} is not a run folder, so it has no table of its own; name one with --calibration "
                "TABLE.csv."
            )
        split = calibration or _default_split(configs[0], configs, runs[0].spec.hierarchy)
        return predict_own(runs, configs[0].data, split=split, features=features, **options)
    if Path(calibration).is_file():
        records = read_for_prediction(calibration, runs[0].spec.hierarchy, labels=False).manifest.records
        marked = any(record.split == "calib" for record in records)
        options |= {"patients_are_slides": patients_are_slides, "split": "calib" if marked else None}
        return predict(runs, calibration, features=features, **options)
    raise CertificateError(
        f"--calibration must be a split ({listing(PARTS)}) or a table of slides, found {calibration!r}."
        f"{nearest(calibration, PARTS)}"
    )


def certificate_for(
    path: Path, runs: Sequence[LoadedRun], *, calibrated: bool = False
) -> Certificate | OrderCertificate:
    """A certificate, refused before anything is predicted where it was made for other weights or classes."""
    certificate = load_certificate(path)
    _refuse_other_runs(certificate, runs, calibrated=calibrated)
    return certificate


def _refuse_other_runs(
    certificate: Certificate | OrderCertificate, runs: Sequence[LoadedRun], *, calibrated: bool
) -> None:
    for run in runs:
        certificate.refuse_other_classes(run.spec.hierarchy, str(run.path))
    certificate.refuse_other_weights(tuple(identity_of(run, calibrated=calibrated) for run in runs))


def own_certificate(runs: Sequence[LoadedRun], folder: Path) -> Certificate | None:
    """The certificate in the folder of runs, None without one; refused where it was made for other weights."""
    path = folder / "certificate.json"
    if not path.exists():
        return None
    certificate = Certificate.load(path)
    _refuse_other_runs(certificate, runs, calibrated=any("+" in weights for weights in certificate.weights))
    return certificate


def write_certificate(certificate: Certificate | OrderCertificate, page: str | None, folder: Path) -> Path:
    """Write certificate.json, or order-certificate.json of several orders, after the page where there is one.

    A certificate that guarantees what this one does not is never replaced.

    Raises:
        OutputError: the folder holds a certificate of the same weights that this one does not cover.
    """
    path = folder / ("certificate.json" if isinstance(certificate, Certificate) else "order-certificate.json")
    before = load_certificate(path) if path.exists() else None
    if before is not None and before.weights == certificate.weights and not certificate.covers(before):
        raise OutputError(
            f"{path} guarantees what the new certificate does not: {' '.join(before.bound_sentences)} It is kept. "
            "Write the new one to another folder with --out, or move the old one away."
        )
    # The JSON last: it is what others look for, and then nothing of it is missing.
    if page is not None:
        atomic.write_text(folder / "certificate.html", page)
    certificate.write(path)
    return path


def _default_split(config: RunConfig, configs: Sequence[RunConfig], hierarchy: ClassHierarchy) -> str:
    present = {record.split for record in read_manifest(config.data, hierarchy)}
    if "calib" in present:
        return "calib"
    chosen = sorted({one.training.select for one in configs} - {"last"})
    if chosen:
        raise CertificateError(
            f"{config.data.manifest} has no split 'calib', and the split 'val' chose the epoch (training.select is "
            f"{listing(chosen)}), so no patients are left to calibrate. Make one with 'pams split --calib-share 0.2' "
            "and train again, or train with training.select=last; or name patients with --calibration."
        )
    return "val"
