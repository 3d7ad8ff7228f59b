"""`make bench` ends badly when a benchmark fails or misses a goal, and names the figures."""

from __future__ import annotations

import ast
import doctest
import importlib
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = ROOT / "Makefile"
BENCHES = re.search(r"^BENCHES := (.*)$", MAKEFILE.read_text(), re.MULTILINE).group(1).split()


@pytest.fixture
def goals(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "goals", raising=False)
    import goals

    return goals


def test_goals_do_what_their_page_says(goals):
    assert doctest.testmod(goals).failed == 0
    assert doctest.testmod(goals).attempted > 3


def test_a_figure_that_is_not_a_number_misses(goals, capsys):
    collected = goals.Goals()
    assert not collected.at_least("speed", math.nan, 1.0)
    assert not collected.at_most("memory", math.nan, 1.0)
    assert collected.at_least("speed", 1.0, 1.0)
    assert collected.at_most("memory", 1.0, 1.0)
    assert collected.end() == 1
    assert capsys.readouterr().out.count("Missed goal: ") == 2
    assert goals.Goals().end() == 0


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_has_goals_and_gives_its_exit_code(name):
    text = (ROOT / "benchmarks" / f"{name}.py").read_text()
    assert "Goals()" in text
    assert ".end()" in text
    assert re.search(r'if __name__ == "__main__":\n    sys\.exit\(main\(\)\)\n$', text)


SCRIPTS = {
    "good": "print('fine')",
    "slow": "print('Missed goal: speed: 1, wanted at least 2')\nraise SystemExit(1)",
    "broken": "raise OSError('no disk')",
}


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("names", "code"), [(["good"], 0), (["good", "slow"], 2), (["broken", "good"], 2)])
def test_the_loop_ends_badly_and_names_the_figures(tmp_path, names, code):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "benchmarks").mkdir()
    for name, text in SCRIPTS.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    for name in ("pyproject.toml", "constraints.txt", ".venv/.ready", ".venv/.ready-bench"):
        (tmp_path / name).touch()
    command = ["make", "-f", str(MAKEFILE), "-C", str(tmp_path), "bench", f"BENCHES={' '.join(names)}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    after = done.stdout.split("== ")[-1]
    assert ("All goals reached." in after) == (code == 0)
    assert ("Missed goal: speed: 1, wanted at least 2\nFailed, or below a goal: slow" in after) == ("slow" in names)
    assert ("Failed, or below a goal: broken" in after) == ("broken" in names)


def test_what_benchmarks_take_from_the_package_is_there() -> None:
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pams_mil"):
                for alias in node.names:
                    assert hasattr(importlib.import_module(node.module), alias.name), f"{path.name}: {alias.name}"
