"""Name to object: everything that is listed can be loaded, and mistakes are answered with the nearest name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pams_mil import discover
from pams_mil.errors import ConfigError


@pytest.mark.parametrize("package", ["methods", "models", "remix"])
def test_every_listed_name_loads_an_object_of_its_package(package: str):
    names = discover.available(package)
    assert names
    for name in names:
        found = discover.load(package, name)
        assert found.__module__.startswith(f"pams_mil.{package}.")
        assert found.__doc__


def test_listing_imports_nothing():
    discover._declared.cache_clear()
    before = set(sys.modules)
    for package in ("methods", "models", "remix"):
        discover.available(package)
    assert set(sys.modules) == before


def test_a_misspelt_name():
    with pytest.raises(ConfigError, match=r"no model called 'abmill'\. Did you mean 'abmil'\? Available: .*'abmil'"):
        discover.load("models", "abmill")


@pytest.mark.parametrize("name", ["base", "../errors", "__init__", "", "abmil.AbMil"])
def test_modules_without_the_mark_are_not_names(name: str):
    with pytest.raises(ConfigError, match="There is no model called"):
        discover.load("models", name)


def test_anyone_elses_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_discovered_package.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert discover.load("methods", "my_discovered_package:Mine").__name__ == "Mine"


@pytest.mark.parametrize(
    "name", ["no_such_module_anywhere:X", "json:NoSuchName", ":x", "json:", ".relative:x", "a b:c"]
)
def test_foreign_names_that_lead_nowhere(name: str):
    with pytest.raises(ConfigError, match="Could not load the method"):
        discover.load("methods", name)
