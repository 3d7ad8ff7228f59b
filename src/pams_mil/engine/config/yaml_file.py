"""Small YAML files that people write: read without running or expanding anything, written readably."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pams_mil import atomic
from pams_mil.errors import ConfigError
from pams_mil.yaml_guard import MOST_CHARACTERS, check_events


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-4 is a number, as everyone expects, and a repeated key is an error."""

    yaml_implicit_resolvers = {  # noqa: RUF012  a table of PyYAML, copied so that the original stays as it is
        # No dates: 2024-01-01 stays text, as in a path or a label.
        sign: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
        for sign, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; the same key twice would silently drop the first value."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key_node.value!r} appears twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


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
    if path.stat().st_size > MOST_CHARACTERS:
        raise ConfigError(f"{path} is {path.stat().st_size:,} bytes; a config has at most {MOST_CHARACTERS:,}.")
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8.") from error
    content = parse_yaml(text, where=str(path))
    if not isinstance(content, dict):
        kind = "nothing" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{path} must be a YAML mapping of settings, found {kind}.")
    return content


def parse_yaml(text: str, *, where: str) -> Any:
    """Any YAML value from text.

    >>> parse_yaml("lr: 1e-4", where="here")
    {'lr': 0.0001}
    """
    check_events(text, where=where, error=ConfigError)
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not valid YAML: {error}") from error


def write_yaml(path: Path | str, content: dict[str, Any], *, comment: str = "") -> None:
    """Write a mapping as YAML in the order of its keys."""
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    atomic.write_text(path, "".join(f"# {line}\n" for line in comment.splitlines()) + text)
