"""One HTML report for all experiments of a folder: each run replaces its own section and keeps the others."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pams_mil import atomic, discover
from pams_mil.experiments.study import Section
from pams_mil.report.page import render


def write_section(section: Section, out: Path) -> Path:
    """Store the section beside its files and write the report anew; returns the report."""
    content = asdict(section)
    for table in content["tables"]:
        table["bold"], table["underlined"] = sorted(table["bold"]), sorted(table["underlined"])
    atomic.write_json(out / section.name / "section.json", content)
    report = out / "report.html"
    atomic.write_text(report, page(out))
    return report


def page(out: Path) -> str:
    """The report over every section found in the folder, in the order of the experiments' names."""
    sections = []
    for name in names():
        path = out / name / "section.json"
        if path.exists():
            sections.append(_with_pictures(json.loads(path.read_text("utf-8")), out / name))
    return render("experiments.html.j2", sections=sections)


def names() -> list[str]:
    """All experiments as users type them."""
    return [name.replace("_", "-") for name in discover.available("experiments")]


def picture_file(folder: Path, name: str) -> Path:
    """The file of a figure to show: the PNG, or the SVG where that is all there is."""
    drawn = folder / f"{name}.png"
    return drawn if drawn.exists() else folder / f"{name}.svg"


def _with_pictures(section: dict[str, Any], folder: Path) -> dict[str, Any]:
    pictures = []
    for name, meaning in section["figures"]:
        file = picture_file(folder, name)
        kind = "png" if file.suffix == ".png" else "svg+xml"
        data = base64.b64encode(file.read_bytes()).decode()
        pictures.append({"source": f"data:image/{kind};base64,{data}", "meaning": meaning})
    tables = [
        {**table, "bold": {tuple(c) for c in table["bold"]}, "underlined": {tuple(c) for c in table["underlined"]}}
        for table in section["tables"]
    ]
    return {**section, "pictures": pictures, "tables": tables}
