"""The field's words: what a reader may search for is called as in the literature, and nowhere otherwise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pams_mil import __file__ as package

ROOT = Path(package).parent
PROJECT = Path(__file__).parents[1]
TEXTS = {".py", ".pyi", ".md", ".j2", ".js", ".yaml", ".json", ".html"}

# What must not stand in a text, and what to say instead.
INSTEAD = {
    r"\bdials?\b": "the cost ratio κ, the operating point",
    r"\bpromis(?:e|es|ed|ing)\b": "guarantee, bound",
    r"\bby heart\b": "memorizes, overfits",
    r"\bhow to mend\b": "how to fix",
    r"\bno right to do\b": "permission denied",
    r"(?<!there )\bis no (?:class|group|run folder|pack|clustering)\b": "is not a",
    r"\bare no part of\b": "are not part of",
    r"\bbelongs? into\b": "belongs in",
    r"\bput together\b": "pooled, joined",
    r"\banew\b": "again; re-apply the decision rule",
    r"\btwins?\b": "reference implementation",
    r"\bcompany\b": "batch composition",
    r"\bwithin the luck\b": "within calibration sampling error",
    r"\bbest without looking\b": "best constant call",
    r"\bon the fence\b": "near-ties",
    r"\btorn\b": "truncated",
    r"\banswers? for (?:it|them)\b": "vouches for it",
    r"\b(?:was|were) put off\b": "deferred",
    r"\blooks away\b": "a no-op observer",
    r"\bthe wrong goes\b": "where errors put their probability",
    r"\bnot a night\b": "fail fast",
    r"\bby halves\b": "conservative: treats losses as 0/1",
    r"\bis held against what\b": "is checked against",
    r"\bfeatures are so wide\b": "with this feature width",
    r"\bmatrix products like\b": "GEMM kernels prefer",
    r"\bfor those who use them\b": "are optional",
    r"\bworks at another operating point\b": "operates at a different point from",
    r"\bnothing was asked of\b": "the bound is vacuous",
    r"\b(?:over|under)_call": "false_alarm, missed",
    r"\bare nobody's\b": "are skipped",
    r"\bit is said that\b": "name the slides and what they state",
    r"\bcannot be told which\b": "cannot determine which",
}

# Participles hide what a variable holds.
VAGUE = {"found", "part", "given", "said", "made", "told"}


def foreign_words(text: str) -> list[str]:
    """The words of a text that the field does not use."""
    # JavaScript's own class is a Promise.
    text = re.sub(r"\bPromise\b(?=[.(])", "", text)
    return [match.group() for pattern in INSTEAD for match in re.finditer(pattern, text, re.IGNORECASE)]


def vague_variables(source: str) -> list[str]:
    """Variables and parameters of a source text that do not say what they hold; fields of classes are not variables."""
    nodes = list(ast.walk(ast.parse(source)))
    items = [item for node in nodes if isinstance(node, ast.ClassDef) for item in node.body]
    fields = {item.target for item in items if isinstance(item, ast.AnnAssign)}
    names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n not in fields}
    return sorted(VAGUE & names)


def texts() -> list[Path]:
    """Everything that a user or a reader sees: the source, the documentation and the README."""
    files = [path for folder in (ROOT, PROJECT / "docs") for path in folder.rglob("*") if path.suffix in TEXTS]
    return [PROJECT / "README.md", *(path for path in files if not path.name.endswith(".min.js"))]


def test_texts_use_the_words_of_the_field():
    words = {str(path): foreign_words(path.read_text("utf-8")) for path in texts() if path.is_file()}
    assert len(words) > 300
    assert {path: listed for path, listed in words.items() if listed} == {}


def test_variables_say_what_they_hold():
    names = {str(path): vague_variables(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}
    assert {path: listed for path, listed in names.items() if listed} == {}


def test_the_rules_can_fail():
    assert foreign_words("No smaller dial keeps the promise.") == ["dial", "promise"]
    assert foreign_words("There is no run folder; await Promise.all(x)") == []
    assert foreign_words("x is no run folder") == ["is no run folder"]
    assert vague_variables("def f(given):\n    found = given\n    return [part for part in found]") == [
        "found",
        "given",
        "part",
    ]
    assert vague_variables("class A:\n    made: int = 0\n    def f(self):\n        count = self.made") == []
