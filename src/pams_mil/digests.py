"""What tells contents apart: 32 hex digits of a text, of plain values, or of a file."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any


def text_digest(text: str) -> str:
    """Of a text, whatever is in it."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def digest(content: Any) -> str:
    """Of plain values, as canonical JSON.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return text_digest(json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":")))


def file_digest(path: Path) -> str:
    """Of a file's bytes, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16)).hexdigest()
