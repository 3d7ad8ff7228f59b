"""Many trials of one fault, each in a child process: how did each end, and what does it add up to?

A child may raise anything, crash in a C library, hang or eat memory; the survey goes on with the next trial.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

from pams_mil.errors import PamsError

OUTCOMES = {"r": "refused", "s": "same", "o": "other data", "x": "bug", "c": "crashed", "h": "hung"}
SECONDS = 60

TABLE: list[tuple[str, str, int, Counter[str]]] = []
"""(fault, what it was done to, trials, outcomes), printed at the end of the session."""


def survey(trials: Sequence[Callable[[], bool]], *, fault: str, target: str) -> Counter[str]:
    """Run every trial; one that returns says whether what it read is what was written."""
    found: Counter[str] = Counter()
    start = 0
    while start < len(trials):
        letters = _in_child(trials[start:])
        found.update(OUTCOMES[letter] for letter in letters)
        start += len(letters)
    TABLE.append((fault, target, len(trials), found))
    return found


def judge(trial: Callable[[], bool]) -> str:
    """How one trial ended."""
    try:
        return "s" if trial() else "o"
    except PamsError:
        return "r"
    except Exception:
        return "x"


def _in_child(trials: Sequence[Callable[[], bool]]) -> str:
    """Outcomes of as many trials as one child survives, at least one."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for trial in trials:
                os.write(writing, judge(trial).encode())
        os._exit(0)
    os.close(writing)
    letters = ""
    while len(letters) < len(trials):
        ready, _, _ = select.select([reading], [], [], SECONDS)
        if not ready:
            os.kill(child, signal.SIGKILL)
            letters += "h"
            break
        more = os.read(reading, 1 << 16).decode()
        if not more:
            letters += "c"
            break
        letters += more
    os.close(reading)
    os.waitpid(child, 0)
    return letters


def lines() -> list[str]:
    """The survey for people."""
    shown = []
    for fault, target, trials, found in TABLE:
        parts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.items()))
        shown.append(f"{fault:<12} {target:<34} {trials:>5} trials: {parts}")
    return shown
