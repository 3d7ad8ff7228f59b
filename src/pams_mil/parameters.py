"""Parameter validation: errors that say the name, what was expected and what was found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pams_mil.errors import ParameterError, listing, nearest


def require_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> None:
    """Refuse what is not a finite number in range.

    >>> require_number("beta", -1.0, above=0)
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: beta must be a finite number above 0, found -1.0.
    """
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not (valid and _within(value, above, at_least, at_most)):
        raise ParameterError(f"{name} must be a finite number{_limits(above, at_least, at_most)}, found {value!r}.")


def require_count(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> None:
    """Refuse what is not a whole number in range.

    >>> require_count("top_k", 7, at_least=1, at_most=6)
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: top_k must be a whole number from 1 to 6, found 7.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole and _within(value, None, at_least, at_most)):
        raise ParameterError(f"{name} must be a whole number{_limits(None, at_least, at_most)}, found {value!r}.")


def require_counts(**values: Any) -> None:
    """Refuse sizes that are not whole numbers of at least 1.

    >>> require_counts(in_features=0)
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: in_features must be a whole number of at least 1, found 0.
    """
    for name, value in values.items():
        require_count(name, value, at_least=1)


def require_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is not one of the choices.

    >>> require_choice("detach", "fin", ["none", "fine", "coarse"])
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: detach must be one of 'none', 'fine', 'coarse', found 'fin'. Did you mean 'fine'?
    """
    if value not in choices:
        near = nearest(str(value), choices)
        raise ParameterError(f"{name} must be one of {listing(choices)}, found {value!r}.{near}")


def refuse_unknown(
    what: str, names: Iterable[str], known: Sequence[str], *, kind: str = "option", error: type[Exception]
) -> None:
    """Refuse an option that does not exist, naming the nearest one and all that do.

    >>> refuse_unknown("The remix 'sfr'", ["topk"], ["clusters", "top_k"], error=ParameterError)
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: The remix 'sfr' has no option 'topk'. Did you mean 'top_k'? It has: 'clusters',
    'top_k'.
    """
    for name in names:
        if name not in known:
            raise error(f"{what} has no {kind} {name!r}.{nearest(name, known)} It has: {listing(known, most=20)}.")


def _within(value: float, above: float | None, at_least: float | None, at_most: float | None) -> bool:
    low = (above is None or value > above) and (at_least is None or value >= at_least)
    return low and (at_most is None or value <= at_most)


def _limits(above: float | None, at_least: float | None, at_most: float | None) -> str:
    if at_least is not None and at_most is not None:
        return f" from {at_least:g} to {at_most:g}"
    words = "" if above is None else f" above {above:g}"
    words += "" if at_least is None else f" of at least {at_least:g}"
    return words if at_most is None else f"{words} and at most {at_most:g}"
