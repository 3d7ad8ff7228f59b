"""Where features come from: width, encoder, tile size and resolution, which all bags of a model must share.

Features of another encoder look like any others: same shape, finite numbers, no error, and a model that has learned
nothing. So every bag is checked against the expected origin when it is read, in whichever process reads it. What a file
does not say is never guessed and never counted as a difference. CLAM's files name neither encoder nor resolution:
columns of the cohort table (`encoder`, `mpp`, `tile_px`), settings of a run or a command may state them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pams_mil.data.bags.bag import Bag
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.data.tables import parse_number
from pams_mil.digests import text_digest
from pams_mil.errors import BagError, ConfigError, ManifestError

ORIGIN = ("width", "encoder", "tile_px", "mpp", "magnification")
MPP_TOLERANCE = 0.02
"""Relative: scanners state 0.2500 or 0.2498 for the same optics."""


def feature_origin(bag: Bag) -> dict[str, Any]:
    """What a bag says of its features; what it does not say is left out.

    >>> import numpy as np
    >>> from pams_mil.data.bags.bag import BagInfo
    >>> feature_origin(Bag(np.ones((3, 2), np.float16), info=BagInfo(encoder="uni", mpp=0.5)))
    {'width': 2, 'encoder': 'uni', 'mpp': 0.5}
    """
    stated = {"width": bag.width, **bag.info.to_json()}
    return {key: stated[key] for key in ORIGIN if stated[key] is not None}


def agrees(key: str, one: Any, other: Any) -> bool:
    """Whether two values of an origin are the same; resolutions are within the tolerance of scanners.

    >>> agrees("mpp", 0.2549, 0.2551), agrees("mpp", 0.2451, 0.2549), agrees("encoder", "uni", "conch")
    (True, False, False)
    """
    return math.isclose(one, other, rel_tol=MPP_TOLERANCE) if key == "mpp" else bool(one == other)


def origin_differences(expected: Mapping[str, Any], origin: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys that both state, with different values: (key, expected, found).

    >>> origin_differences({"width": 4, "encoder": "uni"}, {"width": 4, "encoder": "conch", "tile_px": 256})
    [('encoder', 'uni', 'conch')]
    """
    return [
        (key, expected[key], origin[key])
        for key in ORIGIN
        if key in expected and key in origin and not agrees(key, expected[key], origin[key])
    ]


class OriginCheck:
    """Refuses a bag whose features differ from what is expected, or from any bag read before it.

    The second matters where the expectation leaves something open, because the first bag did not say it. What every
    slide says is kept in memory that worker processes share, each slide in a place of its own, so that it needs no
    lock and any two bags that contradict each other are found by whoever reads the later one.

    `slide_ids` are all slides that may be read. For messages, `whose` says whose features are `expected`, e.g. "the
    slide 's1'" or "the run runs/a".
    """

    def __init__(self, expected: Mapping[str, Any], *, whose: str, slide_ids: Sequence[str] = ()) -> None:
        import torch  # noqa: PLC0415  'pams check' compares origins without it

        self.expected = dict(expected)
        self._whose = whose
        self._slides = list(slide_ids)
        self._row = {slide: row for row, slide in enumerate(self._slides)}
        # What the expectation leaves open has to agree among the bags themselves.
        self._open = [key for key in ORIGIN if key not in self.expected]
        shape = (len(self._slides), max(1, len(self._open)))
        self._values = torch.zeros(shape, dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]

    def __call__(self, slide_id: str, origin: Mapping[str, Any]) -> None:
        """Raise a `BagError` that names both slides and both values; `origin` is what `feature_origin` says."""
        for key, expected, value in origin_differences(self.expected, origin):
            raise BagError(_refusal(slide_id, key, value, expected, self._whose))
        row = self._row.get(slide_id)
        if row is None:
            return
        for column, key in enumerate(self._open):
            if key not in origin:
                continue
            # A number itself, or 48 bits, exact in float64, that stand for a text; never 0: nothing stated.
            value = origin[key]
            if isinstance(value, str):
                value = int(text_digest(value)[:12], 16) + 1
            # Written before the others are read: of two bags read at once, at least one sees the other.
            self._values[row, column] = value
            others = self._values[:, column]
            tolerance = MPP_TOLERANCE * others.clamp(min=value) if key == "mpp" else 0.0
            unlike = ((others != 0) & ((others - value).abs() > tolerance)).nonzero()
            if len(unlike):
                other = self._slides[int(unlike[0])]
                raise BagError(_refusal(slide_id, key, origin[key], "another value", f"the slide {other!r}"))


def _refusal(slide_id: str, key: str, actual: Any, expected: Any, whose: str) -> str:
    name = {"width": "width", "tile_px": "tile size", "mpp": "resolution"}.get(key, key)
    shown = f"{actual} features per tile" if key == "width" else f"{key} = {actual!r}"
    return (
        f"The bag of slide {slide_id!r} has {shown}, but {whose} has {expected if key == 'width' else repr(expected)}. "
        f"Bags of another {name} cannot be mixed: extract all slides alike, or leave these out. "
        "'pams check' lists them all."
    )


STATED = ("encoder", "mpp", "tile_px")
"""What it takes to make the features of a new slide."""


