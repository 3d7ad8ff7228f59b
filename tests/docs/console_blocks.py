"""The commands that the documentation shows: fenced `console` blocks with lines `$ pams ...`, and code in the text.

A block that the tests cannot run, because it takes hours or other machines, has a comment in front of it:
`<!-- not run: why -->`. Its commands are still parsed, so that no option in them can be wrong.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n+)?^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```", re.M | re.S
)
_INLINE = re.compile(r"(?<!`)`(pams [^`]+)`(?!`)")


@dataclass(frozen=True)
class Command:
    """One command of a page, as words after `pams`; `reason` says why it is not run."""

    page: Path
    words: tuple[str, ...]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}: pams {shlex.join(self.words)}"


def commands(page: Path) -> list[Command]:
    """The commands of a page's console blocks, in order."""
    found = []
    for block in _BLOCK.finditer(page.read_text("utf-8")):
        if block["kind"] != "console":
            continue
        for line in block["body"].replace("\\\n", " ").splitlines():
            if line.startswith("$ pams "):
                words = shlex.split(line.removeprefix("$ pams "), comments=True)
                found.append(Command(page, tuple(words), block["reason"] or ""))
    return found


def misplaced(page: Path) -> list[str]:
    """Lines that look like commands but are not in a console block behind a `$`, so that no test would run them."""
    found = []
    for block in _BLOCK.finditer(page.read_text("utf-8")):
        lines = block["body"].splitlines()
        found += [line for line in lines if re.match(r"\s*pams \w", line)]
        if block["kind"] != "console":
            found += [line for line in lines if line.startswith("$ pams ")]
    return found


def inline(page: Path) -> list[Command]:
    """Commands in running text; only their verb and options can be checked."""
    text = _BLOCK.sub("", page.read_text("utf-8"))
    return [Command(page, tuple(match[1].split()[1:])) for match in _INLINE.finditer(text)]


def files_of(page: Path) -> dict[str, str]:
    """The Python files that a page shows, by the name in their first line, `# my_file.py`."""
    bodies = [block["body"] for block in _BLOCK.finditer(page.read_text("utf-8")) if block["kind"] == "python"]
    named = [(re.match(r"# (\w+\.py)\n", body), body) for body in bodies]
    return {match[1]: body for match, body in named if match}


def block_of(page: Path, kind: str, containing: str) -> str:
    """The first block of a kind that contains a text, for example the grid of a benchmark."""
    for block in _BLOCK.finditer(page.read_text("utf-8")):
        if block["kind"] == kind and containing in block["body"]:
            return block["body"]
    raise LookupError(f"{page} has no {kind} block with {containing!r}")
