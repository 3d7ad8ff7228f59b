"""Files of another version: whichever field is missing or unknown, reading them ends in one sentence or in the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.cohort import make_cohort, run, settings
from tests.evaluate.certify.test_findings import model

from pams_mil.atomic import strict_json
from pams_mil.data.exposure import Exposure
from pams_mil.digests import digest
from pams_mil.engine.prediction.run_calibration import CalibratedLevel, RunCalibration, read_calibration
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.checkpoint import Checkpoint
from pams_mil.engine.run.spec import RunSpec, stored_spec
from pams_mil.engine.training.run_checkpoints import RunProgress
from pams_mil.errors import PamsError
from pams_mil.evaluate.certify import Certificate, certify
from pams_mil.evaluate.decisions.debias import TrainingBias
from pams_mil.evaluate.decisions.probability_calibration import ProbabilityCalibration
from pams_mil.evaluate.decisions.reveal import Reveal, reveal
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy

NEW = "a_field_of_later"
NAMES = (
    "cohort", "features", "features.files", "classes.aliases", "classes.display_names", "settings.pairing",
    "settings.method.remix_options",
)  # fmt: skip
EXPOSED = ("exposure.patients", "exposure.slides", "exposure.features")


def variants(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The content without each of its fields, and with one more in each of its tables; lists by their first entry."""
    if isinstance(content, dict):
        yield ".".join(map(str, (*place, NEW))), {**content, NEW: 1}
        for key, value in content.items():
            yield ".".join(map(str, (*place, key))), {name: other for name, other in content.items() if name != key}
            for name, changed in variants(value, (*place, key)):
                yield name, {**content, key: changed}
    elif isinstance(content, list) and content:
        for name, changed in variants(content[0], (*place, 0)):
            yield name, [changed, *content[1:]]


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """With the digest that a writer of this content would have written."""
    plain = {key: value for key, value in content.items() if key != "digest"}
    return {**plain, "digest": digest(json.loads(strict_json(plain)))}


def content_of(value: Any) -> str:
    """All fields, also where the repr of an object shows a few."""
    return repr({one.name: getattr(value, one.name) for one in fields(value)})


def check(
    content: dict[str, Any], read: Callable[[Any], Any], where: str, *, sign: bool = True, names: tuple[str, ...] = ()
) -> None:
    """Every variant is refused by name, in one sentence that says what to do; or read as what it was.

    `names`: tables whose keys are names of the user's, such as classes, and no fields of ours.
    """
    expected, refused = read(content), 0
    for name, changed in variants(json.loads(json.dumps(content))):
        if name.rpartition(".")[0] in names:
            continue
        kinds = [changed]
        if sign and name != "digest":
            for key in ("exposure", "calibration"):  # they carry digests of their own
                if name.startswith(f"{key}.") and "digest" in changed[key] and "format" in content[key]:
                    changed = {**changed, key: signed(changed[key])}
            kinds = [signed(changed)]
        for one in kinds:
            try:
                result = read(one)
            except PamsError as error:
                refused += 1
                text = str(error)
                assert where in text, (name, text)
                assert "Error(" not in text, (name, text)
                assert text.count(". ") <= 2, (name, text)
                assert text.endswith("."), (name, text)
                continue
            assert content_of(result) == content_of(expected), name
    assert refused > 5


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("format")
    return run(settings(make_cohort(folder / "cohort"), method="pams", epochs=1), folder / "run")


def test_a_spec_with_other_fields_is_refused_by_name(finished: Path) -> None:
    content = stored_spec(finished).to_json()
    check(content, lambda one: RunSpec.from_json(one, "run.json"), "run.json", names=NAMES)
    # Also those that no file of today lacks: what a run was trained with must not be guessed.
    for section in ("training", "method", "model"):
        for key in content["settings"][section]:
            rest = {name: value for name, value in content["settings"][section].items() if name != key}
            changed = {**content, "settings": {**content["settings"], section: rest}}
            with pytest.raises(PamsError, match=rf"run.json .* no field 'settings\.{section}\.{key}'. Train again"):
                RunSpec.from_json(changed, "run.json")
    classes = {key: value for key, value in content["classes"].items() if key != "other_orders"}
    with pytest.raises(PamsError, match=r"it has no field 'classes\.other_orders'\. Train again, or use the version"):
        RunSpec.from_json({**content, "classes": classes}, "run.json")


