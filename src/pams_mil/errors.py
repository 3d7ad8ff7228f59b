"""The errors people see: each says what, what was expected, what was found, and what to do; and checks that raise them.

The command line turns a `PamsError` into one message and an exit code of 2; anything else is a bug in
PAMS and shows its traceback.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_Stored = TypeVar("_Stored")


class PamsError(Exception):
    """Something in the user's input, files or options is wrong, and the message says how to fix it."""

    exit_code = 2


class HierarchyError(PamsError):
    """A class hierarchy that cannot be what its author meant."""


class LabelError(PamsError):
    """A label that is not a class of the hierarchy."""


class TableError(PamsError):
    """A CSV, TSV, parquet or xlsx file that cannot be read as a table."""


class PredictionsError(PamsError):
    """A predictions file that cannot be scored."""


class ManifestError(PamsError):
    """A cohort table with missing, contradictory or unusable rows."""


class BagError(PamsError):
    """A feature file that is missing, truncated, corrupted or not what the cohort needs."""


class MissingBagError(BagError):
    """A slide without a feature file."""


class ConfigError(PamsError):
    """A setting outside its allowed range, or one that does not exist."""


class ParameterError(PamsError, ValueError):
    """An argument of a public function outside its allowed range."""


class ModelInputError(PamsError, ValueError):
    """A bag that a model cannot take: empty, of another width, not finite, not floating point."""


class NotFiniteError(PamsError):
    """A slide on which a model's answer is not a finite number."""


class CheckpointError(PamsError):
    """A checkpoint that is truncated, corrupted, unsafe or made for something else."""


class CertificateError(PamsError):
    """A bound that cannot be certified, or a certificate that was changed or made for something else."""


class ExposureError(PamsError):
    """Patients that a model has seen, where a result needs patients that it has not."""


class RunError(PamsError):
    """A run that cannot start, continue or finish."""


class RunInterruptedError(RunError):
    """The run was asked to stop, and everything is saved; the exit code is the usual one of the signal that asked."""

    def __init__(self, message: str, signal: int = 2) -> None:
        super().__init__(message)
        self.signal = signal
        self.exit_code = 128 + signal


class SlideError(PamsError):
    """A slide that cannot be read, or whose physical scale is unknown."""


class OutputError(PamsError):
    """An output that could not be written; nothing half-made was left behind."""


class MissingExtraError(PamsError):
    """A feature that needs an optional dependency which is not installed."""

    def __init__(self, feature: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package '{package}', which is not installed. "
            f"Install it with: pip install 'pams-mil[{extra}]'"
        )


@contextmanager
def needs_extra(feature: str, *, package: str, extra: str) -> Iterator[None]:
    """For imports of an optional dependency: where it is missing, a `MissingExtraError` says how to get it.

    >>> with needs_extra("The spell checker", package="no_such_package", extra="spelling"):
    ...     import no_such_package
    Traceback (most recent call last):
    pams_mil.errors.MissingExtraError: The spell checker needs the package 'no_such_package', which is not installed...
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(feature, package=package, extra=extra) from error


@contextmanager
def stored_format(where: object, error: type[PamsError], advice: str) -> Iterator[None]:
    """For reading a file of ours: fields that are missing, unknown or of another kind become one sentence.

    >>> with stored_format("run.json", RunError, "Train again."):
    ...     {}["other_orders"]
    Traceback (most recent call last):
    pams_mil.errors.RunError: run.json is of another version of PAMS, or was changed by hand: it has no field ...
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, HierarchyError) as cause:
        why = f"it has no field {cause}" if isinstance(cause, KeyError) else first_line(cause).rstrip(".")
        raise error(f"{where} is of another version of PAMS, or was changed by hand: {why}. {advice}") from cause


def require_fields(content: Any, names: Iterable[str], within: str = "", *, optional: Iterable[str] = ()) -> None:
    """Refuse stored values with other fields than these; for use inside `stored_format`.

    >>> require_fields({"epochs": 5, "lr": 0.1}, ["epochs"], "training.")
    Traceback (most recent call last):
    ValueError: it has a field 'training.lr' that this version does not know
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"expected fields in {within.rstrip('.')!r}, found {content!r:.40}")
    for name in names:
        if name not in content:
            raise KeyError(f"{within}{name}")
    for name in content:
        if name not in {*names, *optional}:
            raise ValueError(f"it has a field {f'{within}{name}'!r} that this version does not know")


def from_fields(kind: type[_Stored], content: Any) -> _Stored:
    """A dataclass from its stored fields, refused with any others; for use inside `stored_format`."""
    require_fields(content, [one.name for one in fields(kind)])  # type: ignore[arg-type]  # of a dataclass
    return kind(**content)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the closest known spelling, or nothing when none is close.

    >>> nearest("malignent", ["Benign", "Malignant"])
    " Did you mean 'Malignant'?"
    >>> nearest("zebra", ["Benign", "Malignant"])
    ''
    """
    candidates = list(dict.fromkeys(known))
    folded = {candidate.casefold(): candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.6)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


