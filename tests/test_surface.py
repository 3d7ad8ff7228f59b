"""`import pams_mil as pams`: what people look for is there, is what it says, and costs nothing until it is used."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pams_mil as pams

PACKAGES = (
    "cohorts",
    "data",
    "engine",
    "evaluate",
    "methods",
    "metrics",
    "models",
    "notebook",
    "remix",
    "report",
    "wsi",
)


def test_every_name_at_the_top_is_there():
    assert [name for name in pams.__all__ if getattr(pams, name).__name__ != name] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_reached_and_their_names_exist(package):
    found = getattr(pams, package)
    assert found is importlib.import_module(f"pams_mil.{package}")
    assert found.__all__
    for name in found.__all__:
        assert getattr(found, name).__name__ == name
    assert set(found.__all__) <= set(dir(found))


def test_pages_import_from_packages_not_from_the_files_inside():
    inside = re.compile(r"^(?:>>> )?from pams_mil\.\w+\.\S+ import .*", re.M)
    pages = {page.name: inside.findall(page.read_text("utf-8")) for page in Path(__file__).parents[1].glob("docs/*.md")}
    assert {name: lines for name, lines in pages.items() if lines} == {}


def test_the_wish_list():
    wanted = (
        "ClassHierarchy", "audit", "train", "predict", "list_methods", "list_models", "list_remixes", "create_method",
        "create_model", "create_remix", "create_encoder", "MSCELoss", "AsymmetricClassificationConfidence",
        "PamsClassifier",
    )  # fmt: skip
    assert set(wanted) <= set(pams.__all__) <= set(dir(pams))


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        pams.trian  # noqa: B018


def test_importing_takes_neither_torch_nor_numpy():
    code = "import pams_mil, sys; dir(pams_mil); pams_mil.list_models(); "
    code += "print({'torch', 'numpy', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_methods_can_be_counted_in_sets():
    for name in pams.list_methods():
        assert len({pams.create_method(name), pams.create_method(name)}) == 1, name


def test_methods_with_matrices_and_options_can_be_counted_too():
    options = {"costs": [[[1.0, 2.0], [3.0, 1.0]]], "remix_options": {"top_k": 3}}
    assert hash(pams.create_method("pams", **options)) == hash(pams.create_method("pams", **options))
