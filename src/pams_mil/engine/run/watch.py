"""Who looks on while a run goes: the command line draws a bar, a benchmark keeps quiet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, Protocol


class Watch(Protocol):
    """Told what happens; must not change anything."""

    def epoch_started(self, epoch: int, epochs: int, steps: int, done: int) -> None:
        """An epoch of `steps` bags begins, `done` of them trained before an interruption."""

    def stepped(self, terms: Mapping[str, float]) -> None:
        """One bag was trained on."""

    def validated(self, fraction: float) -> None:
        """This share of the validation bags is predicted."""

    def epoch_finished(self, row: Mapping[str, Any]) -> None:
        """The epoch's row of `metrics.csv`."""

    def noted(self, text: str) -> None:
        """Something worth telling."""


class SilentWatch:
    """Nobody looks on."""

    def epoch_started(self, epoch: int, epochs: int, steps: int, done: int) -> None:
        """Nothing."""

    def stepped(self, terms: Mapping[str, float]) -> None:
        """Nothing."""

    def validated(self, fraction: float) -> None:
        """Nothing."""

    def epoch_finished(self, row: Mapping[str, Any]) -> None:
        """Nothing."""

    def noted(self, text: str) -> None:
        """Nothing."""


class StopRequest:
    """Ctrl-C and SIGTERM ask the loop to save and stop at the next safe point; a second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
