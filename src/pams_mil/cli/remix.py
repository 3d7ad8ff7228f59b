"""`pams remix`: see what each remix strategy selects from two slides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from pams_mil.cli.console import make_table, output, print_json, print_result
from pams_mil.cli.options import PatientsAreSlides, out_file
from pams_mil.errors import ConfigError, ManifestError, counted, nearest

if TYPE_CHECKING:
    from pams_mil.data.bags.dataset import BagDataset
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.remix.remix_figure import BagView


def remix(
    first: str = Argument(..., metavar="A", help="Slide id."),
    second: str = Argument(..., metavar="B", help="Slide id of another urgency, or of A's class."),
    manifest: Path = Option(..., help="Cohort table that names both slides."),
    classes: str = Option(..., help="A preset (see 'pams classes') or a class file, .yaml or .csv."),
    features: Path | None = Option(None, help="Folder of feature files, or a pack."),
    out: Path = Option(Path("remix.png"), callback=out_file, help="The picture: .png, .svg or .pdf."),
    table: Path | None = Option(None, help="Also write the chosen rows as CSV."),
    seed: int = Option(0, help="Seed of the strategies' random choices."),
    patients_are_slides: PatientsAreSlides = False,
    json: bool = Option(False, "--json", help="Print what each strategy takes as JSON."),
) -> None:
    """Draw what each remix strategy takes from the more urgent of two slides, or from A where both are of one class.

    Example: pams remix slide_7 slide_12 --manifest labels.csv --classes bracs --features features
    """
    from pams_mil import atomic
    from pams_mil.data.bags.dataset import BagDataset
    from pams_mil.data.manifest.manifest import Manifest
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.remix.remix_figure import draw, select_all, selection_rows

    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out must end in .png, .svg or .pdf; found {out.name!r}.")
    hierarchy = ClassHierarchy.load(classes)
    cohort = Manifest.read(manifest, patients_are_slides=patients_are_slides, classes=hierarchy)
    bags = BagDataset(cohort, hierarchy, features or manifest.parent / "h5_files", with_coords=True)
    a, b = _views(bags, hierarchy, first, second)
    mixed = select_all(a.bag, b.bag, seed=seed)
    figure = draw(a, b, mixed)
    with atomic.replacing(out) as temporary:
        figure.savefig(temporary, format=out.suffix[1:], dpi=130)
    if table is not None:
        atomic.write_csv(table, ["strategy", "slide_id", "row"], selection_rows(mixed, (a.name, b.name)))
    # Instances of a, of b, and synthetic ones.
    rows = {title: [int((one.origin_bag == bag).sum()) for bag in (0, 1, -1)] for title, one in mixed.items()}
    weights = {title: one.weight_a for title, one in mixed.items()}
    if json:
        slides = {
            name: {"slide_id": view.name, "label": view.label, "rows": len(view.bag)}
            for name, view in (("a", a), ("b", b))
        }
        strategies = {
            title: {"rows_of_a": of_a, "rows_of_b": of_b, "synthetic": new, "label_weight_of_a": weights[title]}
            for title, (of_a, of_b, new) in rows.items()
        }
        print_json({"out": str(out), **slides, "strategies": strategies})
        return
    output.print(f"a, whose label stays: {a.name} ({a.label}); b: {b.name} ({b.label})")
    lines = [
        (title, f"{of_a} of {len(a.bag)}", f"{of_b} of {len(b.bag)}", str(new), f"{weights[title]:.2f}")
        for title, (of_a, of_b, new) in rows.items()
    ]
    output.print(make_table(("strategy", "rows of a", "rows of b", "synthetic", "label weight of a"), lines))
    print_result(f"Drawn in {out}")


def _views(bags: BagDataset, hierarchy: ClassHierarchy, first: str, second: str) -> tuple[BagView, BagView]:
    """The two slides, the one whose label the remixed bag carries first."""
    from pams_mil.remix.remix_figure import BagView

    place = {source.name: number for number, source in enumerate(bags.sources)}
    for name in (first, second):
        if name not in place:
            raise ManifestError(f"The manifest has no slide {name!r}.{nearest(name, place)}")
    ranks, names = hierarchy.ranks(), hierarchy.names()
    targets = {name: bags.sources[place[name]].target for name in (first, second)}
    patients = {bags.sources[place[name]].patient_id for name in (first, second)}
    if ranks[targets[first]] == ranks[targets[second]] and (targets[first] != targets[second] or len(patients) == 1):
        raise ManifestError(
            f"These slides never meet: {first!r} is {names[targets[first]]} and {second!r} is "
            f"{names[targets[second]]}, of {counted(len(patients), 'patient')}. Choose slides of different urgency, or "
            "of the same class and different patients."
        )
    views = []
    for name in sorted((first, second), key=lambda name: -ranks[targets[name]]):
        sample = bags[place[name]]
        coords = None if sample.coords_px0 is None else sample.coords_px0.numpy()
        views.append(BagView(sample.features, name, names[targets[name]], coords))
    return views[0], views[1]
