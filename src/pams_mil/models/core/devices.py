"""Where and how torch computes: a device by name, threads, and whether code written by hand may stand in for it.

One core, one piece of work is often faster than all cores on the same piece: torch splits every single operation among
its threads, which then wait for each other and share data that no longer fits a core's cache. Measured with two threads
on a machine of two busy cores, alternating: EfficientNet-Lite0 takes 3.1 times as long for a batch of 32 tiles given to
torch whole, and a training step of TransMIL 1.5 times as long at n = 500 where torch splits every eigendecomposition.
With one thread, which 'pams train' and 'pams bench' choose, there is no `CoreTeam`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from pams_mil.errors import ConfigError, first_line


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one.

    >>> choose_device("cpu")
    device(type='cpu')
    >>> choose_device("cpo")
    Traceback (most recent call last):
    pams_mil.errors.ConfigError: The device 'cpo' cannot be used here: ...
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error).rstrip(".")
        raise ConfigError(f"The device {name!r} cannot be used here: {reason}. Choose auto or cpu.") from error
    return device


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run the block with `count` threads, and restore their number afterwards; None leaves it alone."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Item = TypeVar("Item")
Result = TypeVar("Result")


_ONE_AT_A_TIME = threading.Lock()
"""While a team is formed, torch's number of threads is not what it should be."""


class CoreTeam:
    """As many threads as torch may use, each of which computes on one core; they start when first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results in the order of the items."""
        if len(items) < 2 or torch.get_num_threads() == 1:
            return [work(item) for item in items]
        return list(self._threads().map(work, items))

    def _threads(self) -> ThreadPoolExecutor:
        with _ONE_AT_A_TIME:
            if self._pool is None or self._process != os.getpid():  # threads do not survive a fork
                self._pool, self._process = _single_core_threads(torch.get_num_threads()), os.getpid()
            return self._pool


def _single_core_threads(count: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(count, thread_name_prefix="core", initializer=_settle_on_one_core)
    # A pool starts a thread only when all others are busy: each waits here until every one has started and settled.
    started = threading.Barrier(count)
    list(pool.map(lambda _: started.wait(), range(count)))
    # The threads set it to 1 for the whole process; they keep their own copy, everyone else gets it back.
    torch.set_num_threads(count)
    return pool


def _settle_on_one_core() -> None:
    """Torch's setting is for all threads, but a thread takes it over once, when it first needs it: now."""
    torch.set_num_threads(1)
    torch.get_num_threads()
