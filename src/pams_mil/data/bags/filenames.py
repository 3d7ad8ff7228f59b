"""Slide ids as file names: safe on every file system, never outside the folder, never one name for two ids."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

SLIDE_SUFFIXES = (
    ".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".czi", ".dcm", ".isyntax", ".svslide",
)  # fmt: skip
"""What the names of slides end in; feature files are often named without it."""
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_MOST_BYTES = 180  # leaves room for a suffix and for the name of a part file


def file_names(slide_ids: Iterable[str]) -> dict[str, str]:
    """A file name, without suffix, for every id.

    Ordinary ids are their own names. Signs with a meaning to file systems are percent-encoded; names that are
    too long, reserved, or that some file system would take for one another end in a hash of the id.

    >>> file_names(["S-01 a", "../x", "a/b", "%00"])
    {'S-01 a': 'S-01 a', '../x': '%2E.%2Fx', 'a/b': 'a%2Fb', '%00': '%2500'}
    >>> sorted(file_names(["A", "a"]).values())
    ['A~...', 'a~...']
    """
    ids = list(dict.fromkeys(slide_ids))
    plain = {slide_id: _plain(slide_id) for slide_id in ids}
    # All of a pair that collide get a hash, not only the later one: names must not depend on the order of ids.
    taken = Counter(_as_taken(name) for name in plain.values())
    return {
        slide_id: f"{_cut(name)}~{_hash(slide_id)}" if taken[_as_taken(name)] > 1 or _unsafe(name) else name
        for slide_id, name in plain.items()
    }


def _plain(slide_id: str) -> str:
    name = "".join(_encoded(sign) for sign in unicodedata.normalize("NFC", slide_id))
    # Hidden files, home folders and options of commands begin so; Windows drops dots and spaces at the end.
    if name[:1] in (".", "~", "-", " "):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if name[-1:] in (".", " "):
        name = f"{name[:-1]}%{ord(name[-1]):02X}"
    return name


def _encoded(sign: str) -> str:
    # '%' and '~' are not among them, so an encoded name or one with a hash is never the plain name of another id.
    if sign.isalnum() or sign in "._- ()+=@#,":
        return sign
    return "".join(f"%{byte:02X}" for byte in sign.encode("utf-8", "surrogatepass"))


def _unsafe(name: str) -> bool:
    return not name or len(name.encode()) > _MOST_BYTES or _RESERVED.fullmatch(name) is not None


def _as_taken(name: str) -> str:
    """What a file system that ignores case and Unicode forms takes the name for."""
    return unicodedata.normalize("NFKC", name).casefold()


def _cut(name: str) -> str:
    # A sign that is cut in two is dropped.
    return name.encode()[:_MOST_BYTES].decode("utf-8", "ignore")


def _hash(slide_id: str) -> str:
    return hashlib.blake2b(slide_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
