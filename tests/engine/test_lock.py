"""Two runs cannot damage each other: one folder, one writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
from tests.engine.cohort import run, settings
from tests.forked import in_child

from pams_mil.engine.run import lock
from pams_mil.engine.run.lock import LOCK, Holder, locked, read_lock
from pams_mil.errors import RunError


def dead_holder():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return replace(Holder.here(), pid=child.pid)


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
        assert before.pid != os.getpid()


def test_number_of_a_dead_process_used_again_is_recognized(tmp_path):
    """The number is ours by now, but nobody keeps the guard."""
    write_lock(tmp_path, replace(Holder.here(), since="2026-01-01 00:00:00"))
    with locked(tmp_path, take_over=True) as before:
        assert before.since == "2026-01-01 00:00:00"


@pytest.mark.parametrize(("namespace", "dead"), [(lock._OUTERMOST, True), ("pid:[4026532000]", False)])
def test_restart_of_the_machine_ends_its_processes_but_a_container_may_be_elsewhere(monkeypatch, namespace, dead):
    monkeypatch.setattr(lock, "process_namespace", lambda: namespace)
    assert replace(Holder.here(), boot="another boot").is_dead() is dead
    assert not replace(Holder.here(), boot="another boot", host="other").is_dead()


def test_without_proc_the_name_of_the_machine_and_the_guard_decide(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_boot", str)
    write_lock(tmp_path, replace(dead_holder(), host="elsewhere"))
    with pytest.raises(RunError, match="in use by"), locked(tmp_path, take_over=True):
        pass
    write_lock(tmp_path, dead_holder())
    with locked(tmp_path, take_over=True) as before:
        assert before is not None


HOLD = """
import sys, time
from pathlib import Path
from pams_mil.engine.run.lock import locked
with locked(Path(sys.argv[1]), owner=sys.argv[2]):
    print("held", flush=True)
    time.sleep(3600)
"""


@contextmanager
def held_elsewhere(folder, *before, owner=""):
    """Another process, perhaps in a container, that holds the folder; its `run.lock` is there already."""
    child = subprocess.Popen(
        [*before, sys.executable, "-c", HOLD, str(folder), owner], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        if child.stdout.readline().strip() != "held":
            pytest.skip(f"not possible here: {child.stderr.read()[-200:]}")
        yield child
    finally:
        child.kill()
        child.communicate()


def test_living_attempt_of_the_same_owner_is_never_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_WAIT_SECONDS", 0.3)
    with held_elsewhere(tmp_path, owner="bench-1") as child:
        with (
            pytest.raises(RunError, match=f"in use by process {child.pid} "),
            locked(tmp_path, take_over=True, owner="bench-1"),
        ):
            pass
        assert read_lock(tmp_path / LOCK).pid == child.pid
    with locked(tmp_path, take_over=True, owner="bench-1") as before:
        assert before.pid == child.pid


CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Other process numbers under the same host name and kernel, as a container has them."""


def test_lock_of_a_living_process_in_another_container_is_respected(tmp_path):
    with held_elsewhere(tmp_path, *CONTAINER):
        holder = read_lock(tmp_path / LOCK)
        assert holder.host == Holder.here().host
        assert holder.namespace != Holder.here().namespace
        with pytest.raises(RunError, match="in use by"), locked(tmp_path, take_over=True):
            pass
    with locked(tmp_path, take_over=True) as before:  # and that of a dead one is not in the way
        assert before == holder


def test_lock_of_another_machine_is_never_taken(tmp_path):
    write_lock(tmp_path, replace(dead_holder(), host="elsewhere", boot="another boot"))
    with pytest.raises(RunError, match="on elsewhere"), locked(tmp_path, take_over=True):
        pass
    assert (tmp_path / LOCK).exists()


def test_attempts_of_one_benchmark_follow_each_other(tmp_path):
    write_lock(tmp_path, replace(dead_holder(), host="elsewhere", boot="another boot", owner="bench-1"))
    with pytest.raises(RunError), locked(tmp_path, take_over=True, owner="bench-2"):
        pass
    with locked(tmp_path, take_over=True, owner="bench-1") as before:
        assert before is not None


def test_unreadable_lock_is_respected(tmp_path):
    (tmp_path / LOCK).write_text("{")
    with pytest.raises(RunError, match="unknown machine"), locked(tmp_path, take_over=True):
        pass


CONTENDERS = 8


def race(folder, go, wins, **options):
    """Many processes reach for one lock at the same moment."""
    children, losses = [], folder.parent / "losses"
    losses.mkdir()
    for number in range(CONTENDERS):

        def contender(number=number):
            while not go.exists():
                time.sleep(0.001)
            try:
                with locked(folder, **options):
                    (wins / str(number)).touch()
                    while len(list(wins.iterdir())) + len(list(losses.iterdir())) < CONTENDERS:
                        time.sleep(0.001)  # it is held until all others have tried
            except RunError:
                (losses / str(number)).touch()

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
