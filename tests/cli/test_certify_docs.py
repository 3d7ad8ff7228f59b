"""The commands of docs/certify.md and the README's, run one after the other as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
from tests.evaluate.certify.models import model
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.evaluate.predictions import write_predictions

PAGE = Path(__file__).parents[2] / "docs" / "certify.md"


def test_every_command_of_the_page_runs(tmp_path, monkeypatch):
    commands = re.findall(r"^\$ pams (.*)$", PAGE.read_text(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == [
        "split",
        "train",
        "certify",
        "predict",
        "monitor",
        "certify",
    ]
    monkeypatch.chdir(tmp_path)
    rng, names = np.random.default_rng(0), ClassHierarchy.load("bracs").names()
    for table, count in (("labels.csv", 210), ("new.csv", 14)):
        rows = ["slide_id,patient_id,label"]
        for number in range(count):
            slide = f"{table[:3]}-{number}"
            features = rng.standard_normal((3, 8)).astype(np.float32)
            features[0, number % 7] += 4.0
            write_bag(Path("features") / f"{slide}.h5", Bag(features, info=BagInfo(encoder="tiny", tile_px=8)))
            rows.append(f"{slide},{table[:3]}-p{number},{names[number % 7]}")
        Path(table).write_text("\n".join(rows) + "\n")
    write_predictions("predictions.csv", model(60))
    for command in commands:
        quick = ["epochs=1", "model.embedding_features=8"] if command.startswith("train") else []
        done = CliRunner().invoke(app, [*shlex.split(command), *quick])
        assert done.exit_code == 0, (command, done.output)
    assert Path("run/certificate.html").exists()
    assert "certified" in Path("predicted/predictions.csv").read_text()
    assert Path("certified/certificate.json").exists()
