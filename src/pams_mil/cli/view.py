"""`pams view`: the worklist, the slides, the heatmaps and the reader's verdicts, in a browser on this machine."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from pams_mil.cli.console import print_note, progress_bar
from pams_mil.cli.options import ColumnOptions, PatientsAreSlides
from pams_mil.errors import MissingExtraError, counted


def view(
    paths: list[Path] | None = Argument(
        None, metavar="RUN-or-PREDICTIONS...", help="Run folders or predictions files; several are averaged."
    ),
    slides: Path | None = Option(None, help="Folder with the slide files."),
    features: Path | None = Option(None, help="Folder or pack of features, for heatmaps."),
    manifest: Path | None = Option(None, help="Table of slides to predict, instead of the run's."),
    certificate: Path | None = Option(None, help="certificate.json of 'pams certify'."),
    split: str = Option("test", help="Which split of a run's own manifest."),
    classes: list[str] | None = Option(
        None, help="Class file or preset, for predictions files. Again: another order of its classes."
    ),
    reviews: Path | None = Option(None, help="Folder for the verdicts; default: beside the first."),
    reviewer: str | None = Option(None, help="Name of the reader; default: the account's."),
    blind: bool = Option(False, "--blind", help="Hide the model's call until the reader has given one."),
    demo: bool = Option(
        False, "--demo", help="Draw slides with planted lesions in demo-view/, train on them, and show them."
    ),
    browser: bool = Option(True, "--browser/--no-browser", help="Open the browser, or only print the address."),
    port: int | None = Option(
        None, min=0, max=65535, help="Port; default: 8777, where links of reports lead, or any free one."
    ),
    host: str = Option("127.0.0.1", help="Address to listen on."),
    allow_network: bool = Option(False, "--allow-network", help="Allow a --host that others can reach."),
    patients_are_slides: PatientsAreSlides = False,
    trust_code: bool = Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
    columns: ColumnOptions = ColumnOptions(),
) -> None:
    """Read cases in the order of their urgency, see where the model looks, and agree or overrule.

    Works without slides, without features and without labels; the page names what is missing. Verdicts go to
    reviews.csv, which `pams audit` reads as a second reader. The server answers this machine alone.

    Example: pams view runs/pams-abmil-seed0 --slides slides/
    """
    from pams_mil.report.live import VIEW_PORT

    try:
        from pams_mil.view.opening import Asked, open_session
        from pams_mil.view.serve import is_loopback, open_server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pams_mil"):
            raise
        raise MissingExtraError("The viewer", package=str(error.name), extra="view,wsi") from error

    asked = Asked(
        paths or [], slides=slides, features=features, manifest=manifest, certificate=certificate,
        classes=classes or (), split=split, source=columns.source(labels_needed=False), reviews=reviews,
        reviewer=reviewer, blind=blind, trust_code=trust_code, patients_are_slides=patients_are_slides,
    )  # fmt: skip
    with progress_bar() as progress:
        if demo:
            from pams_mil.view.demo import demo_request

            asked = demo_request(asked, progress)
        session = open_session(asked, progress)
    server = open_server(session, host=host, port=port, allow_network=allow_network)
    if port is None and server.port != VIEW_PORT:
        print_note(f"Note: port {VIEW_PORT} is taken, so links of reports lead to another viewer, if to any.")
    if not is_loopback(host):
        print_note(
            "Warning: other machines can reach this viewer. Nothing is encrypted: whoever listens on the network sees "
            "the token and every picture. 'ssh -L' is the safe way."
        )
    for note in session.notes:
        print_note(f"Note: {note}")
    print_note(f"{counted(len(session.cases), 'case')}, {session.shelf.num_files:,} with a slide. Stop with Ctrl-C.")
    print(server.address, flush=True)
    if browser:
        server.open_browser()
    server.run()
    print_note(f"Reviews: {session.journal.table}" if session.journal.table.exists() else "No verdicts were given.")
