"""`pams remix`: see what each remix strategy selects from two slides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import output, print_json, print_result, progress_bar
from pams_mil.cli.out_option import out_file
from pams_mil.cli.table_options import PATIENTS_ARE_SLIDES
from pams_mil.errors import ConfigError, ManifestError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from pams_mil.data.bags.dataset import BagDataset
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.remix.strategy import Mixed
    from pams_mil.report.remix_figure import BagView


def remix(
    first: str = typer.Argument(..., metavar="A", help="Slide id."),
    second: str = typer.Argument(..., metavar="B", help="Slide id of another urgency; with --keep-label see there."),
    manifest: Path = typer.Option(..., "--manifest", help="Cohort table that names both slides."),
    classes: str = typer.Option(..., "--classes", help="A preset (see 'pams classes') or a YAML class file."),
    features: Path | None = typer.Option(None, "--features", help="Folder of feature files, or a pack."),
    out: Path = typer.Option(Path("remix.png"), "--out", callback=out_file, help="The picture: .png, .svg or .pdf."),
    table: Path | None = typer.Option(None, "--table", help="Also write the chosen rows as CSV."),
    keep_label: bool = typer.Option(
        False, "--keep-label", help="As pairing.rule=keep_label: A keeps its label, B is less urgent or of A's class."
    ),
    evidence: bool = typer.Option(
        False, "--evidence", help="Also draw SFR by evidence, which reads the cohort's training slides."
    ),
    plane: str = typer.Option("pca", "--plane", help="pca, or umap if umap-learn is installed."),
    seed: int = typer.Option(0, "--seed", help="Seed of the strategies' random choices."),
    patients_are_slides: bool = PATIENTS_ARE_SLIDES,
    json: bool = typer.Option(False, "--json", help="Print what each strategy takes as JSON."),
) -> None:
    """Draw what each remix strategy takes from the more urgent of two slides, or from A with --keep-label.

    Example: pams remix slide_7 slide_12 --manifest labels.csv --classes bracs --features features
    """
    from pams_mil import atomic
    from pams_mil.data.bags.dataset import BagDataset
    from pams_mil.data.manifest.manifest import Manifest
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.remix_figure import draw, select_all, selection_rows

    if out.suffix not in (".png", ".svg", ".pdf") or plane not in ("pca", "umap"):
        raise ConfigError(
            f"--out must end in .png, .svg or .pdf and --plane must be pca or umap; found {out.name!r} and {plane!r}."
        )
    hierarchy = ClassHierarchy.load(classes)
    cohort = Manifest.read(manifest, patients_are_slides=patients_are_slides)
    bags = BagDataset(cohort, hierarchy, features or manifest.parent / "h5_files", with_coords=True)
    a, b = _views(bags, hierarchy, first, second, keep_label, evidence, seed)
    mixed = select_all(a.bag, b.bag, evidence=a.evidence, seed=seed)
    figure = draw(a, b, mixed, plane="umap" if plane == "umap" else "pca", seed=seed)
    with atomic.replacing(out) as part:
        figure.savefig(part, format=out.suffix[1:], dpi=130)
    if table is not None:
        atomic.write_csv(table, ["strategy", "slide_id", "row"], selection_rows(mixed, (a.name, b.name)))
    if json:
        print_json(_as_json(a, b, mixed, out))
    else:
        _show(a, b, mixed, out)


def _views(
    bags: BagDataset, hierarchy: ClassHierarchy, first: str, second: str, keep_label: bool, evidence: bool, seed: int
) -> tuple[BagView, BagView]:
    """The two slides, the one whose label the remixed bag carries first."""
    from pams_mil.report.remix_figure import BagView

    place = {source.name: number for number, source in enumerate(bags.sources)}
    for name in (first, second):
        if name not in place:
            raise ManifestError(f"The manifest has no slide {name!r}.{nearest(name, place)}")
    ranks, names = hierarchy.ranks(), hierarchy.names()
    targets = {name: bags.sources[place[name]].target for name in (first, second)}
    found = f"{first!r} is {names[targets[first]]} and {second!r} is {names[targets[second]]}"
    if keep_label:
        less_urgent = ranks[targets[second]] < ranks[targets[first]]
        patients = {bags.sources[place[name]].patient_id for name in (first, second)}
        if not less_urgent and (targets[first] != targets[second] or len(patients) == 1):
            raise ManifestError(
                f"{first!r} cannot keep its label: {found}. With --keep-label the second slide must be less urgent, or "
                "of the same class and another patient."
            )
        urgent, other = first, second
    else:
        if ranks[targets[first]] == ranks[targets[second]]:
            raise ManifestError(
                f"Neither slide is more urgent: {found}. Remix needs two slides of different urgency, or, with "
                "--keep-label, two of one class."
            )
        urgent, other = sorted((first, second), key=lambda name: -ranks[targets[name]])
    scores = _evidence(bags, hierarchy, place[urgent], seed) if evidence else None
    views = []
    for name, own in ((urgent, scores), (other, None)):
        sample = bags[place[name]]
        coords = None if sample.coords_px0 is None else sample.coords_px0.numpy()
        views.append(BagView(sample.features, name, names[targets[name]], coords, own))
    return views[0], views[1]


def _evidence(bags: BagDataset, hierarchy: ClassHierarchy, slide: int, seed: int) -> Tensor | None:
    """Evidence of one slide, learned from the training slides (all slides where the table has no splits)."""
    from pams_mil.remix.selection.evidence import score_evidence

    records = [source.records[0] for source in bags.sources]
    learned = [number for number, record in enumerate(records) if record.split in ("train", "", None)]
    used = sorted({*learned, slide})
    ranks = hierarchy.ranks()[[bags.sources[number].target for number in used]].tolist()
    patients = [bags.sources[number].patient_id for number in used]
    with progress_bar() as advance:
        done = 0

        def read(number: int) -> Tensor:
            nonlocal done
            done += 1
            # Every bag is read twice, once to learn and once to score; hence 2 n.
            advance("learning evidence from slide labels", min(1.0, done / (2 * len(used))))
            return bags[used[number]].features

        return score_evidence(read, ranks, patients, seed=seed)[used.index(slide)]


def _origins(rows: Mixed) -> tuple[int, int, int]:
    """Instances of a, instances of b, and made ones."""
    a, b, made = (int((rows.origin_bag == origin).sum()) for origin in (0, 1, -1))
    return a, b, made


def _as_json(a: BagView, b: BagView, mixed: dict[str, Mixed], out: Path) -> dict[str, Any]:
    strategies = {}
    for title, rows in mixed.items():
        of_a, of_b, made = _origins(rows)
        strategies[title] = {"rows_of_a": of_a, "rows_of_b": of_b, "made": made, "label_weight_of_a": rows.weight_a}
    a_and_b = {
        name: {"slide_id": view.name, "label": view.label, "rows": len(view.bag)} for name, view in (("a", a), ("b", b))
    }
    return {"out": str(out), **a_and_b, "strategies": strategies}


def _show(a: BagView, b: BagView, mixed: dict[str, Mixed], out: Path) -> None:
    from rich.table import Table

    shown = Table("strategy", "rows of a", "rows of b", "made", "label weight of a", box=None, pad_edge=False)
    for title, rows in mixed.items():
        of_a, of_b, made = _origins(rows)
        shown.add_row(
            title, f"{of_a} of {len(a.bag)}", f"{of_b} of {len(b.bag)}", str(made), f"{rows.weight_a:.2f}"
        )  # fmt: skip
    output.print(f"a, whose label stays: {a.name} ({a.label}); b: {b.name} ({b.label})")
    output.print(shown)
    print_result(f"Drawn in {out}")
