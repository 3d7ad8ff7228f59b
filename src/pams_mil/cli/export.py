"""`pams export`: a trained model to hand on."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from pams_mil.cli.console import print_json, print_result
from pams_mil.cli.options import out_folder
from pams_mil.errors import ConfigError


def export(
    run: Path = Argument(..., metavar="RUN", help="A run folder, or that of a cross-validation or committee."),
    out: Path | None = Option(None, callback=out_folder, help="Where to write; default: <run>/export."),
    onnx: bool | None = Option(
        None, "--onnx/--no-onnx", help="Write an ONNX graph, or fail; not at all. Default: where the model allows it."
    ),
    push: str | None = Option(
        None,
        metavar="OWNER/NAME",
        help="Also upload weights and card to the hub; private if new. RUN may be an export.",
    ),
    trust_code: bool = Option(False, "--trust-code", help="Allow a run that names your own method or model."),
    json: bool = Option(False, "--json", help="Print the files as JSON."),
) -> None:
    """Write weights (safetensors), a description (JSON), a model card, and an ONNX graph checked against the model.

    Of a cross-validation or a committee every network is written, each in a folder of its own, and one card and one
    graph of their mean; 'pams predict OUT' takes it as one model.

    Example: pams export runs/pams-abmil-seed0 --out exported
    """
    from pams_mil.engine.prediction.export import export as run_export
    from pams_mil.engine.prediction.hub import exported_files, is_hub
    from pams_mil.engine.prediction.hub import push as push_to_hub
    from pams_mil.engine.run.folder import RunFolder

    if out is None and is_hub(run):
        raise ConfigError("The export of a model on the hub needs a folder of its own; say where with --out.")
    # What was exported before is uploaded as it is.
    known = exported_files(run) if push is not None and out is None else None
    folder = run if known else out or RunFolder.at(run).path / "export"
    files = known or run_export(run, folder, onnx=onnx, trusted=trust_code)
    address = None if push is None else push_to_hub(folder, push)
    if json:
        print_json({"out": str(folder), "files": files, "hub": address})
        return
    for file, what in files.items():
        print_result(f"{folder / file}: {what}")
    if address is not None:
        print_result(f"Uploaded weights, description and card: {address}")
