"""Work done in forked processes, which may kill themselves or be killed: no interpreter to start, nothing to import."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 600
"""Nothing here takes a tenth of it; a machine that does many other things may need it."""


class Forked:
    """A process that does something; its output goes to a file."""

    def __init__(self, action: Callable[[], Any], log: Path | None = None) -> None:
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about forking with threads
            self.pid = os.fork()
        self.log = log
        self._status: int | None = None
        if self.pid == 0:
            os._exit(_do(action, log, parent))

    @classmethod
    def pams(cls, log: Path, *arguments: object) -> Forked:
        """`pams` with these arguments, as its entry point runs it."""

        def action() -> None:
            from pams_mil.cli.main import main

            os.environ["COLUMNS"] = "200"
            sys.argv = ["pams", *map(str, arguments)]
            main()

        return cls(action, log)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        if self._status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if done else None
        return self._status is None

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, or minus the signal that killed it."""
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]
        return os.waitstatus_to_exitcode(self._status)

    def wait_until(self, happened: Callable[[], Any]) -> None:
        """Wait for something that it does; it must not end before."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            if not self.is_running or time.monotonic() > deadline:
                raise AssertionError(f"it never came: {self.said()}")
            time.sleep(0.01)

    def said(self) -> str:
        """What it printed."""
        return "" if self.log is None or not self.log.exists() else self.log.read_text()


def _end_without(parent: int) -> None:
    """End this process when the tests that started it are gone, instead of training on unseen."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(4)


def _do(action: Callable[[], Any], log: Path | None, parent: int) -> int:
    # What earlier tests left to the garbage collector stays: some objects (sessions of onnxruntime) wait, when they
    # are destroyed, for threads that a forked process does not have.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background may have both ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    threading.Thread(target=_end_without, args=(parent,), daemon=True).start()
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    try:
        action()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 3
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def in_child(action: Callable[[], Any]) -> int:
    """Run something in a forked process that may kill itself; the wait status."""
    return os.waitpid(Forked(action).pid, 0)[1]
