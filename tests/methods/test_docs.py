"""docs/methods.md and its figure say what the code does."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from pams_mil import discover
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.cross_entropy import CrossEntropy
from pams_mil.methods.method import Method

DOCS = Path(__file__).parents[2] / "docs"


def script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = script("generate_methods")


def test_the_page_is_fresh():
    assert (DOCS / "methods.md").read_text("utf-8") == PAGE.page(), "run: python docs/generate_methods.py"


def test_the_figure_is_fresh_and_shows_what_its_caption_claims():
    hierarchy = ClassHierarchy.load("bracs")
    true = hierarchy.index("FEA")
    table = script("draw_loss_penalties").all_penalties(hierarchy, true)
    with Image.open(DOCS / "images" / "loss-penalties.png") as picture:
        assert json.loads(picture.text["Description"]) == table, "run: python docs/draw_loss_penalties.py"
    misses, alarms = hierarchy.outranks()[true], hierarchy.outranks()[:, true]
    asymmetric = {
        name for name, row in table.items()
        if min(p for p, m in zip(row, misses, strict=True) if m) > max(p for p, a in zip(row, alarms, strict=True) if a)
    }  # fmt: skip
    assert asymmetric == {"pams", "msce"}


@pytest.mark.parametrize("name", discover.available("methods"))
def test_every_method_describes_itself(name):
    method = PAGE.describe(name)
    assert method.title.endswith(".")
    assert "=" in method.equation
    assert set(method.notes) == {"Paper's setting", "Deviations", "License"}
    assert {"towers", "remix", "remix_options"} <= {parameter.name for parameter in method.parameters}
    defaults = discover.load("methods", name)()
    for parameter in method.parameters:
        assert parameter.text
        assert getattr(defaults, parameter.name) == parameter.default


def test_an_undocumented_parameter_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Silent(CrossEntropy):
        """Says nothing."""

        secret: float = 1.0

    assert issubclass(Silent, Method)
    with pytest.raises(ParameterError, match="Silent does not document 'secret'"):
        list(PAGE.parameters(Silent))
