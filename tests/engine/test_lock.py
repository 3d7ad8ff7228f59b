"""Two runs cannot damage each other: one folder, one writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from tests.engine.cohort import run, settings
from tests.forked import in_child

from pams_mil.engine.run.lock import LOCK, Holder, locked, process_start, read_lock
from pams_mil.errors import RunError


def dead_holder():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return replace(Holder.here(), pid=child.pid, process_start="gone")


def write_lock(folder, holder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOCK).write_text(json.dumps(asdict(holder)))


def test_second_holder_is_refused_and_lock_is_released(tmp_path):
    with locked(tmp_path):
        with pytest.raises(RunError, match=rf"in use by process {os.getpid()} on "), locked(tmp_path, take_over=True):
            pass
        assert read_lock(tmp_path / LOCK) == replace(Holder.here(), since=read_lock(tmp_path / LOCK).since)
    assert not (tmp_path / LOCK).exists()


def test_lock_of_a_dead_process_is_reported_and_taken_over_only_on_resume(tmp_path):
    write_lock(tmp_path, dead_holder())
    with pytest.raises(RunError, match=r"no longer running.*--resume"), locked(tmp_path):
        pass
    with locked(tmp_path, take_over=True) as before:
        assert before is not None
        assert before.process_start == "gone"


def test_number_of_a_dead_process_used_again_is_recognized(tmp_path):
    holder = replace(Holder.here(), process_start="another boot:1")
    assert process_start(os.getpid())
    assert holder.is_dead()
    assert not Holder.here().is_dead()


def test_lock_of_another_machine_is_never_taken(tmp_path):
    write_lock(tmp_path, replace(dead_holder(), host="elsewhere"))
    with pytest.raises(RunError, match="on elsewhere"), locked(tmp_path, take_over=True):
        pass
    assert (tmp_path / LOCK).exists()


def test_attempts_of_one_benchmark_follow_each_other(tmp_path):
    write_lock(tmp_path, replace(dead_holder(), host="elsewhere", owner="bench-1"))
    with pytest.raises(RunError), locked(tmp_path, take_over=True, owner="bench-2"):
        pass
    with locked(tmp_path, take_over=True, owner="bench-1") as before:
        assert before is not None


def test_unreadable_lock_is_respected(tmp_path):
    (tmp_path / LOCK).write_text("{")
    with pytest.raises(RunError, match="unknown machine"), locked(tmp_path, take_over=True):
        pass


def race(folder, go, wins, **options):
    """Many processes reach for one lock at the same moment."""
    children = []
    for number in range(8):

        def contender(number=number):
            while not go.exists():
                time.sleep(0.001)
            try:
                with locked(folder, **options):
                    (wins / str(number)).touch()
                    time.sleep(0.5)
            except RunError:
                pass

        pid = os.fork()
        if pid == 0:
            contender()
            os._exit(0)
        children.append(pid)
    go.touch()
    for pid in children:
        os.waitpid(pid, 0)
    return len(list(wins.iterdir()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("stale", [False, True])
def test_exactly_one_of_many_proceeds(tmp_path, stale):
    wins = tmp_path / "wins"
    wins.mkdir()
    if stale:
        write_lock(tmp_path / "run", dead_holder())
    assert race(tmp_path / "run", tmp_path / "go", wins, take_over=stale) == 1


def test_two_trainers_on_one_folder(cohort, tmp_path):
    """The second is refused while the first trains, and the first is not disturbed."""
    config = settings(cohort)
    with locked(tmp_path / "run"), pytest.raises(RunError, match="in use by"):
        run(config, tmp_path / "run", resume=True)
    assert not (tmp_path / "run/config.yaml").exists()
    run(config, tmp_path / "run")
    with pytest.raises(RunError, match=r"already holds a run \(finished\).*--resume"):
        run(config, tmp_path / "run")
    assert in_child(lambda: run(config, tmp_path / "run", resume=True)) == 0
