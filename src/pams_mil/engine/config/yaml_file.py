"""Small YAML files that people write: read without running or expanding anything, written readably."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pams_mil import atomic
from pams_mil.errors import ConfigError
from pams_mil.yaml_guard import UniqueKeys, load_yaml, read_text


class _Loader(UniqueKeys, yaml.SafeLoader):
    """Safe YAML in which 1e-4 is a number, as everyone expects, and a repeated key is an error."""

    yaml_implicit_resolvers = {  # noqa: RUF012  a table of PyYAML, copied so that the original stays as it is
        # No dates: 2024-01-01 stays text, as in a path or a label.
        sign: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
        for sign, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """Puts text into quotes that `_Loader` would take for a number: a column or an encoder may be called 12e4."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def read_yaml(path: Path | str) -> dict[str, Any]:
    """The mapping in a YAML file; files that are large, deeply nested, use anchors or tags are refused."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. 'pams init' writes a commented one.")
    content = parse_yaml(read_text(path, ConfigError), where=str(path))
    if not isinstance(content, dict):
        kind = "nothing" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{path} must be a YAML mapping of settings, found {kind}.")
    return content


def parse_yaml(text: str, *, where: str) -> Any:
    """Any YAML value from text.

    >>> parse_yaml("lr: 1e-4", where="here")
    {'lr': 0.0001}
    """
    return load_yaml(text, _Loader, where=where, error=ConfigError)


def write_yaml(path: Path | str, content: dict[str, Any], *, comment: str = "") -> None:
    """Write a mapping as YAML in the order of its keys."""
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    atomic.write_text(path, "".join(f"# {line}\n" for line in comment.splitlines()) + text)
