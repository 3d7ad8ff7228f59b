"""Run as a program: packs a cohort again and again, each time in a child that is stopped somewhere else.

usage: pack_scenarios.py FOLDER kill|disk. The cohort lies in FOLDER/in; scenario k packs into FOLDER/<k>.
Prints one JSON object per scenario: its name and how the child ended.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pams_mil import atomic
from pams_mil.data import Manifest, SlideRecord
from pams_mil.data.bags import pack_writer
from pams_mil.errors import OutputError

STAGES: tuple[tuple[Any, str], ...] = (
    (pack_writer, "read_bag"),
    (pack_writer, "_compare"),
    (pack_writer, "save"),
    (atomic, "_flush"),
    (os, "fsync"),
    (os, "replace"),
    (pack_writer, "encode_index"),
    (pack_writer, "Pack"),
)
LIMITS = (0, 1, 500, 4_000, 8_000, 20_000)


def pack(root: Path, name: str) -> None:
    """Pack all of FOLDER/in, two bags per shard, in one thread so that the n-th call is always the same."""
    slides = sorted(path.stem for path in (root / "in").iterdir())
    manifest = Manifest(tuple(SlideRecord(slide, slide, "N") for slide in slides))
    pack_writer.SHARD_BYTES = 2 * max(path.stat().st_size for path in (root / "in").iterdir())
    pack_writer.write_pack(root / name, manifest, root / "in", workers=1)


def die_at(owner: Any, name: str, call: int, *, after: bool) -> None:
    """Make the process kill itself at the given call of a function, before or after it does its work."""
    original: Callable[..., Any] = getattr(owner, name)
    counter = itertools.count(1)

    def wrapped(*args: Any, **options: Any) -> Any:
        number = next(counter)
        if number == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **options)
        if number == call and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


def in_child(work: Callable[[], None]) -> int:
    """The wait status of a forked child that does the work; 0 if it finished."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except OutputError as error:
            status = 42 if "Could not write" in str(error) else 43
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def scenario(stage: str, call: int, after: bool) -> str:
    """The name of a scenario and of its pack."""
    return f"{stage}-{'after' if after else 'before'}-{call}"


def report(outcome: dict[str, Any]) -> None:
    """One line for the test that started this program."""
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()


def kills(root: Path) -> None:
    """Every stage, every call of it, before and after, until the packing outlives the trap."""
    for owner, stage in STAGES:
        for after in (False, True):
            for call in itertools.count(1):

                def work(owner: Any = owner, stage: str = stage, call: int = call, after: bool = after) -> None:
                    die_at(owner, stage, call, after=after)
                    pack(root, scenario(stage, call, after))

                status = in_child(work)
                killed = os.WIFSIGNALED(status)
                report({"name": scenario(stage, call, after), "killed": killed, "status": status})
                if not killed:
                    break


def full_disk(root: Path) -> None:
    """Files may not grow beyond a limit, as on a full disk."""
    for limit in LIMITS:
        name = f"limit-{limit}"

        def work(limit: int = limit, name: str = name) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            pack(root, name)

        status = in_child(work)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        report({"name": name, "code": code})


if __name__ == "__main__":
    {"kill": kills, "disk": full_disk}[sys.argv[2]](Path(sys.argv[1]))