def test_the_command_line_names_the_file(finished: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from pams_mil.cli.main import app

    saved = checkpoint.load(finished / "best.safetensors")
    spec = json.loads(json.dumps(saved.state["spec"]))
    del spec["classes"]["other_orders"]
    checkpoint.save(tmp_path / "old.safetensors", Checkpoint(saved.tensors, {**saved.state, "spec": spec}))
    (tmp_path / "table.csv").write_text("slide_id\ntrain-0\n")
    done = CliRunner(env={"COLUMNS": "1000"}).invoke(
        app, ["predict", str(tmp_path / "old.safetensors"), str(tmp_path / "table.csv"), "--features", str(tmp_path)]
    )
    assert done.exit_code == 2
    assert "old.safetensors is of another version of PAMS, or was changed by hand: it has no field" in done.output
    assert "KeyError" not in done.output


def test_progress_calibration_and_exposure(finished: Path, tmp_path: Path) -> None:
    state = checkpoint.load(finished / "last.safetensors").state["progress"]
    check(
        dict(state),
        lambda one: RunProgress.from_json(one, "last"),
        "last",
        sign=False,
        names=("sums", "counts", "history.0"),
    )
    seen = json.loads((finished / "exposure.json").read_text())
    seen = {**seen, **{kind: dict(list(seen[kind].items())[:1]) for kind in ("patients", "slides", "features")}}
    for name, changed in variants(signed(seen)):
        if name.count(".") == 0 and name != "digest":  # the fields; the rows are names of patients
            with pytest.raises(PamsError, match=r"exposure\.json"):
                Exposure.from_json(signed(changed), "exposure.json")
    fitted = ProbabilityCalibration(2, 1.5, {"msce": 0.5}, TrainingBias(np.eye(2), drift=np.ones((2, 2))))
    level = CalibratedLevel("group", fitted, {"a": 3}, {"nll": 0.5}, {"nll": 0.4})
    fitted_on = {"digest": "v", "slides": 12, "patients": 12}
    exposure = Exposure.of([("s", "p", "calibrate")])
    RunCalibration((level,), "w", "h", fitted_on, exposure, ("note",)).write(tmp_path)

    def read(content: Any) -> Any:
        (tmp_path / "calibration.json").write_text(json.dumps(content))
        return read_calibration(tmp_path)

    names = (
        "levels",
        *(f"levels.group.{one}" for one in ("strengths", "slides", "scores.before", "scores.after")),
        *EXPOSED,
    )
    check(json.loads((tmp_path / "calibration.json").read_text()), read, "calibration.json", names=names)


def test_certificates_and_revealed_ratios(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    content = json.loads(json.dumps(certify(model(30), alpha=0.3, findings=0.3).to_json()))
    content["exposure"] = Exposure.of([("s", "p", "certify")]).to_json()

    def read(content: Any) -> Any:
        path.write_text(json.dumps(content))
        return Certificate.load(path)

    check(signed(content), read, "certificate.json", names=EXPOSED)

    tree = ClassHierarchy.flat(["a", "b", "c"])
    other = ClassHierarchy.flat(["b", "a", "c"])
    target = np.arange(30) % 3
    ids = [f"c{i}" for i in range(30)]
    both = Predictions("m", tree.with_orders(other), ids, target, target, np.eye(3)[target] * 0.4 + 0.2, ids)
    check(certify(both, alpha=0.2).to_json(), read, "certificate.json", names=EXPOSED)

    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 200)
    reveal(p, (p * [1, 2, 4]).argmax(1), tree).write(tmp_path / "reveal.json")

    def revealed(content: Any) -> Any:
        (tmp_path / "reveal.json").write_text(json.dumps(content))
        return Reveal.read(tmp_path / "reveal.json")

    check(
        json.loads((tmp_path / "reveal.json").read_text()),
        revealed,
        "reveal.json",
        names=("boundaries", "refused"),
    )
