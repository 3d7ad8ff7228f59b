"""Where features come from: width, encoder, tile size and resolution, which all bags of a model must share.

Features of another encoder look like any others: same shape, finite numbers, no error, and a model that has learned
nothing. So every bag is held against what is expected when it is read, in whichever process reads it. What a file
does not say is never guessed and never counted as a difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pams_mil.data.bags.bag import Bag
from pams_mil.errors import BagError

ORIGIN = ("width", "encoder", "tile_px", "mpp", "magnification")
_ROUND_MPP = 2
"""Scanners state 0.2500 or 0.2498 for the same optics."""


def feature_origin(bag: Bag) -> dict[str, Any]:
    """What a bag says of its features; what it does not say is left out.

    >>> import numpy as np
    >>> from pams_mil.data.bags.bag import BagInfo
    >>> feature_origin(Bag(np.ones((3, 2), np.float16), info=BagInfo(encoder="uni", mpp=0.5)))
    {'width': 2, 'encoder': 'uni', 'mpp': 0.5}
    """
    said = {"width": bag.width, **bag.info.to_json()}
    return {key: said[key] for key in ORIGIN if said[key] is not None}


def comparable(key: str, value: Any) -> Any:
    """The value as it is compared: resolutions that differ by less than scanners state them are the same.

    >>> comparable("mpp", 0.2498) == comparable("mpp", 0.25), comparable("encoder", "uni")
    (True, 'uni')
    """
    return round(float(value), _ROUND_MPP) if key == "mpp" else value


def origin_differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys that both state, with different values: (key, expected, found).

    >>> origin_differences({"width": 4, "encoder": "uni"}, {"width": 4, "encoder": "conch", "tile_px": 256})
    [('encoder', 'uni', 'conch')]
    """
    return [
        (key, expected[key], found[key])
        for key in ORIGIN
        if key in expected and key in found and comparable(key, expected[key]) != comparable(key, found[key])
    ]


class OriginCheck:
    """Refuses a bag whose features differ from what is expected, or from any bag read before it.

    The second matters where the expectation leaves something open, because the first bag did not say it. What every
    slide says is kept in memory that worker processes share, each slide in a place of its own, so that it needs no
    lock and any two bags that contradict each other are found by whoever reads the later one.

    Args:
        expected: What bags must not contradict.
        whose: Whose features these are, for messages, e.g. "the slide 's1'" or "the run runs/a".
        slide_ids: All slides that may be read.
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
        self._said = torch.zeros(shape, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __call__(self, slide_id: str, bag: Bag) -> None:
        """Raise a `BagError` that names both slides and both values."""
        found = feature_origin(bag)
        for key, expected, value in origin_differences(self.expected, found):
            raise BagError(_refusal(slide_id, key, value, expected, self._whose))
        row = self._row.get(slide_id)
        if row is None:
            return
        for column, key in enumerate(self._open):
            if key not in found:
                continue
            mark = _mark(comparable(key, found[key]))
            # Written before the others are read: of two bags read at once, at least one sees the other.
            self._said[row, column] = mark
            others = self._said[:, column]
            unlike = ((others != 0) & (others != mark)).nonzero()
            if len(unlike):
                other = self._slides[int(unlike[0])]
                raise BagError(_refusal(slide_id, key, found[key], "another value", f"the slide {other!r}"))


def _refusal(slide_id: str, key: str, found: Any, expected: Any, whose: str) -> str:
    name = {"width": "features", "tile_px": "tile size", "mpp": "resolution"}.get(key, key)
    shown = f"{found} features per tile" if key == "width" else f"{key} = {found!r}"
    return (
        f"The bag of slide {slide_id!r} has {shown}, but {whose} has {expected if key == 'width' else repr(expected)}. "
        f"Bags of another {name} cannot be mixed: extract all slides alike, or leave these out. "
        "'pams check' lists them all."
    )


def _mark(value: Any) -> int:
    """A number that stands for a value, never 0."""
    digest = hashlib.blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    # 63 bits fit int64; the lowest bit is set, since 0 stands for nothing said.
    return (int.from_bytes(digest, "little") >> 1) | 1
