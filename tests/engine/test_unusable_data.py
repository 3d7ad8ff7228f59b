"""Data that cannot be used is refused before hours are spent on training."""

from __future__ import annotations

import re
import shutil

import pytest
from tests.engine.test_grid import Here, grid_of

from pams_mil.data.tables import read_table
from pams_mil.engine.grid.grid import run_grid
from pams_mil.errors import BagError


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_unusable_features_of_a_test_slide_are_refused_before_anything_is_trained(cohort, tmp_path, damage):
    """They were found out about by the prediction after training, of every cell."""
    bags = tmp_path / "bags"
    shutil.copytree(cohort / "bags", bags)
    table = read_table(cohort / "manifest.csv")
    slide = next(slide for slide, split in zip(table["slide_id"], table["split"], strict=True) if split == "test")
    (file,) = bags.glob(f"{slide}.*")
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-100])
    here = Here()
    data = {"manifest": str(cohort / "manifest.csv"), "features": str(bags)}
    with pytest.raises(BagError, match=re.escape(slide)):
        run_grid(grid_of(cohort, data=data), tmp_path / "out", here)
    assert here.ran == []
