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


@pytest.mark.parametrize("name", pams.__all__)
def test_every_name_at_the_top_is_there(name):
    assert getattr(pams, name).__name__ == name


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_reached_and_their_names_exist(package):
    found = getattr(pams, package)
    assert found is importlib.import_module(f"pams_mil.{package}")
    assert found.__all__
    for name in found.__all__:
        assert getattr(found, name).__name__ == name
    assert set(found.__all__) <= set(dir(found))


@pytest.mark.parametrize("page", sorted(Path(__file__).parents[1].glob("docs/*.md")), ids=lambda page: page.name)
def test_pages_import_from_packages_not_from_the_files_inside(page):
    assert re.findall(r"^(?:>>> )?from pams_mil\.\w+\.\S+ import .*", page.read_text("utf-8"), re.M) == []


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


@pytest.mark.parametrize("name", pams.list_methods())
def test_methods_can_be_counted_in_sets(name):
    method = pams.create_method(name)
    assert len({method, pams.create_method(name)}) == 1


def test_methods_with_matrices_and_options_can_be_counted_too():
    options = {"costs": [[[1.0, 2.0], [3.0, 1.0]]], "remix_options": {"top_k": 3}}
    assert hash(pams.create_method("pams", **options)) == hash(pams.create_method("pams", **options))
