"""Certificates of runs: the patients that calibrate one, the runs that it holds for, and the folder that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pams_mil import atomic
from pams_mil.data import tables
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.manifest.manifest import PARTS
from pams_mil.engine.prediction.predict import LoadedRun, identity_of, load_runs
from pams_mil.engine.prediction.scored_runs import out_of_fold, predict_to_score, refuse_other_classes
from pams_mil.engine.prediction.slide_predictions import SlidePredictions
from pams_mil.engine.run.cv_folder import CrossValidationFolder, model_names
from pams_mil.engine.training.run_cohort import read_manifest
from pams_mil.errors import CertificateError, ConfigError, listing, nearest
from pams_mil.evaluate.certify import Certificate
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy

CERTIFICATE = "certificate"


def predict_calibration(runs: Sequence[LoadedRun], calibration: str | None = None, **options: Any) -> SlidePredictions:
    """Predict the calibration patients of runs, which are averaged.

    `calibration` is a split of the first run's table, or another table, of which the split `calib` is taken where it
    has one; None: `calib` where the run's table has one, else `val` where no run chose its epoch by it. `options` are
    those of `predict_to_score`; patients that fitted the probability calibration cannot certify it too.
    """
    if calibration is not None and calibration not in PARTS:
        if not Path(calibration).is_file():
            raise CertificateError(
                f"--calibration must be a split ({listing(PARTS)}) or a table of slides, found {calibration!r}."
                f"{nearest(calibration, PARTS)}"
            )
        return predict_to_score(runs, table=Path(calibration), default="calib", **options)
    if not runs[0].folder.exists():
        raise CertificateError(
            f"{runs[0].path} is not a run folder, so it has no table of its own; name one with --calibration TABLE.csv."
        )
    return predict_to_score(runs, split=calibration or _default_split(runs), **options)


def out_of_fold_set(path: Path) -> Predictions | None:
    """The out-of-fold predictions of a cross-validation whose table keeps no patients for calibration; else None."""
    folder = CrossValidationFolder(path)
    if not folder.exists() or "calib" in tables.read_table(folder.manifest_file)["fold_0"]:
        return None
    return out_of_fold(folder, path.name)


def is_table(path: Path) -> bool:
    """Whether a path names a table of predictions, and not a run."""
    return path.suffix.lower() in (".csv", ".tsv", ".txt", ".parquet", ".xlsx") and not path.is_dir()


def calibration_set(
    paths: Sequence[Path],
    calibration: str | None,
    stated: ClassHierarchy | None,
    *,
    source: Source,
    by: str | None = None,
    trusted: bool = False,
    device: str = "auto",
    **options: Any,
) -> tuple[Predictions, list[str]]:
    """The calibration patients, read from a table or predicted by runs, and what their certificate holds for.

    Runs of other classes than `stated` are refused, and its orders are certified. A table is read as `source` says,
    with the column of the subgroups `by`; `options` are those of `predict_calibration`.
    """
    if len(paths) == 1 and is_table(paths[0]):
        return _table_set(paths[0], calibration, stated, source, by), []
    model = out_of_fold_set(paths[0]) if calibration is None and len(paths) == 1 else None
    notes: list[str] = []
    if model is not None:
        if options["calibrated"]:
            raise ConfigError("Out-of-fold predictions are not calibrated; leave --calibrated out.")
        refuse_other_classes({paths[0]: model.hierarchy}, stated)
    else:
        runs = load_runs(paths, trusted=trusted, device=device)
        refuse_other_classes({run.path: run.spec.hierarchy for run in runs}, stated)
        model = predict_calibration(runs, calibration, device=device, **options).labeled(runs[0].path.name)
        notes += fold_notes(paths, len(runs))
        notes += ["Holds for calibrated probabilities: predict with --calibrated."] if options["calibrated"] else []
    return model if stated is None else model.with_orders(stated), notes


def _table_set(
    path: Path, split: str | None, stated: ClassHierarchy | None, source: Source, by: str | None
) -> Predictions:
    if stated is None:
        raise ConfigError("A table of predictions needs --classes: a preset (see 'pams classes') or a class file.")
    has_splits = "split" in next(iter(tables.read_chunks(path, rows=1)))
    source = replace(source, tags=(*(["split"] if has_splits else []), *([by] if by else [])))
    model = read_predictions(path, stated, source, name=model_names([path])[0])
    if split is not None and not has_splits:
        raise ConfigError(f"{path} has no column 'split', so its rows of {split!r} cannot be chosen.")
    return model if split is None else model.tagged("split", split)


def subgroups_of(model: Predictions, by: str) -> Sequence[str]:
    """The subgroup of every slide, from the column `by`; refused where a slide would be in none."""
    if by not in model.tags:
        raise ConfigError(
            f"--by must be a column of the table, one of {listing(sorted(model.tags))}, found {by!r}."
            f"{nearest(by, list(model.tags))}"
        )
    groups = model.tags[by]
    if empty := sum(not group for group in groups):
        raise ConfigError(
            f"{empty} of {len(groups)} slides have no {by!r}, so no certificate would hold for them. Fill the column "
            "in, or leave these slides out."
        )
    return groups


def fold_notes(paths: Sequence[Path], networks: int) -> list[str]:
    """What a certificate of one fold of a committee holds for; empty for other models.

    The fold's networks are fixed before its validation patients are looked at, who are then exchangeable with the next
    patient. Of several certificates the best one is no longer fixed before.
    """
    folder = CrossValidationFolder.at(paths[0]) if len(paths) == 1 else None
    if folder is None or folder.fold is None:
        return []
    return [
        f"Holds for the mean of the {networks} networks of fold {folder.fold} of {folder.path.name}, and for no other "
        f"model: predict with {folder.path.name}/{paths[0].name}. The mean of all folds has seen the calibration "
        "patients. Choose the fold before you see its certificate; the best of several would be chosen by these "
        "patients."
    ]


def certificate_for(path: Path, runs: Sequence[LoadedRun], *, calibrated: bool = False) -> Certificate:
    """A certificate, refused before anything is predicted where it was made for other weights or classes."""
    certificate = Certificate.load(path)
    _refuse_other_runs(certificate, runs, calibrated=calibrated)
    return certificate


def _refuse_other_runs(certificate: Certificate, runs: Sequence[LoadedRun], *, calibrated: bool) -> None:
    for run in runs:
        certificate.refuse_other_classes(run.spec.hierarchy, str(run.path))
    certificate.refuse_other_weights(tuple(identity_of(run, calibrated=calibrated) for run in runs))


def own_certificates(runs: Sequence[LoadedRun], folder: Path) -> tuple[dict[str, Certificate], dict[str, str]]:
    """The certificates in the folder of runs by file name, the strictest first, and why others do not hold for them."""
    kept: dict[str, Certificate] = {}
    refused: dict[str, str] = {}
    for path in sorted(folder.glob(f"{CERTIFICATE}*.json"), key=lambda path: (len(path.name), path.name)):
        try:
            certificate = Certificate.load(path)
            _refuse_other_runs(certificate, runs, calibrated=any("+" in weights for weights in certificate.weights))
            kept[path.name] = certificate
        except CertificateError as error:
            refused[path.name] = str(error)
    return kept, refused


def write_certificate(certificate: Certificate, page: str, folder: Path) -> Path:
    """Write a certificate after its page and return its path.

    `certificate.json` is the strictest one for these weights. One that guarantees something else lies beside it, named
    after its bounds; a stricter one takes its name, and the laxer one stays under a name of its own.
    """
    path = folder / f"{CERTIFICATE}.json"
    before = Certificate.load(path) if path.exists() else None
    if before is not None and before.weights == certificate.weights:
        if not certificate.covers(before):
            path = folder / f"{CERTIFICATE}-{_bounds_in_short(certificate)}.json"
        elif not before.covers(certificate):
            for old in filter(Path.exists, (path.with_suffix(".html"), path)):
                old.replace(old.with_stem(f"{CERTIFICATE}-{_bounds_in_short(before)}"))
    # The JSON last: it is what others look for, and then nothing of it is missing.
    atomic.write_text(path.with_suffix(".html"), page)
    certificate.write(path)
    return path


def _bounds_in_short(certificate: Certificate) -> str:
    """The bounds of a certificate as a part of a file name, e.g. `alpha0.3-Malignant0.1-confidence0.9-2orders`."""
    names = (("findings" if bound.findings else bound.at or "alpha", bound.alpha) for bound in certificate.bounds)
    parts = [f"{name}{alpha:g}" for name, alpha in dict.fromkeys(names)]
    confidence, orders = certificate.guarantee.confidence, len(certificate.hierarchy.orders)
    parts += [] if confidence is None else [f"confidence{confidence:g}"]
    parts += ["slides"] if certificate.unit == "slide" else []
    return FileNames()["-".join([*parts, *([f"{orders}orders"] if orders > 1 else [])])]


def _default_split(runs: Sequence[LoadedRun]) -> str:
    configs = [run.folder.config() for run in runs if run.folder.exists()]
    data = configs[0].data
    if any(record.split == "calib" for record in read_manifest(data, runs[0].spec.hierarchy)):
        return "calib"
    chosen = sorted({one.training.select for one in configs} - {"last"})
    if chosen:
        raise CertificateError(
            f"{data.manifest} has no split 'calib', and the split 'val' chose the epoch (training.select is "
            f"{listing(chosen)}), so no patients are left to calibrate. Make one with 'pams split --calib-share 0.2' "
            "and train again, or train with training.select=last; or name patients with --calibration."
        )
    return "val"
