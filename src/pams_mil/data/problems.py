"""What can be wrong with a cohort: each problem has a kind, a message and the slides it concerns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pams_mil.errors import ManifestError


@dataclass(frozen=True)
class Problem:
    """One finding. An error makes the cohort unusable; a warning is worth knowing."""

    kind: str
    message: str
    slides: tuple[str, ...] = ()
    error: bool = True

    def to_json(self) -> dict[str, Any]:
        """The problem as plain values."""
        level = "error" if self.error else "warning"
        return {"kind": self.kind, "level": level, "message": self.message, "slides": list(self.slides)}


def refuse_errors(problems: Iterable[Problem], where: str) -> None:
    """Raise one `ManifestError` that tells of the first five errors, if there are any."""
    errors = [problem.message for problem in problems if problem.error]
    if errors:
        shown = [*errors[:5], *([f"and {len(errors) - 5} more"] if len(errors) > 5 else [])]
        lines = "".join(f"\n- {line}" for line in shown)
        raise ManifestError(f"{where} cannot be used:{lines}\n'pams check' lists everything in one pass.")
