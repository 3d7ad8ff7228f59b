from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.engine.cohort import TINY_MODELS
from tests.forked import PATIENCE_S

from pams_mil.data.tables import read_table
from pams_mil.engine.config.grid_config import GridConfig, cells
from pams_mil.engine.config.run_config import build
from pams_mil.engine.grid import engines as local_engine
from pams_mil.engine.grid import grid as cells_module
from pams_mil.engine.grid.engines import LocalEngine
from pams_mil.engine.grid.grid import epochs_done, run_cell, run_grid
from pams_mil.errors import ConfigError, RunError
from pams_mil.experiments.derived_rows import read_entries
from pams_mil.report.bench import summarize
from pams_mil.report.bench_page import write_bench


def grid_of(cohort, **changes):
    content = {
        "data": {"manifest": str(cohort / "manifest.csv"), "features": str(cohort / "bags")},
        "classes": str(cohort / "classes.yaml"),
        "methods": ["ce", {"name": "pams", "label": "PAMS <b>&\\$"}],
        "models": [{**TINY_MODELS["abmil"], "label": "AB-MIL"}],
        "seeds": [0, 1],
        "training": {"epochs": 2, "lr": 1e-3},
        "compute": {"accelerator": "cpu"},
        **changes,
    }
    return build(GridConfig, content)


class Here:
    """Runs cells in this process, so that tests need not wait for imports."""

    def __init__(self):
        self.ran = []

    def run(self, pending, out, owner):
        for cell in pending:
            self.ran.append(cell.key)
            yield None
            yield run_cell(cell, str(out), owner, 1)


