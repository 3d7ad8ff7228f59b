"""The site can be built: every page is in its menu, every link and name leads somewhere, generated pages are fresh."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer.main
import yaml
from jsonschema import Draft202012Validator
from tests.docs.console_blocks import ROOT

import pams_mil
from pams_mil.cli.main import app
from pams_mil.metrics.metric import METRICS

DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
PAGES = sorted(DOCS.rglob("*.md"))
SNIPPET = re.compile(r'^--8<-- "([^"]+)"$', re.M)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_pinned(package: str) -> bool:
    """Whether a package that shapes generated pages is the one that they were made with."""
    pins = (ROOT / "constraints.txt").read_text("utf-8").lower()
    return f"\n{package}=={version(package)}\n" in pins


def content(page: Path) -> str:
    """The text of a page with what it includes."""
    return SNIPPET.sub(lambda found: (ROOT / found[1]).read_text("utf-8"), page.read_text("utf-8"))


def in_menu(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(target, list):
            yield from in_menu(target)
        else:
            yield target


def anchors(page: Path) -> set[str]:
    """What one can link to on a page: its headings, named as Python-Markdown names them."""
    text = re.sub(r"^```.*?^```", "", content(page), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.encode("ascii", "ignore").decode()).strip().lower())
            for title in titles}  # fmt: skip


def lost_links(page: Path) -> list[str]:
    """Links of a page that lead nowhere, or out of the site."""
    text = re.sub(r"^```.*?^```", "", content(page), flags=re.M | re.S)
    lost = []
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)", text):
        name, _, place = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.is_file() or DOCS not in file.parents or (place and place not in anchors(file)):
            lost.append(target)
    return lost


def test_every_page_is_in_the_menu_once() -> None:
    assert sorted(in_menu(SITE["nav"])) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_links_stay_within_the_site_and_lead_somewhere() -> None:
    lost = {page.relative_to(DOCS).as_posix(): links for page in PAGES if (links := lost_links(page))}
    assert lost == {}, "the changelog is part of the site, too: name pages there without a link"


def test_lost_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.DOCS", tmp_path)
    (tmp_path / "b.md").write_text("## What is *new*\n")
    page = tmp_path / "a.md"
    page.write_text("[1](b.md) [2](b.md#what-is-new) [3](b.md#old) [4](c.md) [5](../README.md) [6](#nothing)\n")
    assert lost_links(page) == ["b.md#old", "c.md", "../README.md", "#nothing"]


def test_documented_names_exist() -> None:
    names = [name for page in PAGES for name in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.M)]
    assert len(names) > 15
    for name in names:
        module, _, attribute = name.rpartition(".")
        if importlib.util.find_spec(module) and hasattr(importlib.import_module(module), attribute):
            continue
        assert importlib.util.find_spec(name), name


def test_no_plugin_but_mkdocstrings_and_nothing_loaded_from_elsewhere() -> None:
    assert [next(iter(plugin)) if isinstance(plugin, dict) else plugin for plugin in SITE["plugins"]] == [
        "search", "mkdocstrings",
    ]  # fmt: skip
    assert SITE["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css"} & set(SITE)


@pytest.mark.skipif(not as_pinned("typer"), reason="the page was made with another typer")
def test_the_command_line_page_is_fresh() -> None:
    assert (DOCS / "reference/cli.md").read_text("utf-8") == script("generate_cli").page(), "run: make pages"


def test_the_page_of_numbers_is_fresh_and_has_every_metric() -> None:
    page = (DOCS / "numbers.md").read_text("utf-8")
    assert page == script("generate_numbers").page(), "run: make pages"
    assert set(script("generate_numbers").NOTES) <= set(METRICS)
    for metric in METRICS.values():
        assert f"**{metric.label}**" in page


@pytest.mark.skipif(not as_pinned("pydantic"), reason="the schemas were made with another pydantic")
def test_the_schemas_of_settings_are_fresh() -> None:
    for name, text in script("generate_schemas").schemas().items():
        assert (DOCS / "reference/schemas" / name).read_text("utf-8") == text, "run: make pages"


SAY_LITTLE = {"classes init", "demo", "init", "view"}
"""Verbs that report nothing to a program: they write a template, serve pages, or are a show for people."""


def verbs(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        verb = group.get_command(None, name)
        if hasattr(verb, "list_commands"):
            yield from verbs(verb, (*before, name))
        else:
            yield " ".join((*before, name)), verb


def test_every_verb_that_reports_prints_json_with_a_schema() -> None:
    for file in (DOCS / "reference/schemas").glob("*.json"):
        Draft202012Validator.check_schema(json.loads(file.read_text("utf-8")))
    known = dict(verbs(typer.main.get_command(app)))
    speaking = {name for name, verb in known.items() if any("--json" in option.opts for option in verb.params)}
    assert set(known) - speaking == SAY_LITTLE
    page = (DOCS / "reference/json.md").read_text("utf-8")
    for name in speaking:
        file = f"schemas/{name.split()[0]}.schema.json"
        assert (DOCS / "reference" / file).is_file(), f"pams {name} --json has no schema"
        assert f"| `pams {name}` | [{Path(file).name}]({file}) |" in page


def test_settings_that_people_write_fit_their_schema() -> None:
    schemas = DOCS / "reference/schemas"
    grid = Draft202012Validator(json.loads((schemas / "grid.schema.json").read_text("utf-8")))
    run = Draft202012Validator(json.loads((schemas / "run-config.schema.json").read_text("utf-8")))
    grid.validate({"data": {"manifest": "m.csv"}, "classes": "bracs", "methods": ["ce", {"name": "pams", "alpha": 2}]})
    run.validate({"data": {"manifest": "m.csv"}, "classes": "bracs", "method": "pams"})
    assert not run.is_valid({"data": {"manifest": "m.csv"}, "classes": "bracs", "methd": "pams"})
    assert not run.is_valid({"data": {"manifest": "m.csv"}, "classes": "bracs", "training": {"epochs": 0}})


def test_examples_of_docstrings_become_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Object=object))
    fenced = script("fence_doctests").fenced
    assert fenced("A.\n\n>>> f(1)\n2\n\nB.") == "A.\n\n```pycon\n>>> f(1)\n2\n```\n\nB."
    assert fenced("```\n>>> f(1)\n```") == "```\n>>> f(1)\n```"
    assert fenced(">>> f(1)") == "```pycon\n>>> f(1)\n```"


def test_the_site_shows_the_names_that_a_package_imports_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Module=object))
    file = Path(pams_mil.remix.__file__)
    package = SimpleNamespace(is_init_module=True, filepath=file, path="pams_mil.remix", modules={})
    script("lazy_exports").LazyExports().on_package(pkg=package)
    assert package.exports == pams_mil.remix.__all__


def test_what_a_built_site_may_not_do_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a><a href="https://x.org">4</a>'
        '<script src="https://x.org/y.js"></script><link rel="canonical" href="https://x.org/a.html">'
    )
    (tmp_path / "b.html").write_text('<p id="there">here</p>')
    assert script("check_site").problems(tmp_path)[1:] == [
        "a.html loads https://x.org/y.js",
        "a.html links to b.html#gone, a place that the page does not have",
        "a.html links to c.html, which does not exist",
    ]
