"""`pams certify`: the smallest cost ratio κ at which at most a share α of urgency is missed, by guarantee."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from pams_mil.cli.console import make_table, output, print_json, print_note, progress_bar, show_reservations
from pams_mil.cli.options import SEEN_PATIENTS, ColumnOptions, PatientsAreSlides, parse_labels, repeatable
from pams_mil.errors import ConfigError

if TYPE_CHECKING:
    from pams_mil.evaluate.certify import Certificate
    from pams_mil.evaluate.predictions.predictions import Predictions


def certify(
    paths: list[Path] = Argument(
        ..., metavar="RUN...|PREDICTIONS", help="Run folders, averaged if several; or a table with probabilities."
    ),
    alpha: float | None = Option(None, help="Most missed urgency among all patients, e.g. 0.05."),
    at: list[str] | None = Option(
        None, help="CLASS=SHARE: of patients at or above it, at most this share called below it. Repeatable."
    ),
    findings: float | None = Option(
        None, help="Most missed findings: of a patient's findings, the mean share that is not called."
    ),
    by: str | None = Option(
        None, help="Column of subgroups, e.g. site: one certificate for each, in certificates/<group>."
    ),
    guarantee: str = Option("mean", help="mean, or a confidence such as 0.9."),
    unit: str = Option("case", help="What is counted: case or slide."),
    calibration: str | None = Option(
        None, help="A split of the run's table, or another table; default: calib, or an unused val."
    ),
    classes: list[str] | None = Option(
        None, help="For a table: a preset or a class file. Again: another order, for one guarantee of all."
    ),
    seen_patients: bool = SEEN_PATIENTS,
    patients_are_slides: PatientsAreSlides = False,
    prevalence: list[str] | None = Option(
        None, help="CLASS=SHARE for every class: re-weight --alpha to these shares. Repeatable."
    ),
    calibrated: bool = Option(False, "--calibrated", help="Calibrated probabilities; see 'pams calibrate'."),
    features: Path | None = Option(None, help="Feature files of another table."),
    kappa: float | None = Option(
        None, min=0.0, help="Only count the calibration patients at this κ; nothing is written."
    ),
    out: Path | None = Option(None, help="Folder for certificate.json and .html; default: the run's."),
    json: bool = Option(False, "--json", help="Print the certificate as JSON."),
    columns: ColumnOptions = ColumnOptions(),
    index_order: str | None = Option(None, help="Classes in the order of integer labels."),
    trust_code: bool = Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
    device: str = Option("auto", help="auto, cpu, cuda, ..."),
) -> None:
    """Certify how much urgency is missed at most, or say how many patients that would take.

    Finds the smallest κ (what a missed urgency costs in false alarms) that meets every bound, on average or with a
    confidence, counted in patients that neither trained the model nor chose its epoch. COMMITTEE/fold0 names the
    networks of one fold of a committee: nothing was chosen, so its validation patients can certify them.

    With several --classes, orders of the same classes, one κ meets the bounds of all of them, and the answer is the set
    of their calls. A run that was trained with several orders is certified for all of them.

    Example: pams certify runs/pams-abmil-seed0 --alpha 0.2 --at Malignant=0.1
    """
    from pams_mil.data.bags.filenames import FileNames
    from pams_mil.engine.prediction.certificates import calibration_set, is_table, subgroups_of, write_certificate
    from pams_mil.engine.run.folder import RunFolder
    from pams_mil.evaluate.certify import certify as run_certify
    from pams_mil.evaluate.certify import certify_subgroups
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.certificate_page import certificate_page

    options: dict[str, Any] = {
        "alpha": alpha, "at": _pairs(at, "--at"), "findings": findings, "guarantee": guarantee, "unit": unit,
        "prevalence": _pairs(prevalence, "--prevalence") or None, "seen_patients": seen_patients,
        "patients_are_slides": patients_are_slides,
    }  # fmt: skip
    if alpha is None and not at and findings is None:
        raise ConfigError(
            "There is nothing to bound: give --alpha 0.05, or --at CLASS=0.05, or both; for sets, --findings 0.1."
        )
    if out is None and len(paths) > 1:
        raise ConfigError("The certificate of several runs belongs to none of them; say where with --out.")
    with progress_bar() as progress:
        model, options["notes"] = calibration_set(
            paths, calibration, ClassHierarchy.load(classes) if classes else None, by=by,
            source=columns.source(index_order=parse_labels(index_order)), trusted=trust_code, features=features,
            device=device, calibrated=calibrated, patients_are_slides=patients_are_slides,
            progress=partial(progress, "Predicting"),
        )  # fmt: skip
    certificates: dict[str, tuple[Certificate, Predictions]] = {}
    if by is None:
        certificates[""] = (run_certify(model, **options), model)
    else:
        for group, one in certify_subgroups(model, subgroups_of(model, by), **options).items():
            certificates[group] = (one, model.tagged(by, group))
    if kappa is not None:
        counts = {group: _counts(one, own, kappa) for group, (one, own) in certificates.items()}
        if json:
            print_json(counts[""] if by is None else {"by": by, "groups": counts})
            return
        for group, content in counts.items():
            sentence = content["sentence"]
            output.print(f"{by} {group}: {sentence}" if by else sentence, style="" if by else "bold")
        return
    folder = out or (None if is_table(paths[0]) else RunFolder.at(paths[0]).path)
    command, written = repeatable("certify", sys.argv[1:]), {}
    if folder is not None:
        names = FileNames(certificates)
        for group, (one, own) in certificates.items():
            page = certificate_page(one, own, command=command)
            place = folder if by is None else folder / "certificates" / names[group]
            written[group] = write_certificate(one, page, place)
    if json:
        # Without the patients' breakpoints.
        contents = {
            group: {**one.to_json(), "calibration": {"digest": one.calibration}}
            for group, (one, _) in certificates.items()
        }
        print_json(contents[""] if by is None else {"by": by, "certificates": contents})
    for number, (group, (one, _)) in enumerate(certificates.items()):
        if not json:
            if by is not None:
                output.print(f"{chr(10) if number else ''}{by} {group}", style="bold underline")
            show(one)
        if group in written:
            print_note(f"Certificate: {written[group]}")


def _counts(certificate: Certificate, model: Predictions, kappa: float) -> dict[str, Any]:
    """The calibration patients at a κ, in numbers and in the words of the page; of several orders, by order."""
    from pams_mil.report.certificate_page import bounds_sentence, counts_at, needed_kappas

    counts, needed = counts_at(certificate, model, kappa), needed_kappas(certificate)
    by_order = {
        name: {
            "patients": one.n, "missed": one.missed, "false_alarms": one.false_alarms, "confusion": one.cells.tolist(),
            "meets_bounds": kappa >= needed[name],
        }
        for name, one in counts.items()
    }  # fmt: skip
    sentences = " ".join(one.sentence for one in counts.values())
    return {
        "kappa": kappa,
        **by_order.get("", {"orders": by_order}),
        "meets_bounds": kappa >= certificate.kappa,
        "sentence": f"At κ = {kappa:.4g}, {sentences} {bounds_sentence(needed, kappa)}",
    }


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


def _pairs(texts: list[str] | None, option: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for text in texts or ():
        # From the right: the name of a class may hold "=".
        name, _, share = text.rpartition("=")
        with suppress(ValueError):
            if name and name not in shares and not isnan(value := float(share)):
                shares[name] = value
                continue
        raise ConfigError(
            f"{option} must be CLASS=SHARE, each class once, e.g. {option} Malignant=0.02; found {text!r}."
        )
    return shares
