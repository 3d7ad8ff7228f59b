"""Progress of many runs where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from pams_mil.cli import grid_bar as module
from pams_mil.cli.grid_bar import grid_bar


def lines(shares: list[tuple[float, str]]) -> list[str]:
    text = io.StringIO()
    with grid_bar(Console(file=text, width=200)) as tell:
        for share, happened in shares:
            tell(share, happened)
    return text.getvalue().splitlines()


def test_a_line_every_tenth_and_for_every_run_that_ends():
    said = lines([(0.0, ""), *((step / 100, "") for step in range(1, 50)), (0.5, "fold0: done"), (1.0, "")])
    assert [line.split(" of ")[0] for line in said] == [
        "Training: 10%", "Training: 20%", "Training: 30%", "Training: 40%", "fold0: done", "Training: 50%",
        "Training: 100%",
    ]  # fmt: skip


def test_a_slow_grid_says_that_it_lives(monkeypatch):
    now = iter([0.0, 1.0, 31.0, 40.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    assert lines([(0.01, ""), (0.02, ""), (0.03, "")]) == ["Training: 2% of all epochs after 0:31 min"]


def test_a_terminal_gets_a_bar():
    text = io.StringIO()
    with grid_bar(Console(file=text, width=80, force_terminal=True)) as tell:
        tell.each("fold1 [x]", 0.25)
        tell(0.5, "fold0: done")
        tell.each("fold0", 1.0)  # ended before it was seen
        tell.each("fold1 [x]", 1.0)
    assert "fold1 [x]" in text.getvalue()
    assert "25 %" in text.getvalue()
    assert "fold0: done" in text.getvalue()
    assert "of all epochs" not in text.getvalue()
