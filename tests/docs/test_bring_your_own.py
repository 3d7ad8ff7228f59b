"""Every file of docs/bring-your-own.md does what the page says; its commands are run by test_commands.py."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.docs.console_blocks import ROOT, files_of
from typer.testing import CliRunner

from pams_mil import discover
from pams_mil.cli.main import app
from pams_mil.data import read_bag
from pams_mil.errors import ConfigError, ParameterError
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import create_method
from pams_mil.metrics import Metric, add_metric
from pams_mil.metrics.metric import METRICS
from pams_mil.models import LevelOutput
from pams_mil.remix import create_remix
from pams_mil.wsi import create_encoder

FILES = files_of(ROOT / "docs/bring-your-own.md")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(file: str, text: str) -> str:
    """A file with further code, as a name."""
    Path(file).write_text(text)
    return f"./{file}"


def test_files_are_short_and_all_there():
    lines = {name: sum(bool(line.strip()) for line in text.splitlines()) for name, text in FILES.items()}
    assert {name: count for name, count in lines.items() if count > 15} == {}
    kinds = ("model", "loss", "remix", "encoder", "metric", "features")
    assert set(lines) == {f"my_{kind}.py" for kind in kinds}
    assert all(ast.parse(text) for text in FILES.values())


def objective_value(name: str, logits: torch.Tensor, target: torch.Tensor, **options: Any) -> float:
    tree = ClassHierarchy.flat(["a", "b", "c"])
    objective = create_method(name, towers="finest", **options).objective(tree)
    return float(sum(objective([LevelOutput(logits, logits)], [target]).values()))


def test_a_loss_is_its_function_and_means_are_taken_bag_by_bag():
    logits, target = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 0])
    p = logits.softmax(-1)[torch.arange(5), target]
    for gamma in (2.0, 3.0):
        expected = float(((1 - p) ** gamma * -p.log()).mean())
        assert objective_value("./my_loss.py:focal", logits, target, gamma=gamma) == pytest.approx(expected, rel=1e-5)
    name = own("mean_loss.py", "from torch.nn.functional import cross_entropy as mean\n" + """
def steps(logits, target, hierarchy, level):
    assert list(hierarchy.names(level)) == ["a", "b", "c"]
    return mean(logits, target)
