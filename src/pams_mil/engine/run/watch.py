"""Who looks on while a run goes: the command line draws a bar, a benchmark keeps quiet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any


class Watch:
    """Told what happens, and must not change anything. This one ignores it all: override what you want to hear."""

    def epoch_started(self, epoch: int, epochs: int, steps: int, done: int) -> None:
        """An epoch of `steps` bags begins, `done` of them trained before an interruption."""

    def stepped(self, terms: Mapping[str, float], bags: int = 1) -> None:
        """So many bags were trained on, with this mean of every term."""

    def validated(self, fraction: float) -> None:
        """This share of the validation bags is predicted."""

    def epoch_finished(self, row: Mapping[str, Any]) -> None:
        """The epoch's row of `metrics.csv`."""

    def noted(self, text: str) -> None:
        """Something worth telling."""


class StopRequest:
    """Ctrl-C, SIGTERM and SIGHUP ask the loop to save and stop at the next safe point; a second one does not wait.

    A signal that is ignored stays ignored: under `nohup` a run outlives its terminal.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: int = signal.SIGINT
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python lets only the main thread set handlers; a run in another thread is stopped by whoever started it.
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            # The second one: what is under way is given up, and the last checkpoint is what is left.
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.requested, self.signal = True, number


def stop_signals() -> list[int]:
    """The signals by which people, shells and schedulers end a process, without those that it was told to ignore."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
