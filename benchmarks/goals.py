"""Goals of benchmarks: what was measured against what was wanted, every figure that misses named at the end.

>>> goals = Goals()
>>> goals.at_least("packing against a copy", 0.71, 0.5)
True
>>> goals.at_most("peak memory, MiB", 1200, 1024)
False
>>> goals.end()
Missed goal: peak memory, MiB: 1.2e+03, wanted at most 1.02e+03
1
"""

from __future__ import annotations


class Goals:
    """Collects what missed; `make bench` shows its lines once more at the very end."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def at_least(self, what: str, value: float, goal: float) -> bool:
        """Whether a figure reaches its goal; one that is not a number does not."""
        return self.check(f"{what}: {value:.3g}, wanted at least {goal:.3g}", value >= goal)

    def at_most(self, what: str, value: float, goal: float) -> bool:
        """Whether a figure stays below its limit; one that is not a number does not."""
        return self.check(f"{what}: {value:.3g}, wanted at most {goal:.3g}", value <= goal)

    def check(self, words: str, reached: bool) -> bool:
        """Keep the words unless the goal was reached."""
        if not reached:
            self.missed.append(words)
        return reached

    def end(self) -> int:
        """Name the figures that missed their goal; the exit code."""
        for words in self.missed:
            print(f"Missed goal: {words}")
        return int(bool(self.missed))
