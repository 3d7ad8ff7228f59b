"""A trained model to hand on: weights, a description, a model card, and a graph where the model allows one.

A cross-validation or a committee is handed on as one model: every network in a folder of its own, and one description,
card and graph of their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pams_mil import atomic, discover
from pams_mil.data.exposure import FILE as EXPOSURE
from pams_mil.data.exposure import Exposure
from pams_mil.engine.prediction.certificates import own_certificates
from pams_mil.engine.prediction.graph import GraphError, graph_inputs, graph_levels, output_names, write_graph
from pams_mil.engine.prediction.model_card import mean_card, model_card
from pams_mil.engine.prediction.predict import LoadedRun, load, load_runs
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.checkpoint import Checkpoint
from pams_mil.engine.run.cv_folder import CrossValidationFolder
from pams_mil.engine.run.folder import CALIBRATION, CODE, RunFolder, copy_code, read_json
from pams_mil.errors import CheckpointError, MissingExtraError, OutputError
from pams_mil.evaluate.certify import Certificate


def export(run: Path | str, out: Path | str, *, onnx: bool | None = None, trusted: bool = False) -> dict[str, str]:
    """Write `model.safetensors`, `config.json`, `README.md` and, where the model allows one, `model.onnx`.

    Of a cross-validation or a committee every network is written into a folder of its own, below `members` or named
    after its fold; `config.json`, `README.md` and `model.onnx` are then of their mean.

    Args:
        run: A run folder, or that of a cross-validation, a committee, or a fold of a committee.
        out: Where to write.
        onnx: Write a graph too, or fail; None: where it can be done.
        trusted: As in `load`.

    Returns:
        What was written or why it could not be, by file name.
    """
    out, folds = Path(out), CrossValidationFolder.at(run)
    if (out / "config.json").exists():
        raise OutputError(f"{out} already holds an exported model; choose another folder.")
    if folds is not None:
        return _export_mean(folds, RunFolder(Path(run)), out, onnx=onnx, trusted=trusted)
    return _export_run(load(run, trusted=trusted), out, onnx=onnx)


def _export_mean(
    folds: CrossValidationFolder, home: RunFolder, out: Path, *, onnx: bool | None, trusted: bool
) -> dict[str, str]:
    """Every network of a cross-validation or of one fold of a committee, and their mean."""
    loaded = load_runs([home.path], trusted=trusted, device="cpu")
    names = folds.run_names()
    for name, run in zip(names, loaded, strict=True):
        done = read_json(out / name / "config.json")  # of an attempt that was cut short
        if done.get("weights") != run.weights:
            _export_run(run, out / name, onnx=onnx)
    graphs = sum((out / name / "model.onnx").is_file() for name in names)
    files = {f"{name}/": "a network: weights, description, card" for name in names}
    files = {"config.json": "description", "README.md": "model card", **files}
    if onnx is not False:
        graph = _graph_if_possible(loaded, out / "model.onnx", wanted=onnx is True)
        files["model.onnx"] = f"the mean of {len(names)} networks, {graph}"
        files["*/model.onnx"] = f"{graphs} of {len(names)} networks have a graph of their own, checked likewise"
    known, certificates = _hand_on_knowledge(loaded, home.path, out)
    files |= known
    atomic.write_text(out / "README.md", mean_card(loaded, names, home, files, certificates, folds.fold))
    weights = [run.weights for run in loaded]
    atomic.write_json(out / "config.json", _description(loaded, files, mean_of=names, weights=weights))
    return files


def _export_run(loaded: LoadedRun, out: Path, *, onnx: bool | None) -> dict[str, str]:
    files = {"model.safetensors": "weights", "config.json": "description", "README.md": "model card"}
    if onnx is not False:
        files["model.onnx"] = _graph_if_possible([loaded], out / "model.onnx", wanted=onnx is True)
    state = {key: value for key, value in loaded.state.items() if key not in ("progress", "optimizer")}
    checkpoint.save(out / "model.safetensors", Checkpoint(dict(loaded.learner.state_dict()), state))
    if (loaded.folder.path / CALIBRATION).exists():
        files[CALIBRATION] = _hand_on_calibration(loaded, out)
    for file in filter(None, map(discover.code_file, loaded.spec.code)):
        copy_code(file, out)
        files[CODE] = "code of your own that the model or its training is made of; it runs only with --trust-code"
    known, certificates = _hand_on_knowledge([loaded], loaded.folder.path, out)
    files |= known
    atomic.write_text(out / "README.md", model_card(loaded, files, certificates))
    # Last: its presence says that the export is complete, and an export that was cut short can be repeated.
    selected_by = {key: state.get(key) for key in ("metric", "score", "epoch")}
    own = {"spec": loaded.spec.to_json(), "weights": loaded.weights, "selected_by": selected_by}
    atomic.write_json(out / "config.json", _description([loaded], files, **own))
    return files


def _hand_on_knowledge(runs: Sequence[LoadedRun], folder: Path, out: Path) -> tuple[dict[str, str], list[Certificate]]:
    """Write which patients the model has seen, and what is certified about it."""
    files = {}
    if (exposure := Exposure.of_all(run.exposure() for run in runs)) is not None:
        exposure.write(out)
        files[EXPOSURE] = "which patients the model has seen, by digest"
    certificates, refused = own_certificates(runs, folder)  # without them the card says that there are none
    files |= {name: f"left out: {reason}" for name, reason in refused.items()}
    for name, certificate in certificates.items():
        certificate.write(out / name)
        files[name] = "what is certified about these weights"
    return files, list(certificates.values())


def _hand_on_calibration(run: LoadedRun, out: Path) -> str:
    try:
        calibration = run.calibration
    except CheckpointError as error:
        return f"left out: {error}"
    calibration.write(out)
    return "what 'pams calibrate' fitted; the graph and the weights give probabilities without it"


def _graph_if_possible(runs: Sequence[LoadedRun], path: Path, *, wanted: bool) -> str:
    try:
        return write_graph(runs, path)
    except (GraphError, MissingExtraError) as error:
        if wanted:
            raise
        return f"not written: {error}"


def _description(runs: Sequence[LoadedRun], files: dict[str, str], **more: Any) -> dict[str, Any]:
    """What is in `config.json`: how to call the model, which classes it knows, and what the files are."""
    hierarchy = runs[0].spec.hierarchy
    outputs = [
        {"name": name, "level": hierarchy.level_names[level], "classes": list(hierarchy.names(level))}
        for name, level in zip(output_names(runs), graph_levels(runs), strict=True)
    ]
    called = {"inputs": graph_inputs(runs[0]), "outputs": outputs, "hierarchy_digest": hierarchy.digest}
    return {**called, **more, "files": files}
