"""DICOM slides: a scan is a series of files, one per pyramid level, label and overview, that lie in one folder.

OpenSlide opens the series through any one of its files, so a series is one slide, whatever the number of its files.
Only headers are read here, by pydicom, and of them the few elements that are needed; no file is decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pams_mil.errors import needs_extra

SUFFIX = ".dcm"
SLIDE_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
"""The class (SOP class UID) of whole-slide images."""

_CLASS, _SERIES = 0x00080016, 0x0020000E
_DEFLATED = "1.2.840.10008.1.2.1.99"


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
            if file.read(132)[128:] != b"DICM":
                return None
    except OSError:
        return None
    with needs_extra("Reading DICOM slides", package="pydicom", extra="wsi"):
        from pydicom.filereader import read_file_meta_info, read_partial  # noqa: PLC0415  few slides are DICOM
    try:
        syntax = str(read_file_meta_info(path).get("TransferSyntaxUID", ""))
        # It would be inflated as a whole, to whatever size.
        if syntax == _DEFLATED:
            return DicomHeader(syntax)
        with path.open("rb") as file:
            # Elements come in rising order of their tags: nothing that is wanted follows the series.
            header = read_partial(file, stop_when=lambda tag, _, __: tag > _SERIES, specific_tags=[_CLASS, _SERIES])
        return DicomHeader(syntax, str(header.get("SOPClassUID", "")), str(header.get("SeriesInstanceUID", "")))
    except Exception:  # a damaged header raises anything; what the file is stays unknown
        return None


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
    slides = []
    for uid, files in series.items():
        # By size, since names and order within a series mean nothing.
        largest = max(files, key=lambda path: (path.stat().st_size, path.name))
        name = largest.stem if len(files) == 1 else folder.absolute().name if len(series) == 1 else uid
        slides.append(DicomSlide(name, largest, tuple(files)))
    return tuple(sorted(slides, key=lambda slide: slide.slide_id))


def gather(paths: Iterable[Path]) -> Iterator[tuple[Path, str, Path]]:
    """Every file with the id of its slide and the file to open that by; the files of one DICOM series are one slide.

    >>> [slide_id for _, slide_id, _ in gather([Path("case-17.svs"), Path("missing.dcm")])]
    ['case-17', 'missing']
    """
    folders: dict[Path, dict[Path, DicomSlide]] = {}
    for path in paths:
        slide = None
        if path.suffix.lower() == SUFFIX and path.is_file():
            if path.parent not in folders:  # every folder is looked at once
                folders[path.parent] = {file: slide for slide in dicom_slides(path.parent) for file in slide.files}
            slide = folders[path.parent].get(path)  # hidden files are skipped
        yield path, slide.slide_id if slide else path.stem, slide.path if slide else path
