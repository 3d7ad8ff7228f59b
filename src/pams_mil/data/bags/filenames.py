"""Slide ids as file names: safe on every file system, never outside the folder, never one name for two ids."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

SLIDE_SUFFIXES = (
    ".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".czi", ".dcm", ".isyntax", ".svslide",
)  # fmt: skip
"""What the names of slides end in; feature files are often named without it."""
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_MOST_BYTES = 180  # leaves room for a suffix and for the name of a part file


def features_of(table: Path | None, stated: Path | str | None) -> Path:
    """Where the features of a table's slides lie: the folder or pack that was stated, else the table's own folder.

    >>> features_of(Path("cohort/labels.csv"), None).as_posix(), features_of(None, "a.pack").as_posix()
    ('cohort', 'a.pack')
    """
    return Path(stated) if stated is not None else Path() if table is None else table.parent


class FileNames:
    """A file name, without suffix, for every slide id: no two ids share one, also when they come one by one.

    Ordinary ids are their own names. Signs with a meaning to file systems are percent-encoded. Names that are too long
    or reserved, and ids in a Unicode form that some system would rewrite, end in a hash of the id; so do ids that
    differ from another one only in upper and lower case.

    >>> names = FileNames(["S-01 a", "../x", "a/b", "%00"])
    >>> [names[slide_id] for slide_id in ("S-01 a", "../x", "a/b", "%00")]
    ['S-01 a', '%2E.%2Fx', 'a%2Fb', '%2500']
    >>> names = FileNames(["A", "a"])
    >>> names["A"], names["a"]
    ('A~...', 'a~...')
    """

    def __init__(self, slide_ids: Iterable[str] = ()) -> None:
        # Who has a name, as file systems that ignore case see it. Of ids known in advance that collide nobody has it:
        # names must not depend on the order of ids.
        self._owner: dict[str, str | None] = {}
        for slide_id in dict.fromkeys(slide_ids):
            name = _plain(slide_id)
            if not _needs_hash(slide_id, name):
                self._owner[_as_taken(name)] = None if _as_taken(name) in self._owner else slide_id

    def __getitem__(self, slide_id: str) -> str:
        name = _plain(slide_id)
        if _needs_hash(slide_id, name) or self._owner.setdefault(_as_taken(name), slide_id) != slide_id:
            # A sign that is cut in two is dropped.
            cut = name.encode()[:_MOST_BYTES].decode("utf-8", "ignore")
            return f"{cut}~{hashlib.blake2b(slide_id.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
        return name


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


def _needs_hash(slide_id: str, name: str) -> bool:
    # Of all ids that one Unicode form makes equal only the one in that form keeps its name, whichever come along.
    rewritten = unicodedata.normalize("NFKC", slide_id) != slide_id
    return rewritten or not name or len(name.encode()) > _MOST_BYTES or _RESERVED.fullmatch(name) is not None


def _as_taken(name: str) -> str:
    """What a file system that ignores case and Unicode forms takes the name for."""
    return unicodedata.normalize("NFKC", name).casefold()
