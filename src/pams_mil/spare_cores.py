"""Threads that help with what the caller is doing, for work too short to wait for anybody.

Waking a thread takes long enough to matter for work of a millisecond, and a thread that wakes up on the caller's own
core is no help at all: the two then take turns. So a helper is told to keep off that core before it is woken, where the
system lets us say so (Linux).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue

import torch


class SpareCores:
    """As many threads as torch may use besides the caller; they start when first needed and wait for work."""

    def __init__(self) -> None:
        self._helpers: list[_Helper] = []
        self._process = 0
        self._one_at_a_time = threading.Lock()

    def call(self, work: Callable[[], object], most: int) -> None:
        """Ask at most so many helpers to do `work`; nobody waits for them, and they may come late or never."""
        wanted = min(most, torch.get_num_threads() - 1)
        cores = _other_cores()
        if wanted < 1 or (cores is not None and not cores):
            return
        for helper in self._crew(wanted):
            helper.call(work, cores)

    def _crew(self, count: int) -> list[_Helper]:
        with self._one_at_a_time:
            if self._process != os.getpid():  # threads do not survive a fork
                self._helpers, self._process = [], os.getpid()
            self._helpers += [_Helper() for _ in range(count - len(self._helpers))]
            return self._helpers[:count]


class _Helper:
    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="helper", daemon=True)
        self._cores: set[int] | None = None
        self._thread.start()

    def call(self, work: Callable[[], object], cores: set[int] | None) -> None:
        if cores is not None and cores != self._cores and self._thread.native_id is not None:
            try:
                os.sched_setaffinity(self._thread.native_id, cores)
                self._cores = cores
            except OSError:  # forbidden here; the helper may still find another core by itself
                pass
        self._work.put(work)

    def _run(self) -> None:
        while True:
            self._work.get()()


def _other_cores() -> set[int] | None:
    """The cores that this thread may use except the one it is on; None where the system does not tell."""
    current = _current_core()
    return None if current is None else os.sched_getaffinity(0) - {current()}


@cache
def _current_core() -> Callable[[], int] | None:
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)
