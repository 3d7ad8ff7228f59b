"""What can be wrong with a cohort: each problem has a kind, a message and the slides it concerns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def refuse_errors(problems: Iterable[Problem], where: str, *, most: int = 5) -> None:
    """Raise one `ManifestError` that tells of the first few errors, if there are any."""
    errors: Sequence[Problem] = [problem for problem in problems if problem.error]
    if not errors:
        return
    lines = "".join(f"\n- {problem.message}" for problem in errors[:most])
    rest = f"\n- and {len(errors) - most} more" if len(errors) > most else ""
    raise ManifestError(f"{where} cannot be used:{lines}{rest}\n'pams check' lists everything in one pass.")
