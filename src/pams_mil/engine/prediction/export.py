"""A trained model to hand on: weights, a description, a model card, and a graph where the model allows one."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pams_mil import atomic
from pams_mil.engine.prediction.model_card import model_card
from pams_mil.engine.prediction.predict import LoadedRun, load_run
from pams_mil.engine.prediction.run_calibration import read_calibration
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.blueprint import Blueprint
from pams_mil.engine.run.checkpoint import Checkpoint
from pams_mil.engine.run.folder import CALIBRATION
from pams_mil.errors import CheckpointError, MissingExtraError, OutputError
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Scored
from pams_mil.models.core.mil_model import level_output

TOLERANCE = 1e-4
"""How far the probabilities of an exported graph may be from the model's."""
_SIZES = (1, 2, 7, 64, 300, 5000)


class Graph(nn.Module):
    """features [n, d] -> class probabilities [1, c] of every trained level; nothing else, so that it can be traced."""

    def __init__(self, run: LoadedRun) -> None:
        super().__init__()
        self.model: Any = run.learner.model
        self.objective = run.learner.objective

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Probabilities, coarsest level first."""
        batch = BagBatch(features, (features.shape[0],), ("",))
        outputs = []
        for tower in self.model.towers:
            embedded = tower.embed(batch)
            if self.model.heads is not None:
                outputs += [level_output(embedded, scored) for scored in self.model.heads(embedded.vectors)]
            else:
                scored = Scored(tower.head(embedded.vectors), embedded.vectors, tower.head.rows())
                outputs.append(level_output(embedded, scored))
        return tuple(self.objective.probabilities(outputs))


def export(run: Path | str, out: Path | str, *, onnx: bool = True, trusted: bool = False) -> dict[str, str]:
    """Write `model.safetensors`, `config.json`, `README.md` and, where the model allows one, `model.onnx`.

    Args:
        run: A run folder.
        out: Where to write.
        onnx: Try to write a graph too.
        trusted: As in `load_run`.

    Returns:
        What was written or why it could not be, by file name.
    """
    loaded, out = load_run(run, trusted=trusted), Path(out)
    if (out / "config.json").exists():
        raise OutputError(f"{out} already holds an exported model; choose another folder.")
    found = {"model.safetensors": "weights", "config.json": "description", "README.md": "model card"}
    state = {key: value for key, value in loaded.state.items() if key not in ("progress", "optimizer")}
    checkpoint.save(out / "model.safetensors", Checkpoint(dict(loaded.learner.state_dict()), state))
    if (Path(run) / CALIBRATION).exists():
        found[CALIBRATION] = _hand_on_calibration(loaded, out)
    if onnx:
        found["model.onnx"] = _attempt(loaded, out / "model.onnx")
    atomic.write_text(out / "README.md", model_card(loaded, Path(run), found))
    atomic.write_json(out / "config.json", _description(loaded.blueprint, state, found))
    return found


def _hand_on_calibration(run: LoadedRun, out: Path) -> str:
    try:
        calibration = read_calibration(run.path)
        calibration.refuse_other_weights(run.learner, run.path)
    except CheckpointError as error:
        return f"left out: {error}"
    calibration.write(out)
    return "what 'pams calibrate' fitted; the graph and the weights give probabilities without it"


def _description(blueprint: Blueprint, state: dict[str, Any], found: dict[str, str]) -> dict[str, Any]:
    hierarchy = blueprint.hierarchy
    return {
        **blueprint.to_json(),
        "outputs": [
            {"level": hierarchy.level_names[level], "classes": list(hierarchy.names(level))}
            for level in (
                range(hierarchy.num_levels)
                if blueprint.method.get("towers") != "finest"
                else [hierarchy.num_levels - 1]
            )
        ],
        "input": {"features": ["n", blueprint.in_features]},
        "hierarchy_digest": hierarchy.digest,
        "selected_by": {key: state.get(key) for key in ("metric", "score", "epoch")},
        "files": found,
    }


def _attempt(run: LoadedRun, path: Path) -> str:
    """Write a graph, compare it with the model on bags of several sizes, and keep it only if it agrees."""
    graph = Graph(run).eval()
    width = run.blueprint.in_features
    generator = torch.Generator().manual_seed(0)
    bags = [torch.randn(n, width, generator=generator) for n in _SIZES]
    try:
        with atomic.replacing(path) as part, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exporters warn about what the comparison below finds out
            call = _write_onnx(graph, bags[-3], part)
            worst = max(_difference(call(bag), run.learner.predict(BagBatch.single(bag)).probabilities) for bag in bags)
            if not worst <= TOLERANCE:
                raise OutputError(f"its probabilities differ by {worst:.2g} from the model's")
    except Exception as error:  # exporters raise whatever their tracing raises
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return f"not possible for this model: {reason[0][:200]}"
    return f"equal to the model within {worst:.1g} on bags of {', '.join(map(str, _SIZES))} instances"


def _difference(found: Any, expected: list[Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(np.asarray(one, dtype=np.float64) - two.numpy()).max()) for one, two in pairs)


def _write_onnx(graph: Graph, example: Tensor, path: Path) -> Callable[[Tensor], Any]:
    try:
        import onnxruntime  # noqa: PLC0415  optional
    except ImportError as error:
        raise MissingExtraError("Checking an ONNX graph", package="onnxruntime", extra="onnx") from error

    names = [f"probabilities_{number}" for number in range(len(graph(example)))]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # With gradients on, models take a bag as a whole; without, large bags go in blocks, which a graph cannot count.
    with torch.enable_grad():
        # The tracing exporter: bags have any number of rows, which the newer exporter would fix at the example's.
        torch.onnx.export(
            graph, (example,), str(path), dynamo=False, input_names=["features"], output_names=names,
            dynamic_axes={"features": {0: "n"}},
        )  # fmt: skip
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda bag: session.run(None, {"features": bag.numpy()})
