"""The files around the code agree with one another: hooks, workflows, versions, pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def read(path: str | Path) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def test_hooks_are_those_of_make_check() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ncheck:")[2].partition("\n\n")[0]
    checked = {line.split(")/")[1].removesuffix(" .") for line in recipe.splitlines()[1:]}
    hooks = [hook for repository in read(".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    hooked = {hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude") for hook in hooks}
    assert hooked == checked == {"ruff format --check", "ruff check", "mypy", "mypy --config-file benchmarks/mypy.ini"}


def test_every_python_that_is_declared_is_tested() -> None:
    declared = {line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if " 3." in line}
    matrix = read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert set(matrix["python"]) == declared
    assert PROJECT["project"]["requires-python"] == f">={min(declared)}"
    assert {entry["os"] for entry in matrix["include"]} >= {"macos-latest", "windows-latest"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_jobs_have_few_rights(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        for step in job["steps"]:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", f"none@{'0' * 40}")), f"{name}: {step}"
    writing = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    allowed = {"publish": {"id-token": "write"}, "notes": {"contents": "write"}}
    assert writing == (allowed if path.name == "release.yml" else {})


def test_the_job_that_may_publish_runs_no_code_of_the_project() -> None:
    publish = read(".github/workflows/release.yml")["jobs"]["publish"]
    assert publish["environment"] == "pypi"
    assert not [step for step in publish["steps"] if "run" in step]


def test_pins_are_sorted_unique_and_cover_what_is_declared() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()[1:]
    names = [line.partition("==")[0].lower() for line in lines]
    assert names == sorted(set(names))
    pinned = {re.sub(r"[-_.]+", "-", name) for name in names}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(line for extra in ("dev", "docs") for line in extras[extra])]
    declared = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~ ]", line)[0].lower()) for line in wanted} - {"pams-mil"}
    assert declared <= pinned


def test_exceptions_from_the_checklist_say_why() -> None:
    for check, reason in PROJECT["tool"]["repo-review"]["ignore"].items():
        assert re.fullmatch(r"[A-Z]+\d+", check)
        assert len(reason) > 20
