"""For the site: the examples of docstrings become code blocks, which Markdown would take for quotations."""

from __future__ import annotations

from typing import Any

import griffe


class FenceDoctests(griffe.Extension):
    """Puts a fence around every run of lines that begins with `>>>` and ends at an empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that was found in the source, before its docstring is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with its examples in fences; those that are fenced already stay as they are."""
    lines: list[str] = []
    example = fence = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fence = not fence
        if not fence and not example and line.startswith(">>> "):
            lines.append("```pycon")
            example = True
        elif example and not line.strip():
            lines.append("```")
            example = False
        lines.append(line)
    return "\n".join([*lines, "```"] if example else lines)