@pytest.fixture(scope="module")
def finished(cohort, tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    return run_grid(grid_of(cohort), out, Here()), out


def test_every_cell_is_a_run_and_a_second_start_runs_nothing(cohort, finished):
    done, out = finished
    assert len(done.finished) == 4
    assert not done.failures
    engine = Here()
    again = run_grid(grid_of(cohort), out, engine)
    assert engine.ran == []
    assert len(again.finished) == 4


def test_interrupted_grid_runs_only_the_rest(cohort, tmp_path):
    class Interrupted(Here):
        def run(self, pending, out, owner):
            yield from super().run(pending[:1], out, owner)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(grid_of(cohort), tmp_path, Interrupted())
    engine = Here()
    assert len(run_grid(grid_of(cohort), tmp_path, engine).finished) == 4
    assert len(engine.ran) == 3


def test_changed_settings_are_not_mixed_with_old_results(cohort, tmp_path):
    run_grid(grid_of(cohort, seeds=[0]), tmp_path, Here())
    changed = run_grid(grid_of(cohort, seeds=[0], training={"epochs": 2, "lr": 5e-4}), tmp_path, Here())
    assert len(changed.failures) == 2
    assert all("training.lr = 0.001, but now it is 0.0005" in text for text in changed.failures.values())
    assert changed.finished == []


def test_a_seed_that_is_named_twice_is_refused(cohort, tmp_path):
    with pytest.raises(
        ConfigError, match=r"share the folder 'AB-MIL--ce--seed1'; name every label, seed and fold once"
    ):
        run_grid(grid_of(cohort, methods=["ce"], seeds=[0, 1, 1]), tmp_path, Here())


def test_failures_are_listed_and_not_fatal(cohort, tmp_path, monkeypatch):
    original = cells_module.train

    def train(config, *args, **kwargs):
        if config.method.name == "pams" and config.seed == 1:
            raise RunError("The loss is not finite.")
        return original(config, *args, **kwargs)

    monkeypatch.setattr(cells_module, "train", train)
    told = []
    done = run_grid(grid_of(cohort), tmp_path, Here(), progress=lambda share, text: told.append((share, text)))
    assert len(done.finished) == 3
    assert read_table(tmp_path / "failures.csv")["error"] == ["The loss is not finite."]
    assert told[-1][0] == 1.0
    bench = summarize(read_entries(done), reference="ce", resamples=20, missing=done.failures)
    assert [len(row.runs) for row in bench.rows] == [2, 1]
    assert bench.rows[1].comparison.n == 8
    assert bench.rows[1].comparison.seeds == (2, 1)
    monkeypatch.undo()
    assert len(run_grid(grid_of(cohort), tmp_path, Here()).finished) == 4
    assert read_table(tmp_path / "failures.csv")["error"] == []


def test_table_is_the_mean_over_runs(finished, tmp_path):
    done, _ = finished
    entries = read_entries(done)
    bench = summarize(entries, reference="ce", resamples=50)
    runs = entries[1].runs
    accuracies = [float(np.mean(run.target == run.predicted)) for run in runs.values()]
    spread = bench.rows[1].score("acc", 1)
    assert spread.estimate == pytest.approx(np.mean(accuracies))
    assert spread.sd == pytest.approx(np.std(accuracies))
    assert bench.rows[0].levels[1].n == 16
    assert len(set(bench.rows[0].levels[1].intervals["acc"])) == 2


def test_reports_are_written_and_harmless(finished, tmp_path):
    done, _ = finished
    bench = summarize(read_entries(done), reference="ce", resamples=50)
    files = write_bench(bench, tmp_path)
    assert {file.name for file in files} == {
        "report.html", "table.md", "table.csv", "table.tex", "bench.json", "pareto.svg"
    }  # fmt: skip
    page = (tmp_path / "report.html").read_text()
    assert "PAMS <b>" not in page
    assert "PAMS &lt;b&gt;" in page
    # A namespace is a name, and the viewer is on this machine: nothing else is named.
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\"|127\.0\.0\.1:)", page)
    assert "PAMS <b>" not in (tmp_path / "pareto.svg").read_text()
    latex = (tmp_path / "table.tex").read_text()
    assert r"\&\textbackslash{}\$" in latex
    assert latex.count(r"\textbf{") >= 8
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [row["method"] for row in content["rows"]] == ["ce", "PAMS <b>&\\$"]
    table = read_table(tmp_path / "table.csv")
    rows = list(zip(table["method"], table["level"], table["metric"], strict=True))
    assert len(rows) == len(set(rows)) == sum(len(scores.scores) for row in bench.rows for scores in row.levels)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer Pythons warn about forking with threads
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_local_processes_survive_a_crash(cohort, tmp_path, monkeypatch, start):
    """One worker is killed from outside; its cell is done by another, and every cell once."""
    monkeypatch.setattr(local_engine, "get_context", lambda _: multiprocessing.get_context(start))
    killed = []

    def killer():
        deadline = time.monotonic() + PATIENCE_S
        while not killed and time.monotonic() < deadline:
            for lock in tmp_path.glob("cells/*/run.lock"):
                try:
                    holder = json.loads(lock.read_text())
                except (OSError, ValueError):
                    continue
                os.kill(holder["pid"], signal.SIGKILL)
                killed.append(holder["pid"])
                break
            time.sleep(0.005)

    thread = threading.Thread(target=killer)
    thread.start()
    grid = grid_of(cohort, seeds=[0], training={"epochs": 3, "patience": None})
    done = run_grid(grid, tmp_path, LocalEngine(workers=1))
    thread.join()
    assert killed
    assert len(done.finished) == 2, done.failures


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("workers", [1, 2])
def test_cell_that_always_crashes_is_given_up_and_the_others_are_not(cohort, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(local_engine, "get_context", lambda _: multiprocessing.get_context("fork"))
    real = local_engine.run_cell
    monkeypatch.setattr(
        local_engine, "run_cell", lambda cell, *rest: os._exit(9) if cell.method == "ce" else real(cell, *rest)
    )
    done = run_grid(grid_of(cohort, seeds=[0]), tmp_path, LocalEngine(workers=workers))
    assert list(done.failures) == ["AB-MIL--ce--seed0"]
    assert "killed or crashed twice" in done.failures["AB-MIL--ce--seed0"]
    assert [cell.method for cell in done.finished] == [done.cells[1].method]


def test_one_benchmark_per_folder(cohort, tmp_path):
    """A second start while the first runs is refused, trains nothing, and does not disturb the first."""
    second = Here()

    class First(Here):
        def run(self, pending, out, owner):
            with pytest.raises(RunError, match=r"is in use by process \d+ .*bench\.lock and start it again"):
                run_grid(grid_of(cohort, seeds=[0]), tmp_path, second)
            yield from super().run(pending, out, owner)

    assert len(run_grid(grid_of(cohort, seeds=[0]), tmp_path, First()).finished) == 2
    assert second.ran == []
    assert len(run_grid(grid_of(cohort, seeds=[0]), tmp_path, second).finished) == 2


def test_logs_are_counted_again_only_when_they_have_changed(tmp_path, cohort, monkeypatch):
    cell, opened = cells(grid_of(cohort))[0], []
    assert epochs_done(cell, tmp_path) == 0
    log = tmp_path / cell.key / "metrics.csv"
    log.parent.mkdir()
    log.write_text("epoch\n1\n2\n")
    original = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: (opened.append(path), original(path, *how, **more))[1])
    assert [epochs_done(cell, tmp_path) for _ in range(5)] == [2] * 5
    assert opened == [log]
    os.utime(log, ns=(0, 0))
    assert epochs_done(cell, tmp_path) == 2
    assert opened == [log, log]