def stated_by_table(records: Iterable[SlideRecord]) -> dict[str, Any]:
    """What the columns `encoder`, `mpp` and `tile_px` say of all slides; slides that differ are refused.

    >>> extra = {"encoder": "uni", "mpp": "0.5"}
    >>> stated_by_table([SlideRecord("s1", "p1", "N", extra=extra), SlideRecord("s2", "p2", "N", extra=extra)])
    {'encoder': 'uni', 'mpp': 0.5}
    """
    stated: dict[str, tuple[str, Any]] = {}
    for record in records:
        for key in STATED:
            text = record.extra.get(key, "").strip()
            if not text:
                continue
            value: Any = text
            if key != "encoder":
                with suppress(ValueError):
                    value = parse_number(text)
                if value == text or not (math.isfinite(value) and value > 0) or (key == "tile_px" and value % 1):
                    expected = "a whole number of pixels" if key == "tile_px" else "microns per pixel"
                    raise ManifestError(
                        f"The column {key!r} says {text!r} of slide {record.slide_id!r}; expected {expected}."
                    )
                value = int(value) if key == "tile_px" else value
            # All others are compared with the first slide that states something.
            first, before = stated.setdefault(key, (record.slide_id, value))
            if not agrees(key, before, value):
                raise ManifestError(
                    f"The column {key!r} says {before!r} of slide {first!r} and {value!r} of {record.slide_id!r}; "
                    "features made in different ways cannot be mixed."
                )
    return {key: stated[key][1] for key in STATED if key in stated}


def complete_origin(origin: Mapping[str, Any], stated: Mapping[str, Any], *, where: str, whose: str) -> dict[str, Any]:
    """What is known already, completed by what was stated; a contradiction is refused.

    >>> complete_origin({"width": 4, "mpp": 0.5}, {"encoder": "uni", "mpp": 0.5}, where="data", whose="the files")
    {'width': 4, 'mpp': 0.5, 'encoder': 'uni'}

    None counts as nothing stated. For messages, `where` is who stated it ("the settings"), `whose` who says otherwise
    ("the feature files", "the run runs/a").
    """
    values = {key: value for key, value in stated.items() if value is not None}
    for key, before, now in origin_differences(origin, values):
        raise ConfigError(
            f"{where} says {key} = {now!r}, which contradicts {whose}: {key} = {before!r}. Leave it out, or fix it."
        )
    return {**origin, **{key: value for key, value in values.items() if key not in origin}}


# Widths as TRIDENT, STAMP and LazySlide name the encoders; several where an encoder is used in several ways (Virchow's
# class token alone, 1280, or with the mean of its patch tokens, 2560). Slide encoders give one vector per slide.
TILE_WIDTHS: dict[str, tuple[int, ...]] = {
    "conch": (512,), "conch_v1": (512,), "conch_v15": (768,), "ctranspath": (768,), "genbio-pathfm": (4608,),
    "gigapath": (1536,), "gpfm": (1024,), "h0-mini": (768, 1536), "hibou_b": (768,), "hibou_l": (1024,),
    "hoptimus0": (1536,), "hoptimus1": (1536,), "kaiko-vitb8": (768,), "kaiko-vitb16": (768,), "kaiko-vitl14": (1024,),
    "kaiko-vits8": (384,), "kaiko-vits16": (384,), "keep": (768,), "lunit-vits8": (384,), "lunit-vits16": (384,),
    "midnight12k": (3072,), "musk": (1024,), "openmidnight": (1536,), "phikon": (768,), "phikon_v2": (1024,),
    "resnet50": (1024,), "uni": (1024,), "uni_v1": (1024,), "uni_v2": (1536,), "virchow": (1280, 2560),
    "virchow2": (1280, 2560),
}  # fmt: skip
SLIDE_WIDTHS: dict[str, tuple[int, ...]] = {
    "care": (512,), "chief": (768,), "feather": (512,), "gigapath": (768,), "madeleine": (512,), "prism": (1280,),
    "titan": (768,),
}  # fmt: skip
_ALIASES = {
    "conch15": "conchv15", "conch1_5": "conchv15", "prov-gigapath": "gigapath", "uni2": "univ2", "uni2h": "univ2",
    "h-optimus-0": "hoptimus0", "h-optimus-1": "hoptimus1", "phikon2": "phikonv2",
    "midnight": "midnight12k", "virchowfull": "virchow2",
}  # fmt: skip


def known_widths(encoder: str, *, slide_level: bool = False) -> tuple[int, ...]:
    """The widths that an encoder's features have; none for an encoder that is not known here.

    >>> known_widths("UNI2-h"), known_widths("gigapath", slide_level=True), known_widths("mine")
    ((1536,), (768,), ())
    """
    table = SLIDE_WIDTHS if slide_level else TILE_WIDTHS
    # Both sides lose what people spell differently, so the table can keep the names that tools use.
    widths = {_plain(name): width for name, width in table.items()}
    aliases = {_plain(name): _plain(meant) for name, meant in _ALIASES.items()}
    name = _plain(encoder)
    return widths.get(aliases.get(name, name), ())


def width_complaint(encoder: str, width: int, *, slide_level: bool = False) -> str:
    """What is wrong with an encoder's name beside a width; empty when nothing is known to be.

    >>> width_complaint("uni", 512)
    "the encoder 'uni' (1024 features) is named, but there are 512, as of 'conch', 'conch_v1'"
    >>> width_complaint("uni", 1024), width_complaint("mine", 7)
    ('', '')
    """
    expected = known_widths(encoder, slide_level=slide_level)
    if not expected or width in expected:
        return ""
    makers = [name for name, widths in (SLIDE_WIDTHS if slide_level else TILE_WIDTHS).items() if width in widths]
    guess = f", as of {', '.join(map(repr, makers))}" if makers else ""
    return (
        f"the encoder {encoder!r} ({' or '.join(map(str, expected))} features) is named, but there are {width}{guess}"
    )


def _plain(name: str) -> str:
    """A name without what people spell differently: case, separators, who published it, a hash at the end."""
    last = name.strip().casefold().rsplit("/", 1)[-1]
    return re.sub(r"[\s_.\-]", "", re.sub(r"-[0-9a-f]{8}$", "", last))