def counted(count: int, what: str) -> str:
    """A number with its noun, in the plural unless it is one.

    >>> counted(1, "slide"), counted(0, "slide"), counted(1200, "patient")
    ('1 slide', '0 slides', '1,200 patients')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def listing(items: Iterable[object], *, most: int = 8) -> str:
    """Items joined for a message, cut after `most` with a count of the rest.

    >>> listing(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    shown = [repr(str(item)) for item in items]
    text = ", ".join(shown[:most])
    return f"{text} and {len(shown) - most} more" if len(shown) > most else text


def first_line(error: BaseException) -> str:
    """What an error of another library says, cut to one line; its kind where it says nothing.

    >>> first_line(ValueError("bad magic")), first_line(MemoryError())
    ('bad magic', 'MemoryError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True, kw_only=True)
class Within:
    """The range of a number, in the annotation of a field or parameter; see `check_values`.

    >>> 0.5 in Within(at_least=0, below=1), str(Within(at_least=0, below=1))
    (True, ' of at least 0 and below 1')
    """

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def __contains__(self, value: float) -> bool:
        low = (self.above is None or value > self.above) and (self.at_least is None or value >= self.at_least)
        return low and (self.below is None or value < self.below) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f" from {self.at_least:g} to {self.at_most:g}"
        limits = {"above": self.above, "of at least": self.at_least, "below": self.below, "at most": self.at_most}
        return " and".join(f" {word} {limit:g}" for word, limit in limits.items() if limit is not None)


Positive = Annotated[float, Within(above=0)]
NotNegative = Annotated[float, Within(at_least=0)]
Share = Annotated[float, Within(at_least=0, at_most=1)]
Dropout = Annotated[float, Within(at_least=0, below=1)]
Count = Annotated[int, Within(at_least=1)]
CountOrZero = Annotated[int, Within(at_least=0)]


def require_number(name: str, value: Any, **limits: float) -> None:
    """Refuse what is not a finite number in the range `Within(**limits)`.

    >>> require_number("beta", -1.0, above=0)
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: beta must be a finite number above 0, found -1.0.
    """
    within = Within(**limits)
    if not (_is_number(value, Real) and math.isfinite(value) and value in within):
        raise ParameterError(f"{name} must be a finite number{within}, found {value!r}.")


def require_count(name: str, value: Any, **limits: float) -> None:
    """Refuse what is not a whole number in the range `Within(**limits)`.

    >>> require_count("top_k", 7, at_least=1, at_most=6)
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: top_k must be a whole number from 1 to 6, found 7.
    """
    within = Within(**limits)
    if not (_is_number(value, Integral) and value in within):
        raise ParameterError(f"{name} must be a whole number{within}, found {value!r}.")


def _is_number(value: Any, kind: type) -> bool:
    """Whether a value is a number of this kind: those of numpy are, true and false are not."""
    return isinstance(value, kind) and not isinstance(value, bool)


def require_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is not one of the choices.

    >>> require_choice("detach", "fin", ["none", "fine", "coarse"])
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: detach must be one of 'none', 'fine', 'coarse', found 'fin'. Did you mean 'fine'?
    """
    if value not in choices:
        near = nearest(str(value), choices)
        raise ParameterError(f"{name} must be one of {listing(choices)}, found {value!r}.{near}")


def check_values(hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse values outside of what their annotations allow: a range `Within`, a `Literal`, or true and false.

    >>> check_values({"gated": bool}, {"gated": "maybe"})
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: gated must be true or false, found 'maybe'.
    """
    for name, value in values.items():
        kind = hints.get(name)
        if get_origin(kind) in (UnionType, Union):
            kinds = [] if value is None else [option for option in get_args(kind) if option is not NoneType]
            kind = kinds[0] if len(kinds) == 1 else None
        limits = get_args(kind)
        if kind is bool and not isinstance(value, bool):
            raise ParameterError(f"{name} must be true or false, found {value!r}.")
        if get_origin(kind) is Literal:
            require_choice(name, value, limits)
        elif limits and isinstance(limits[-1], Within):
            require = require_count if limits[0] is int else require_number
            require(name, value, **vars(limits[-1]))


def check_fields(values: Any) -> None:
    """Refuse fields of a dataclass outside of what their annotations allow, as `check_values`.

    >>> @dataclass
    ... class Options:
    ...     alpha: Positive = 1.0
    >>> check_fields(Options(-1.0))
    Traceback (most recent call last):
    pams_mil.errors.ParameterError: alpha must be a finite number above 0, found -1.0.
    """
    hints = get_type_hints(type(values), include_extras=True)
    check_values(hints, {item.name: getattr(values, item.name) for item in fields(values) if item.init})


class CheckedFields:
    """Base of dataclasses whose fields are checked by `check_fields` on construction."""

    def __post_init__(self) -> None:
        check_fields(self)


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
