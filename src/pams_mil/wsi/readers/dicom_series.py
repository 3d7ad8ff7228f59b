"""DICOM slides: a scan is a series of files, one per pyramid level, label and overview, that lie in one folder.

OpenSlide opens the series through any one of its files, so a series is one slide, whatever the number of its files.
Only headers are read here, and of them the few elements that are needed: no file is decoded, and none is trusted.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".dcm"
SLIDE_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
"""The class (SOP class UID) of whole-slide images."""

_HEADER_BYTES = 1 << 18  # what is wanted stands before the pixels and before the tables of frames
_IMPLICIT, _DEFLATED, _BIG_ENDIAN = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2"
_TRANSFER_SYNTAX, _CLASS, _SERIES = 0x00020010, 0x00080016, 0x0020000E
_ITEM, _ITEM_END, _SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
_UNDEFINED = 0xFFFFFFFF
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")


@dataclass(frozen=True)
class DicomHeader:
    """What a DICOM file says about itself; empty where it says nothing."""

    transfer_syntax: str = ""
    sop_class: str = ""
    series: str = ""


@dataclass(frozen=True)
class DicomSlide:
    """A series: the id of the slide, the file to open it by, and all its files."""

    slide_id: str
    path: Path
    files: tuple[Path, ...]


def read_header(path: Path) -> DicomHeader | None:
    """The header of a DICOM file, or None for any other file and for one whose header cannot be followed."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEADER_BYTES)
    except OSError:
        return None
    if data[128:132] != b"DICM":
        return None
    try:
        return _header(data)
    except struct.error:
        return None  # cut short


def dicom_slides(folder: Path) -> tuple[DicomSlide, ...]:
    """The series whose files lie directly in a folder, in order of id.

    A series of one file is named like the file. Of several files no one name is the slide's: it is named like the
    folder if that holds no other series, else by its series UID. The largest file, the scan at full resolution, stands
    for the series.
    """
    series: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() == SUFFIX and not path.name.startswith(".") and path.is_file():
            header = read_header(path)
            series[header.series if header and header.series else str(path)].append(path)
    slides = (_slide(uid, files, alone=len(series) == 1) for uid, files in series.items())
    return tuple(sorted(slides, key=lambda slide: slide.slide_id))


class SeriesFinder:
    """The series that files belong to; every folder is looked at once."""

    def __init__(self) -> None:
        self._folders: dict[Path, dict[Path, DicomSlide]] = {}

    def of(self, path: Path) -> DicomSlide | None:
        """The series of a file that is there, or None if it is not a DICOM file by its name."""
        if path.suffix.lower() != SUFFIX or not path.is_file():
            return None
        folder = path.parent
        if folder not in self._folders:
            self._folders[folder] = {file: slide for slide in dicom_slides(folder) for file in slide.files}
        return self._folders[folder].get(path)  # hidden files are nobody's


def gather(paths: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Id and file of every slide among files, each once; the files of one DICOM series are one slide.

    >>> [slide_id for slide_id, _ in gather([Path("case-17.svs"), Path("missing.dcm"), Path("case-17.svs")])]
    ['case-17', 'missing']
    """
    finder = SeriesFinder()
    told: set[Path] = set()
    for path in paths:
        slide = finder.of(path)
        name, file = (slide.slide_id, slide.path) if slide else (path.stem, path)
        if file not in told:
            told.add(file)
            yield name, file


def _slide(uid: str, files: list[Path], *, alone: bool) -> DicomSlide:
    # By size, since names and order within a series mean nothing.
    largest = max(files, key=lambda path: (path.stat().st_size, path.name))
    if len(files) == 1:
        return DicomSlide(largest.stem, largest, tuple(files))
    return DicomSlide(largest.absolute().parent.name if alone else uid, largest, tuple(files))


def _header(data: bytes) -> DicomHeader:
    found: dict[int, str] = {}
    start = 132
    # Group 2, the file's own part, says in which transfer syntax all others are written.
    for tag, value, end in _elements(data, start, explicit=True):  # the file's own part is always explicit
        if tag >> 16 != 2:
            break
        found[tag] = _text(value)
        start = end
    syntax = found.get(_TRANSFER_SYNTAX, "")
    # Of these two, one would have to be inflated and one read the other way round: their series stays unknown.
    if syntax not in (_DEFLATED, _BIG_ENDIAN):
        for tag, value, _ in _elements(data, start, explicit=syntax != _IMPLICIT):
            # Elements come in rising order of their tags: nothing that is wanted follows.
            if tag > _SERIES:
                break
            found[tag] = _text(value)
    return DicomHeader(syntax, found.get(_CLASS, ""), found.get(_SERIES, ""))


def _elements(data: bytes, start: int, *, explicit: bool) -> Iterator[tuple[int, bytes, int]]:
    """Tag, value and end of every element outside of sequences, until the data end."""
    depth = 0
    while start + 8 <= len(data):
        group, element = struct.unpack_from("<HH", data, start)
        tag = (group << 16) | element
        # Items and their ends have no kind, even where all other elements name theirs.
        marks = tag in (_ITEM, _ITEM_END, _SEQUENCE_END)
        if explicit and not marks:
            kind = data[start + 4 : start + 6]
            # These kinds have two bytes of padding and a length of four bytes; the others a length of two.
            if kind in _LONG:
                (length,) = struct.unpack_from("<I", data, start + 8)
                start += 12
            else:
                (length,) = struct.unpack_from("<H", data, start + 6)
                start += 8
        else:
            (length,) = struct.unpack_from("<I", data, start + 4)
            start += 8
        if tag in (_ITEM_END, _SEQUENCE_END):
            depth -= 1
        elif length == _UNDEFINED:  # a sequence or an item that ends where its end is marked
            depth += 1
        else:
            # Elements inside of a sequence may have the same tags as the file's own, and are not meant.
            if depth == 0 and not marks:
                yield tag, data[start : start + length], start + length
            start += length


def _text(value: bytes) -> str:
    return value.rstrip(b"\0 ").decode("ascii", "replace")
