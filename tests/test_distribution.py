"""What is handed out: the wheel and the source distribution hold the package, its licences, and nothing else."""

from __future__ import annotations

import os
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

build = pytest.importorskip("hatchling.build")
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SOURCE = {
    path.relative_to(ROOT / "src").as_posix()
    for path in (ROOT / "src/pams_mil").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
KINDS = {".py", ".pyi", ".typed", ".yaml", ".html", ".css", ".js", ".txt", ".csv", ".json", ".j2"}
"""Code, templates, presets and the paper's numbers; no features, weights, pictures or slides."""
MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, here = tmp_path_factory.mktemp("dist"), Path.cwd()
    os.chdir(ROOT)  # where the hooks of PEP 517 are called
    try:
        build.build_wheel(str(folder))
        build.build_sdist(str(folder))
    finally:
        os.chdir(here)
    return folder


def wheel(made: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(made.glob("*.whl")))


def test_the_wheel_holds_the_package_and_its_licences_alone(made: Path) -> None:
    with wheel(made) as archive:
        names = set(archive.namelist())
    described = {name for name in names if ".dist-info/" in name}
    assert names - described == SOURCE
    assert {PurePosixPath(name).suffix for name in SOURCE} <= KINDS
    licences = {PurePosixPath(name).name for name in described if "/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY_NOTICES.md"}
    assert next(made.glob("*.whl")).stat().st_size < MOST_BYTES


def test_every_vendored_file_has_its_licence_beside_it_and_in_the_notices(made: Path) -> None:
    notices = (ROOT / "THIRD_PARTY_NOTICES.md").read_text("utf-8")
    vendored = [name for name in SOURCE if name.endswith(".min.js")]
    assert vendored
    with wheel(made) as archive:
        for name in vendored:
            licence = name.replace(".min.js", ".LICENSE.txt")
            assert archive.read(licence).strip()
            assert archive.read(name) == (ROOT / "src" / name).read_bytes()
            assert f"src/{name}" in notices


def test_the_wheel_says_what_it_is(made: Path) -> None:
    with wheel(made) as archive:
        text = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
        scripts = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt"))
    said = Parser().parsestr(text)
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Author"]
    assert "pams = pams_mil.cli.main:main" in scripts


def test_the_source_distribution_has_no_tests_and_no_data(made: Path) -> None:
    with tarfile.open(next(made.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    rest = {name for name in names if not name.startswith("src/pams_mil/")}
    assert {name.removeprefix("src/") for name in names - rest} == SOURCE
    assert rest == {
        ".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "THIRD_PARTY_NOTICES.md",
        "pyproject.toml",
    }  # fmt: skip


def test_one_version_everywhere() -> None:
    source = (ROOT / "src/pams_mil/__init__.py").read_text("utf-8")
    version = source.partition('__version__ = "')[2].partition('"')[0]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
