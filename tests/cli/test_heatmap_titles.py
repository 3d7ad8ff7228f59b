"""What the pictures of `pams heatmap` are called."""

from __future__ import annotations

import numpy as np
import pytest

from pams_mil import ClassHierarchy
from pams_mil.cli.heatmap_files import _legend
from pams_mil.engine.prediction.tiles import TileLayer

CLASSES = "name: x\nlevels: [WHO group, WHO]\nclasses:\n  low grade: [group a, group b]\n  high grade: [c]\n"


@pytest.mark.parametrize(
    ("key", "title"),
    [
        (("attention", "WHO group", None), "Attention WHO group"),
        (("evidence", "WHO group", "low grade"), "Evidence for low grade (WHO group)"),
        (("evidence", "WHO", "group b"), "Evidence for group b (WHO)"),
        (("urgency", "WHO group", "high grade"), "At least high grade (WHO group), tile by tile"),
    ],
)
def test_levels_and_classes_with_spaces_keep_their_names(tmp_path, key, title):
    (tmp_path / "classes.yaml").write_text(CLASSES)
    hierarchy = ClassHierarchy.load(tmp_path / "classes.yaml")
    assert _legend(TileLayer(*key, np.array([0.5, -1.0])), hierarchy).title == title