def many(logits, target): return logits
def needy(logits, target, weight): return logits
""")  # fmt: skip
    plain = float(torch.nn.functional.cross_entropy(logits, target))
    assert objective_value(f"{name}:steps", logits, target) == pytest.approx(plain, rel=1e-5)
    with pytest.raises(ParameterError, match=r"must return a tensor \[5\] or one number, found shape \[5, 3\]"):
        objective_value(f"{name}:many", logits, target)
    with pytest.raises(ConfigError, match=r"need defaults .* found 'weight'"):
        create_method(f"{name}:needy")
    with pytest.raises(ConfigError, match=r"has no option 'gama'. Did you mean 'gamma'"):
        create_method("./my_loss.py:focal", gama=1.0)
    with pytest.raises(ConfigError, match=r"must be a function of logits"):
        create_method("json:__doc__")


def test_a_remix_is_a_pure_function_of_bags_and_generator():
    remix = create_remix("./my_remix.py:half_and_half", share=0.3)
    a, b = torch.arange(20.0).reshape(10, 2), -torch.ones(4, 2)
    before = torch.get_rng_state()
    bags = [remix(a, b, torch.Generator().manual_seed(seed)).features for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(bags[0], bags[1])
    assert not torch.equal(bags[0], bags[2])
    assert [len(bag) for bag in bags] == [7, 7, 7]
    assert remix.partner == "same_class"
    with pytest.raises(ConfigError, match=r"has no option 'shar'. Did you mean 'share'"):
        create_remix("./my_remix.py:half_and_half", shar=0.3)
    name = own("bad_remix.py", "def text(a, b): return 'no'\ndef wide(a, b): return a[:, :1]\n"
               "def soft(a, b): return a, 0.25\n")  # fmt: skip
    for function, message in (("text", "rows .* as a tensor, found str"), ("wide", "rows of width 2, found 1")):
        with pytest.raises(ParameterError, match=message):
            create_remix(f"{name}:{function}")(a, b, torch.Generator())
    assert create_remix(f"{name}:soft")(a, b, torch.Generator()).weight_a == 0.25


def test_an_encoder_says_its_name_and_digest():
    encoder = create_encoder("./my_encoder.py:colors")
    tiles = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    features = encoder(tiles)
    np.testing.assert_allclose(features[1, :3], tiles[1].reshape(-1, 3).mean(0) / 255, rtol=1e-5)
    assert encoder.name == "my_encoder.py:colors"
    assert len(encoder.digest) == 32  # type: ignore[attr-defined]


def predictions_of(seed: int, *, scored: bool = True) -> Predictions:
    tree, random = ClassHierarchy.flat(["a", "b", "c"]), np.random.default_rng(seed)
    target, scores = np.arange(60) % 3, random.dirichlet(np.ones(3), 60)
    names = [f"s{number}" for number in range(60)]
    return Predictions(f"mine{seed}", tree, names, target, scores.argmax(1), scores if scored else None)


@pytest.fixture
def _metrics_restored():
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


@pytest.mark.usefixtures("_metrics_restored")
def test_a_metric_has_values_intervals_and_comparisons():
    add_metric(discover.load("metrics", "./my_metric.py:grave"))
    for scored in (True, False):
        first, second = predictions_of(0, scored=scored), predictions_of(1, scored=scored)
        result = audit([first, second], resamples=50)
        finest = result.models[0].finest
        expected = float(((first.target == 2) & (first.predicted == 0)).mean())
        assert finest.values["grave"] == pytest.approx(expected)
        assert finest.to_json()["grave"] == pytest.approx(expected)
        low, high = finest.intervals["grave"]
        assert low <= expected <= high
        assert result.comparisons[0].levels["class"]["grave"].estimate == pytest.approx(
            result.models[1].finest.values["grave"] - expected
        )
    with pytest.raises(ParameterError, match=r"There is a metric 'acc' already"):
        add_metric(Metric("acc", "Mine", True, "", METRICS["acc"].statistic, METRICS["acc"].value))
    name = own("bad.py", "def table(s): return s.scores\ndef gap(s): return s.true * float('nan')\n")
    for function, found in (("table", r"\[60, 3\]"), ("gap", "not finite")):
        add_metric(discover.load("metrics", f"{name}:{function}"))
        with pytest.raises(ParameterError, match=rf"'{function}' must return one number per slide, .*{found}"):
            audit([predictions_of(0)], resamples=0)
        METRICS.pop(function)


@pytest.mark.usefixtures("_metrics_restored")
def test_a_metric_by_the_command_line_is_in_the_table_the_page_and_the_file(place: Path):
    (place / "classes.yaml").write_text("name: three\nclasses: [a, b, c]\n")
    for seed in (0, 1):
        mine = predictions_of(seed)
        rows = zip(mine.slide_ids, mine.target, mine.predicted, strict=True)
        (place / f"m{seed}.csv").write_text(
            "slide_id,target,prediction\n" + "".join(f"{s},{'abc'[t]},{'abc'[p]}\n" for s, t, p in rows)
        )
    words = ["audit", "m0.csv", "m1.csv", "--classes", "classes.yaml", "--out", "report", "--resamples", "20"]
    done = CliRunner().invoke(app, [*words, "--metric", "./my_metric.py:grave"])
    assert done.exit_code == 0, done.output
    assert "Grave ↓" in done.output
    page = (place / "report/report.html").read_text("utf-8")
    assert "Called two or more steps too mild" in page
    assert '"grave":' in (place / "report/scores.json").read_text("utf-8")
    refused = CliRunner().invoke(app, [*words, "--metric", "grave"])
    assert "--metric takes './my_file.py:my_function'" in refused.output.replace("\n", " ")


def test_features_are_converted_with_what_is_known(place: Path):
    x, xy = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32), np.arange(8).reshape(4, 2)
    (place / "theirs").mkdir()
    np.savez(place / "theirs/slide_1.npz", x=x, xy=xy)
    discover.load("data", "./my_features.py:convert")("theirs", "ours")
    bag = read_bag("ours/slide_1.h5")
    np.testing.assert_array_equal(bag.features, x)
    assert bag.info.encoder == "uni"
