"""Methods by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pams_mil import discover
from pams_mil.errors import ConfigError
from pams_mil.methods.method import Method
from pams_mil.parameters import refuse_unknown


def create_method(name: str, **options: Any) -> Method:
    """The method behind a file name of this package, or behind 'your_module:YourMethod'.

    >>> create_method("pams", alpha=1.8).remix
    'sfr'
    >>> create_method("pams", alfa=1.8)
    Traceback (most recent call last):
    pams_mil.errors.ConfigError: The method 'pams' has no option 'alfa'. Did you mean 'alpha'? ...
    """
    kind = discover.load("methods", name)
    known = [item.name for item in fields(kind) if item.init]
    refuse_unknown(f"The method {name!r}", options, known, error=ConfigError)
    method: Method = kind(**options)
    return method
