"""A trained model, or the mean of several, as an ONNX graph for bags of any size, kept only if it agrees with them."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pams_mil import atomic
from pams_mil.engine.inference_loop import infer_batch
from pams_mil.engine.prediction.predict import LoadedRun
from pams_mil.errors import OutputError, first_line, needs_extra
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.mil_model import level_output
from pams_mil.models.layers.pseudo_bags import fixed_groups

TOLERANCE = 1e-5
"""How far the probabilities of a graph may be from the model's."""
SIZES = (1, 2, 7, 64, 300, 5000)
"""Bags that the comparison is made on; none of these is the size that the graph is traced with."""
_TRACED = 50


class GraphError(OutputError):
    """A model of which no graph can be written."""


class Graph(nn.Module):
    """Features [n, d] (and, for DTFD, partitions) -> class probabilities [1, c] of every trained level.

    Of several runs, the mean of their probabilities at every level that all of them train.
    """

    def __init__(self, runs: Sequence[LoadedRun]) -> None:
        super().__init__()
        self.models = nn.ModuleList(run.learner.model for run in runs)
        self.objectives = [run.learner.objective for run in runs]
        self.rows = [[run.learner.levels.index(level) for level in graph_levels(runs)] for run in runs]

    def forward(self, features: Tensor, groups: Tensor | None = None) -> tuple[Tensor, ...]:
        """Probabilities, coarsest level first."""
        by_run = []
        for model, objective, rows in zip(self.models, self.objectives, self.rows, strict=True):
            outputs = []
            for tower in model.towers:  # type: ignore[union-attr]
                embedded = tower.trace(features, groups)
                outputs += [level_output(embedded, scored) for scored in model.scores(tower, embedded)]  # type: ignore[operator]
            probabilities = objective.probabilities(outputs)
            by_run.append([probabilities[row] for row in rows])
        if len(by_run) == 1:
            return tuple(by_run[0])
        return tuple(torch.stack(levels).mean(0) for levels in zip(*by_run, strict=True))


def graph_levels(runs: Sequence[LoadedRun]) -> list[int]:
    """The levels that all runs train, coarsest first; the finest is always one."""
    return [level for level in runs[0].learner.levels if all(level in run.learner.levels for run in runs)]


def output_names(runs: Sequence[LoadedRun]) -> list[str]:
    """One output per trained level, coarsest first, named after it."""
    return [f"probabilities_{runs[0].spec.hierarchy.level_names[level]}" for level in graph_levels(runs)]


def graph_inputs(run: LoadedRun) -> dict[str, Any]:
    """What a graph of the run takes, by name."""
    inputs: dict[str, Any] = {"features": {"shape": ["n", run.spec.in_features], "type": "float32"}}
    tower: Any = run.learner.model.towers[0]
    if tower.graph_partitions:
        inputs["groups"] = {
            "shape": [tower.graph_partitions, "n"],
            "type": "int64",
            "meaning": f"the pseudo-bag, 0 to {tower.pseudo_bags - 1}, of every instance: a random order of the "
            "instances cut into pieces of nearly equal size. pams_mil.models.layers.pseudo_bags.fixed_groups gives the "
            "one that 'pams predict' takes for a slide id.",
        }
    return inputs


def write_graph(runs: Sequence[LoadedRun], path: Path) -> str:
    """Write the graph, compare it with the model on bags of several sizes, and say how well it agrees.

    Of several runs it is the graph of their mean, compared with the mean of what they say.

    Raises:
        GraphError: the model has no graph, or it does not agree; nothing is written.
    """
    towers: list[Any] = [run.learner.model.towers[0] for run in runs]
    for tower in towers:
        if tower.graph_refusal:
            raise GraphError(f"{tower.graph_refusal}, so there is no ONNX graph of this model.")
    if len(runs) > 1 and any(tower.graph_partitions for tower in towers):
        raise GraphError(
            "A member takes partitions of the bag as a second input, and each its own, so there is no graph of the "
            "mean; average the outputs of the members' graphs."
        )
    with needs_extra("Writing an ONNX graph", package="onnxruntime", extra="onnx"):
        import onnx  # noqa: F401, PLC0415  the exporter needs it
        import onnxruntime  # noqa: PLC0415  optional
    generator = torch.Generator().manual_seed(0)
    with atomic.replacing(path) as temporary:
        _trace(runs, temporary, _inputs(runs[0], _TRACED, generator))
        session = onnxruntime.InferenceSession(temporary.read_bytes(), providers=["CPUExecutionProvider"])
        try:
            worst = max(_difference(runs, session.run, _inputs(runs[0], n, generator)) for n in SIZES)
        except Exception as error:  # of a model or graph that takes bags of some sizes only
            why = first_line(error)[:200].rstrip(".")
            raise GraphError(f"The ONNX graph does not take bags of every size: {why}.") from error
        # Not `worst > TOLERANCE`: NaN must not pass.
        if not worst <= TOLERANCE:
            raise GraphError(
                f"The ONNX graph's probabilities would differ by {worst:.2g} from the model's; at most {TOLERANCE:g} "
                "is allowed, so it was not kept."
            )
    return f"equal to the model within {worst:.1g} on bags of {', '.join(map(str, SIZES))} instances"


def _inputs(run: LoadedRun, n: int, generator: torch.Generator) -> dict[str, Tensor]:
    inputs = {"features": torch.randn(n, run.spec.in_features, generator=generator)}
    tower: Any = run.learner.model.towers[0]
    if tower.graph_partitions:
        inputs["groups"] = fixed_groups(n, tower.pseudo_bags, "", splits=tower.graph_partitions)
    return inputs


def _difference(runs: Sequence[LoadedRun], call: Callable[..., Any], inputs: dict[str, Tensor]) -> float:
    learners = [run.learner for run in runs]
    answers = [one.probabilities for one in infer_batch(learners, BagBatch.single(inputs["features"]))]
    expected = [
        torch.stack([one[learner.levels.index(level)] for learner, one in zip(learners, answers, strict=True)]).mean(0)
        for level in graph_levels(runs)
    ]
    outputs = call(None, {name: value.numpy() for name, value in inputs.items()})
    pairs = zip(outputs, expected, strict=True)
    return max(float(np.abs(np.asarray(one, dtype=np.float64) - two.numpy()).max()) for one, two in pairs)


def _trace(runs: Sequence[LoadedRun], path: Path, example: dict[str, Tensor]) -> None:
    """The tracing exporter: bags have any number of rows, which the newer exporter would fix at the example's."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    axes = {"features": {0: "n"}, "groups": {1: "n"}}
    output = io.StringIO()  # a failing exporter prints the whole graph; the comparison finds out what its warnings fear
    try:
        # With gradients on, models take a bag as a whole; without, large bags go in blocks, which a graph cannot count.
        with torch.enable_grad(), warnings.catch_warnings(), redirect_stdout(output), redirect_stderr(output):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Graph(runs).eval(), tuple(example.values()), str(path), dynamo=False, input_names=list(example),
                output_names=output_names(runs), dynamic_axes={name: axes[name] for name in example},
            )  # fmt: skip
    except Exception as error:  # exporters raise whatever their tracing raises
        raise GraphError(f"This model cannot be written as an ONNX graph: {first_line(error)[:200]}.") from error
