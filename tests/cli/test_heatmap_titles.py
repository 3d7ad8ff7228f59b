"""What the pictures of `pams heatmap` are called."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pams_mil import ClassHierarchy
from pams_mil.cli.heatmap_files import _legend

CLASSES = "name: x\nlevels: [WHO group, WHO]\nclasses:\n  low grade: [group a, b]\n  high grade: [c]\n"


@pytest.mark.parametrize(
    ("name", "kind", "title"),
    [
        ("attention WHO group", "rank", "Attention WHO group"),
        ("evidence WHO group low grade", "sign", "Evidence for low grade (WHO group)"),
        ("evidence WHO b", "sign", "Evidence for b (WHO)"),
        ("urgency WHO group high grade", "probability", "At least high grade (WHO group), tile by tile"),
    ],
)
def test_levels_and_classes_with_spaces_keep_their_names(tmp_path, name, kind, title):
    (tmp_path / "classes.yaml").write_text(CLASSES)
    found = SimpleNamespace(hierarchy=ClassHierarchy.load(tmp_path / "classes.yaml"))
    assert _legend(name, kind, np.array([0.5, -1.0]), found).title == title
