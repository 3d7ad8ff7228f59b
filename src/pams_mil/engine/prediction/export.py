"""A trained model to hand on: weights, a description, a model card, and a graph where the model allows one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pams_mil import atomic, discover
from pams_mil.engine.prediction.certificates import own_certificate
from pams_mil.engine.prediction.graph import GraphError, graph_inputs, output_names, write_graph
from pams_mil.engine.prediction.model_card import model_card
from pams_mil.engine.prediction.predict import LoadedRun, load_run
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.checkpoint import Checkpoint
from pams_mil.engine.run.folder import CALIBRATION, CODE, copy_code
from pams_mil.errors import CertificateError, CheckpointError, MissingExtraError, OutputError
from pams_mil.exposure import FILE as EXPOSURE


def export(run: Path | str, out: Path | str, *, onnx: bool | None = None, trusted: bool = False) -> dict[str, str]:
    """Write `model.safetensors`, `config.json`, `README.md` and, where the model allows one, `model.onnx`.

    Args:
        run: A run folder.
        out: Where to write.
        onnx: Write a graph too, or fail; None: where it can be done.
        trusted: As in `load_run`.

    Returns:
        What was written or why it could not be, by file name.
    """
    loaded, out = load_run(run, trusted=trusted), Path(out)
    if (out / "config.json").exists():
        raise OutputError(f"{out} already holds an exported model; choose another folder.")
    files = {"model.safetensors": "weights", "config.json": "description", "README.md": "model card"}
    if onnx is not False:
        files["model.onnx"] = _graph_if_possible(loaded, out / "model.onnx", wanted=onnx is True)
    state = {key: value for key, value in loaded.state.items() if key not in ("progress", "optimizer")}
    checkpoint.save(out / "model.safetensors", Checkpoint(dict(loaded.learner.state_dict()), state))
    if (Path(run) / CALIBRATION).exists():
        files[CALIBRATION] = _hand_on_calibration(loaded, out)
    for file in filter(None, map(discover.code_file, loaded.spec.code)):
        copy_code(file, out)
        files[CODE] = "code of your own that the model or its training is made of; it runs only with --trust-code"
    exposure = loaded.exposure()
    if exposure is not None:
        exposure.write(out)
        files[EXPOSURE] = "which patients the model has seen, by digest"
    certificate = None
    try:
        certificate = own_certificate(loaded)
    except CertificateError as error:  # a model can be handed on without one, and the card says so
        files["certificate.json"] = f"left out: {error}"
    if certificate is not None:
        certificate.write(out / "certificate.json")
        files["certificate.json"] = "what is certified about these weights"
    atomic.write_text(out / "README.md", model_card(loaded, Path(run), files, certificate))
    # Last: its presence says that the export is complete, and an export that was cut short can be repeated.
    atomic.write_json(out / "config.json", _description(loaded, state, files))
    return files


def _hand_on_calibration(run: LoadedRun, out: Path) -> str:
    try:
        calibration = run.calibration
    except CheckpointError as error:
        return f"left out: {error}"
    calibration.write(out)
    return "what 'pams calibrate' fitted; the graph and the weights give probabilities without it"


def _graph_if_possible(run: LoadedRun, path: Path, *, wanted: bool) -> str:
    try:
        return write_graph(run, path)
    except (GraphError, MissingExtraError) as error:
        if wanted:
            raise
        return f"not written: {error}"


def _description(run: LoadedRun, state: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    hierarchy = run.spec.hierarchy
    return {
        "inputs": graph_inputs(run),
        "outputs": [
            {"name": name, "level": hierarchy.level_names[level], "classes": list(hierarchy.names(level))}
            for name, level in zip(output_names(run), run.learner.levels, strict=True)
        ],
        "hierarchy_digest": hierarchy.digest,
        "spec": run.spec.to_json(),
        "weights": run.weights,
        "selected_by": {key: state.get(key) for key in ("metric", "score", "epoch")},
        "files": files,
    }
