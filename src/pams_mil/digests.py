"""Digests, 32 hex digits each: of a text, of plain values, of a file, or of samples of a large file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pams_mil.atomic import strict_json


def text_digest(text: str) -> str:
    """Of a text, whatever is in it."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def slide_key(slide_id: str) -> str:
    """16 hex digits for a slide in addresses of the viewer, which say nothing about it.

    >>> slide_key("slide 1")
    '19dce9cb821d576d'
    """
    return hashlib.blake2b(repr(["slide", slide_id]).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def digest(content: Any) -> str:
    """Of plain values, as canonical JSON.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return text_digest(json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":")))


def sealed(content: Mapping[str, Any], kind: str, version: int) -> dict[str, Any]:
    """Content as the reader of a JSON file will find it, with its format, version and a digest of all that."""
    plain = json.loads(strict_json({"format": kind, "version": version, **content}))
    return {**plain, "digest": digest(plain)}


def unsealed(content: Any, kind: str, version: int) -> dict[str, Any]:
    """What `sealed` was given; a ValueError says why the content is not that.

    >>> unsealed(sealed({"alpha": 0.1}, "bound", 1), "bound", 1)
    {'alpha': 0.1}
    >>> unsealed({**sealed({"alpha": 0.1}, "bound", 1), "alpha": 0.01}, "bound", 1)
    Traceback (most recent call last):
    ValueError: it was changed after it was written
    """
    plain = dict(content) if isinstance(content, Mapping) else {}
    if plain.get("format") != kind:
        raise ValueError(f"its format is not {kind!r}")
    if plain.get("version") != version:
        raise ValueError(f"its version is {plain.get('version')!r}, this PAMS reads {version}")
    if plain.pop("digest", None) != digest(plain):
        raise ValueError("it was changed after it was written")
    return {key: value for key, value in plain.items() if key not in ("format", "version")}


def file_digest(path: Path) -> str:
    """Of a file's bytes, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16)).hexdigest()


def file_signature(path: Path) -> tuple[int, ...]:
    """What changes when a file is written or replaced; empty for one that is not there, which reading it explains."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def sampled_digest(path: Path, sample_bytes: int = 4096) -> str:
    """Of a file's size and of so many bytes at its start, middle and end; of a folder, of all files in it.

    It tells replaced features from the ones before without reading gigabytes; it cannot see a change between the
    samples that keeps the size.
    """
    files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
    hasher = hashlib.blake2b(digest_size=16)
    for entry in files:
        size = entry.stat().st_size
        name = str(entry.relative_to(path)) if entry != path else ""
        hasher.update(f"{name}|{size}|".encode("utf-8", "surrogatepass"))
        with entry.open("rb") as file:
            for start in (0, size // 2, max(0, size - sample_bytes)):
                file.seek(start)
                hasher.update(file.read(sample_bytes))
    return hasher.hexdigest()
