"""`pams certify`: the smallest cost ratio κ at which at most a share α of urgency is missed, by guarantee."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from pams_mil.cli.console import make_table, output, print_json, print_note, progress_bar, show_reservations
from pams_mil.cli.options import SEEN_PATIENTS, ColumnOptions, PatientsAreSlides
from pams_mil.errors import ConfigError

if TYPE_CHECKING:
    from pams_mil.evaluate.certify import Certificate
    from pams_mil.evaluate.certify.miss_losses import Unit
    from pams_mil.evaluate.predictions.prediction_layouts import Source
    from pams_mil.evaluate.predictions.predictions import Predictions
    from pams_mil.hierarchy import ClassHierarchy

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".xlsx")


def certify(
    paths: list[Path] = typer.Argument(
        ..., metavar="RUN...|PREDICTIONS", help="Run folders, averaged if several; or a table with probabilities."
    ),
    alpha: float | None = typer.Option(None, "--alpha", help="Most missed urgency among all patients, e.g. 0.05."),
    at: list[str] | None = typer.Option(
        None, "--at", help="CLASS=SHARE: of patients at or above it, at most this share called below it. Repeatable."
    ),
    findings: float | None = typer.Option(
        None, "--findings", help="Most missed findings: of a patient's findings, the mean share that is not called."
    ),
    by: str | None = typer.Option(
        None, "--by", help="Column of subgroups, e.g. site: one certificate for each, in certificates/<group>."
    ),
    guarantee: str = typer.Option("mean", "--guarantee", help="mean, or a confidence such as 0.9."),
    unit: str = typer.Option("case", "--unit", help="What is counted: case or slide."),
    calibration: str | None = typer.Option(
        None, "--calibration", help="A split of the run's table, or another table; default: calib, or an unused val."
    ),
    classes: list[str] | None = typer.Option(
        None, "--classes", help="For a table: a preset or a class file. Again: another order, for one guarantee of all."
    ),
    seen_patients: bool = SEEN_PATIENTS,
    patients_are_slides: PatientsAreSlides = False,
    prevalence: list[str] | None = typer.Option(
        None, "--prevalence", help="CLASS=SHARE for every class: re-weight --alpha to these shares. Repeatable."
    ),
    calibrated: bool = typer.Option(False, "--calibrated", help="Calibrated probabilities; see 'pams calibrate'."),
    features: Path | None = typer.Option(None, "--features", help="Feature files of another table."),
    kappa: float | None = typer.Option(
        None, "--kappa", min=0.0, help="Only count the calibration patients at this κ; nothing is written."
    ),
    out: Path | None = typer.Option(None, "--out", help="Folder for certificate.json and .html; default: the run's."),
    json: bool = typer.Option(False, "--json", help="Print the certificate as JSON."),
    columns: ColumnOptions = ColumnOptions(),
    index_order: str | None = typer.Option(None, "--index-order", help="Classes in the order of integer labels."),
    trust_code: bool = typer.Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, ..."),
) -> None:
    """Certify how much urgency is missed at most, or say how many patients that would take.

    Finds the smallest κ (what a missed urgency costs in false alarms) that meets every bound, on average or with a
    confidence, counted in patients that neither trained the model nor chose its epoch. COMMITTEE/fold0 names the
    networks of one fold of a committee: nothing was chosen, so its validation patients can certify them.

    With several --classes, orders of the same classes, one κ meets the bounds of all of them, and the answer is the set
    of their calls. A run that was trained with several orders is certified for all of them.

    Example: pams certify runs/pams-abmil-seed0 --alpha 0.2 --at Malignant=0.1
    """
    from pams_mil.cli.audit_table import parse_labels, repeatable
    from pams_mil.engine.prediction.certificates import write_certificate
    from pams_mil.engine.run.folder import RunFolder
    from pams_mil.evaluate.certify import certify as run_certify
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.certificate_page import certificate_page

    shares, priors = _pairs(at, "--at"), _pairs(prevalence, "--prevalence")
    if alpha is None and not shares and findings is None:
        raise ConfigError(
            "There is nothing to bound: give --alpha 0.05, or --at CLASS=0.05, or both; for sets, --findings 0.1."
        )
    facts: dict[str, Any] = {}
    stated = ClassHierarchy.load(classes) if classes else None
    if len(paths) == 1 and _is_table(paths[0]):
        source = columns.source(index_order=parse_labels(index_order))
        model = _from_table(paths[0], stated, calibration, source, by)
        folder = out
    else:
        if out is None and len(paths) > 1:
            raise ConfigError("The certificate of several runs belongs to none of them; say where with --out.")
        model, facts = _from_runs(
            paths, calibration, stated, trusted=trust_code, features=features, device=device, calibrated=calibrated,
            patients_are_slides=patients_are_slides,
        )  # fmt: skip
        folder = out or RunFolder.at(paths[0]).path
    options: dict[str, Any] = {
        "alpha": alpha, "at": shares, "findings": findings, "guarantee": guarantee, "unit": cast("Unit", unit),
        "prevalence": priors or None, "seen_patients": seen_patients, "patients_are_slides": patients_are_slides,
        **facts,
    }  # fmt: skip
    if by is not None:
        _certify_groups(model, by, options, folder, kappa, json=json)
        return
    certificate = run_certify(model, **options)
    if kappa is not None:
        counts = _counts(certificate, model, kappa)
        print_json(counts) if json else output.print(counts["sentence"], style="bold")
        return
    page = certificate_page(certificate, model, command=repeatable("certify", sys.argv[1:]))
    path = None if folder is None else write_certificate(certificate, page, folder)
    if json:
        print_json(_without_patients(certificate.to_json()))
    else:
        show(certificate)
    if path is not None:
        print_note(f"Certificate: {path}")


def _counts(certificate: Certificate, model: Predictions, kappa: float) -> dict[str, Any]:
    """The calibration patients at a κ, in numbers and in the words of the page."""
    from pams_mil.report.certificate_page import counts_at

    if certificate.hierarchy.other_orders:
        raise ConfigError("--kappa counts calls under one order of the classes; give one order.")
    counts, meets = counts_at(certificate, model, kappa), kappa >= certificate.kappa
    needed = "Meets the bounds." if meets else f"Does not meet the bounds: they need κ = {certificate.kappa:.4g}."
    return {
        "kappa": kappa, "patients": counts.n, "missed": counts.missed, "false_alarms": counts.false_alarms,
        "confusion": counts.cells.tolist(), "meets_bounds": meets,
        "sentence": f"At κ = {kappa:.4g}, {counts.sentence} {needed}",
    }  # fmt: skip


def _certify_groups(
    model: Predictions, by: str, options: dict[str, Any], folder: Path | None, kappa: float | None, *, json: bool
) -> None:
    """Write and print one certificate for every subgroup; all of them or none."""
    from pams_mil.cli.audit_table import repeatable
    from pams_mil.data.bags.filenames import FileNames
    from pams_mil.engine.prediction.certificates import write_certificate
    from pams_mil.errors import listing, nearest
    from pams_mil.evaluate.certify import certify_subgroups
    from pams_mil.report.certificate_page import certificate_page

    if by not in model.tags:
        raise ConfigError(
            f"--by must be a column of the table, one of {listing(sorted(model.tags))}, found {by!r}."
            f"{nearest(by, list(model.tags))}"
        )
    groups = model.tags[by]
    empty = sum(not group for group in groups)
    if empty:
        raise ConfigError(
            f"{empty} of {len(groups)} slides have no {by!r}, so no certificate would hold for them. Fill the column "
            "in, or leave these slides out."
        )
    certificates = certify_subgroups(model, groups, **options)
    if kappa is not None:
        counts = {group: _counts(one, model.tagged(by, group), kappa) for group, one in certificates.items()}
        if json:
            print_json({"by": by, "groups": counts})
        for group, one in counts.items() if not json else ():
            output.print(f"{by} {group}: {one['sentence']}", markup=False)
        return
    names, command = FileNames(certificates), repeatable("certify", sys.argv[1:])
    if folder is not None:
        for group, certificate in certificates.items():
            page = certificate_page(certificate, model.tagged(by, group), command=command)
            write_certificate(certificate, page, folder / "certificates" / names[group])
    if json:
        print_json(
            {"by": by, "certificates": {group: _without_patients(one.to_json()) for group, one in certificates.items()}}
        )
        return
    for number, (group, certificate) in enumerate(certificates.items()):
        output.print(f"{chr(10) if number else ''}{by} {group}", style="bold underline", markup=False)
        show(certificate)
        if folder is not None:
            print_note(f"Certificate: {folder / 'certificates' / names[group] / 'certificate.json'}")


def _without_patients(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "calibration": {"digest": content["calibration"]["digest"]}}


def show(certificate: Certificate) -> None:
    """Print the certificate for people."""
    from pams_mil.report.certificate_page import shown_limits

    show_reservations(certificate)
    first, *rest = certificate.sentences
    output.print(first, style="bold")
    for sentence in rest:
        output.print(sentence)
    if not certificate.hierarchy.other_orders:
        rows = [(one.name, f"{one.n:,}", f"{100 * one.smallest_alpha:.3g} %") for one in shown_limits(certificate)]
        title = "What these patients can certify at each boundary"
        output.print(make_table(("at or above", "patients", "smallest α"), rows, title=title))
    for note in certificate.notes:
        output.print(note, style="dim")


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES and not path.is_dir()


def _from_runs(
    paths: list[Path],
    calibration: str | None,
    stated: ClassHierarchy | None,
    *,
    trusted: bool,
    device: str,
    **options: Any,
) -> tuple[Predictions, dict[str, Any]]:
    from pams_mil.engine.prediction.certificates import fold_notes, out_of_fold_set, predict_calibration
    from pams_mil.engine.prediction.predict import load_runs
    from pams_mil.engine.prediction.scored_runs import refuse_other_classes

    pooled = out_of_fold_set(paths[0]) if calibration is None and len(paths) == 1 else None
    if pooled is not None:
        if options["calibrated"]:
            raise ConfigError("Out-of-fold predictions are not calibrated; leave --calibrated out.")
        if stated is None:
            return pooled, {}
        refuse_other_classes([pooled.hierarchy], paths, stated)
        return pooled.with_orders(stated), {}
    runs = load_runs(paths, trusted=trusted, device=device)
    if stated is not None:
        refuse_other_classes([run.spec.hierarchy for run in runs], [run.path for run in runs], stated)
    with progress_bar() as progress:
        predictions = predict_calibration(
            runs, calibration, device=device, progress=lambda fraction: progress("Predicting", fraction), **options
        )
    notes = fold_notes(paths, len(runs))
    notes += ["Holds for calibrated probabilities: predict with --calibrated."] if options["calibrated"] else []
    model = predictions.labeled(runs[0].path.name)
    return model if stated is None else model.with_orders(stated), {"notes": notes}


def _from_table(
    path: Path, stated: ClassHierarchy | None, calibration: str | None, source: Source, by: str | None
) -> Predictions:
    from pams_mil.cli.audit_table import model_names
    from pams_mil.data import tables
    from pams_mil.evaluate.predictions.prediction_layouts import read_predictions

    if stated is None:
        raise ConfigError("A table of predictions needs --classes: a preset (see 'pams classes') or a class file.")
    has_splits = "split" in next(iter(tables.read_chunks(path, rows=1)))
    source = replace(source, tags=(*(["split"] if has_splits else []), *([by] if by else [])))
    model = read_predictions(path, stated, source, name=model_names([path])[0])
    if calibration is None:
        return model
    if not has_splits:
        raise ConfigError(f"{path} has no column 'split', so its rows of {calibration!r} cannot be chosen.")
    return model.tagged("split", calibration)


def _pairs(texts: list[str] | None, option: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for text in texts or ():
        # From the right: the name of a class may hold "=".
        name, sign, share = text.rpartition("=")
        try:
            value = float(share)
        except ValueError:
            value = float("nan")
        # value != value: NaN, typed or from a share that is not a number.
        if not (sign and name) or value != value or name in shares:
            raise ConfigError(
                f"{option} must be CLASS=SHARE, each class once, e.g. {option} Malignant=0.02; found {text!r}."
            )
        shares[name] = value
    return shares
