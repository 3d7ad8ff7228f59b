"""What a slide is that no reader can open, in words, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pams_mil.wsi.readers.dicom_series import SLIDE_CLASS, SUFFIX, read_header

_JPEG_FAMILY = {
    "12-bit JPEG": (51,), "lossless JPEG": (57, 70), "JPEG-LS": (80, 81), "JPEG XL": (110, 111, 112),
    "High-Throughput JPEG 2000": (201, 202, 203),
}  # fmt: skip
_SYNTAXES = {f"1.2.840.10008.1.2.4.{end}": name for name, ends in _JPEG_FAMILY.items() for end in ends}
_SYNTAXES["1.2.840.10008.1.2.5"] = "run-length encoding"
_MOST_JSON_BYTES = 1 << 24
_TO_TIFF = "Convert it to a pyramidal OME-TIFF, for example with raw2ometiff or with QuPath's 'convert-ome'"


def is_ome_zarr(path: Path) -> bool:
    """Whether a folder is an OME-Zarr image, or a collection of them as bioformats2raw writes it."""
    return path.is_dir() and _ome_version(path) is not None


def is_zarr(path: Path) -> bool:
    """Whether a folder is the root of a Zarr store of any kind, whose many files are not slides."""
    return any((path / name).is_file() for name in ("zarr.json", ".zgroup", ".zattrs", ".zarray"))


def said_of(path: Path) -> str:
    """A sentence or two on what an unreadable slide is and what to do; empty if nothing is known about it."""
    suffix = path.suffix.lower()
    if path.is_dir():
        version = _ome_version(path)
        if version is not None:
            stated = version and f" (version {version})"
            return f"It is an OME-Zarr image{stated}, which no reader here opens. {_TO_TIFF}."
        if (path / "tables").is_dir() and (path / "shapes").is_dir():
            return "It is a SpatialData store as LazySlide writes it: features, not a slide. Give it as --features."
        return "It is a Zarr store without OME-Zarr's description of an image (multiscales)." if is_zarr(path) else ""
    if suffix == ".isyntax":
        return "It is a Philips iSyntax file, which no reader here knows. Convert it to DICOM, e.g. with wsidicomizer."
    if suffix == ".mrxs" and not path.with_suffix("").is_dir():
        return f"The pixels of a MIRAX slide lie in a folder of its name, but {path.stem}/ is not beside it."
    if suffix != SUFFIX:
        return ""
    header = read_header(path)
    if header is None:
        return "It is not a DICOM file, although it is named like one, or its header is damaged."
    if header.sop_class != SLIDE_CLASS:
        return f"It is a DICOM file of class {header.sop_class or 'unknown'}, not a whole-slide image ({SLIDE_CLASS})."
    if (name := _SYNTAXES.get(header.transfer_syntax)) is not None:
        return (
            f"It is a DICOM slide in {name} (transfer syntax {header.transfer_syntax}), which OpenSlide does not read. "
            "Convert it to JPEG with the Python package wsidicom: "
            f"WsiDicom.open({path.absolute().parent.name!r}).save(FOLDER, transcoding=JpegSettings())."
        )
    return (
        "It is a DICOM slide. OpenSlide needs all files of its series in one folder, fully tiled and in 8-bit color, "
        "as JPEG, JPEG 2000 or uncompressed."
    )


def _ome_version(path: Path) -> str | None:
    """The version of an OME-Zarr image, empty where it is not stated; None for any other folder."""
    new = _attributes(path / "zarr.json").get("attributes")  # 0.5, on Zarr 3
    described = new.get("ome") if isinstance(new, dict) else None
    if isinstance(described, dict) and ("multiscales" in described or "bioformats2raw.layout" in described):
        return str(described.get("version", ""))
    old = _attributes(path / ".zattrs")  # up to 0.4, on Zarr 2
    scales = old.get("multiscales")
    if isinstance(scales, list) and scales and isinstance(scales[0], dict):
        return str(scales[0].get("version", ""))
    return "" if "bioformats2raw.layout" in old else None


def _attributes(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            return {}
        read = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
