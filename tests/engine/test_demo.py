"""The demo, small: it trains all methods, prints the table, writes the report, and continues where it was."""

from __future__ import annotations

import json
from functools import partial

from tests.engine.here import Here
from typer.testing import CliRunner

from pams_mil.cli import demo
from pams_mil.cli.demo import METHODS
from pams_mil.cli.main import app
from pams_mil.cohorts import digits
from pams_mil.engine.grid import engines as local_engine


def test_demo_trains_compares_and_continues(tmp_path, monkeypatch):
    engine = Here()
    monkeypatch.setattr(demo, "RESAMPLES", 100)
    monkeypatch.setattr(demo, "TEST_BAGS", 14)
    monkeypatch.setattr(digits, "Digits", partial(digits.Digits, train=14, val=7))
    monkeypatch.setattr(local_engine, "LocalEngine", lambda: engine)
    arguments = ["demo", "--out", str(tmp_path), "--seeds", "1", "--epochs", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert all(method["label"] in " ".join(done.output.split()) for method in METHODS)
    page = (tmp_path / "report.html").read_text()
    assert "Missed urgency" in page
    assert len(engine.ran) == len(METHODS) + 8
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["Cross-entropy", "PAMS", "Committee of 8"]
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0
    assert len(engine.ran) == len(METHODS) + 8
