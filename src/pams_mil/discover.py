"""File name -> object: a method, model, remix or encoder is found by the name of its file.

There is no registry to forget: `load("methods", "cdw_ce")` imports `pams_mil.methods.ordinal` and returns
the one public class that the module names in `DISCOVER`. `"my_package.module:Name"` loads from elsewhere, and
`"./my_file.py:Name"` from a file. What a run stores of such a file is `my_file.py@<digest>:Name`: its content and not
its place, so that the run loads the code it was trained with, from its own folder, or none.

Names of a package are imported when they are first used, so that `import` itself costs nothing. Every name stands once,
in the package's stub `__init__.pyi`, as `from module import name as name`; type checkers read it there, too.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pams_mil.digests import file_digest
from pams_mil.errors import ConfigError, first_line, listing, nearest

_MARK = re.compile(r"^DISCOVER = (\{[^}]*\})", re.MULTILINE)


@cache  # every settings file asks, and a program does not change while it runs
def _declared(package: str) -> dict[str, tuple[str, str]]:
    """Name -> (module, attribute), from the `DISCOVER` lines of `pams_mil.<package>`.

    Modules are looked at as text, so listing the choices imports nothing (torch stays out of `--help`).
    """
    folder = Path(__file__).parent.joinpath(*package.split("."))
    lines = {path.stem: _MARK.search(path.read_text("utf-8")) for path in sorted(folder.glob("*.py"))}
    return {
        name: (f"pams_mil.{package}.{module}", attribute)
        for module, line in lines.items()
        if line is not None
        for name, attribute in ast.literal_eval(line[1]).items()
    }


def available(package: str) -> tuple[str, ...]:
    """The names that modules of `pams_mil.<package>` declare in `DISCOVER`, sorted."""
    return tuple(sorted(_declared(package)))


def list_methods() -> tuple[str, ...]:
    """The names that `create_method` and `pams train --method` take.

    >>> "pams" in list_methods(), "abmil" in list_models(), "sfr" in list_remixes()
    (True, True, True)
    """
    return available("methods")


def list_models() -> tuple[str, ...]:
    """The names that `create_model` and `pams train --model` take."""
    return available("models")


def list_remixes() -> tuple[str, ...]:
    """The names that `create_remix` and a method's `remix` take."""
    return available("remix")


def load(package: str, name: str) -> Any:
    """The object behind a name: ours as declared, anyone's by `module:attribute`."""
    if ":" in name:
        return _load_foreign(package, name)
    known = available(package)
    if name not in known:
        raise ConfigError(
            f"There is no {package.rpartition('.')[2].rstrip('s')} called {name!r}.{nearest(name, known)} "
            f"Available: {listing(known, most=40)}, or your own: './your_file.py:YourClass' or "
            "'your_module:YourClass'."
        )
    module, attribute = _declared(package)[name]
    return getattr(importlib.import_module(module), attribute)


def _load_foreign(package: str, name: str) -> Any:
    module_name, _, attribute = name.rpartition(":")
    path = _file_of(name)
    try:
        module = importlib.import_module(module_name) if path is None else _run_file(path)
        return getattr(module, attribute)
    except Exception as error:  # running someone's file can raise anything
        raise ConfigError(
            f"Could not load the {package.rpartition('.')[2].rstrip('s')} {name!r}: {first_line(error)}. "
            "Expected 'module:attribute' importable from here (is the module on PYTHONPATH?), or a file, "
            "'./my_file.py:attribute'."
        ) from error


_PINNED = re.compile(r"(?P<file>[^/\\]+\.py)@(?P<digest>[0-9a-f]{32}):(?P<name>\w+)")
_FILES: dict[str, Path] = {}
"""Files of code by digest, as far as this process has been shown them."""


def own_file(name: str | None) -> Path | None:
    """The file that a name such as './my_model.py:MyNet' points to; None for every other name.

    >>> own_file("./my_model.py:MyNet").name, own_file("my_module:MyNet"), own_file("abmil")
    ('my_model.py', None, None)
    """
    place, sign, _ = (name or "").rpartition(":")
    return Path(place).expanduser() if sign and place.endswith(".py") else None


def same_file(one: Any, other: Any) -> bool:
    """Whether two stored names are of one file of code with two contents."""
    matches = [_PINNED.fullmatch(str(name)) for name in (one, other)]
    return all(matches) and len({(match["file"], match["name"]) for match in matches if match}) == 1


def pinned(name: str) -> str:
    """The name by which a run stores code in a file: its content instead of its place; other names as they are."""
    path = own_file(name)
    if path is None:
        return name
    digest = _digest_of(path)
    _FILES[digest] = path
    return f"{path.name}@{digest}:{name.rpartition(':')[2]}"


def offer_files(folder: Path) -> None:
    """Let pinned names find the files of a folder; only for folders that are trusted."""
    _FILES.update({file_digest(path): path for path in sorted(folder.glob("*.py"))})


def code_file(name: str | None) -> Path | None:
    """The file behind a pinned name, where this process knows it."""
    match = _PINNED.fullmatch(name or "")
    return None if match is None else _FILES.get(match["digest"])


def _file_of(name: str) -> Path | None:
    match = _PINNED.fullmatch(name)
    if match is None:
        return own_file(name)
    path = _FILES.get(match["digest"])
    if path is None or not path.is_file() or file_digest(path) != match["digest"]:
        raise ConfigError(
            f"The run was trained with code in {match['file']} (digest {match['digest']}), and that file is not in its "
            "folder 'code'. Put the same file there."
        )
    return path


def _digest_of(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise ConfigError(f"There is no readable file {path} of code: {error.strerror or error}.") from error


def _run_file(path: Path) -> Any:
    name = f"pams_own_{path.stem}_{_digest_of(path)}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python file")
        # Registered first: dataclasses and annotations look their module up.
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


_IMPORT = re.compile(r"^from (?P<home>\S+) import (?P<name>\w+) as (?P=name)$", re.MULTILINE)


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names live in other modules.

    >>> import pams_mil.report
    >>> find, names, public = lazy_names("pams_mil.report", pams_mil.report.__file__)
    >>> find("Bench").__module__, names() == public
    ('pams_mil.report.bench', True)

    Args:
        package: The package's `__name__`. What the stub imports from the package itself are its modules, which are
            found and listed but are not part of `__all__`.
        file: Its `__file__`, beside which the stub is.
    """
    stub = Path(file).with_name("__init__.pyi").read_text(encoding="utf-8")
    homes = {match["name"]: match["home"] for match in _IMPORT.finditer(stub)}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # a module of the package, not a name in one
        if homes[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(homes[name]), name)

    return find, lambda: sorted(homes), sorted(name for name, home in homes.items() if home != package)
