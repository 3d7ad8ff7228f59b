"""Checks of `--out`, made before any work: fail fast where nothing can be written."""

from __future__ import annotations

from pathlib import Path

from pams_mil.atomic import require_folder, write_text
from pams_mil.errors import OutputError


def out_folder(path: Path | None) -> Path | None:
    """`--out` as a folder that can be written; nothing is created."""
    return None if path is None else require_folder(path)


def out_file(path: Path | None) -> Path | None:
    """`--out` as a file that can be written; nothing is created."""
    if path is None:
        return None
    if path.is_dir():
        raise OutputError(f"{path} is a folder; expected the name of a file.")
    require_folder(path.parent)
    return path


def write_new(file: Path, text: str, *, force: bool) -> None:
    """Write a file that people will edit; one that is there already is replaced with --force alone."""
    refuse_existing(file, force=force)
    write_text(file, text)


def refuse_existing(file: Path, *, force: bool) -> None:
    """Refuse to replace a file without --force, before any work."""
    if file.exists() and not force:
        raise OutputError(f"{file} exists already; choose another name or replace it with --force.")
