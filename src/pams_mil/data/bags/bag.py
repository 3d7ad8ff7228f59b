"""A bag: the feature vectors of one slide's tiles, where the tiles lie, and how they were made."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from pams_mil.arrays import AnyArray
from pams_mil.errors import BagError

_SAMPLED_ROWS = 5
_PRECISIONS = tuple(np.dtype(name) for name in ("f2", "f4", "f8"))
LONGEST_ROW = math.sqrt(float(np.finfo(np.float32).max))
"""The square of a longer row is beyond the largest float32, 3.4e38."""


@dataclass(frozen=True)
class BagInfo:
    """How the features were made; None where the file does not say, never a guess.

    `mpp` is the true resolution of the tiles in microns per pixel, `magnification` the nominal one that some
    tools write instead. `tile_px0` is the side of a tile in level-0 pixels.
    """

    encoder: str | None = None
    tile_px: int | None = None
    tile_px0: float | None = None
    mpp: float | None = None
    level0_mpp: float | None = None
    magnification: float | None = None
    layout: str = "memory"

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> BagInfo:
        """The info from a mapping; keys of later versions are ignored."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in content.items() if key in known})

    def to_json(self) -> dict[str, Any]:
        """The info as a mapping of plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Bag:
    """Features [n, d] in their stored precision, tile corners [n, 2], and how they were made.

    Coordinates are level-0 pixels (x, y); tools that store microns fill `coords_um` instead, unless the
    level-0 resolution is known and they could be converted.

    >>> bag = Bag(np.ones((3, 2), np.float16))
    >>> bag.num_instances, bag.width, bag.features.dtype.name
    (3, 2, 'float16')
    """

    features: AnyArray
    coords_px0: AnyArray | None = None
    info: BagInfo = field(default_factory=BagInfo)
    coords_um: AnyArray | None = None

    def __post_init__(self) -> None:
        features, shape = self.features, list(getattr(self.features, "shape", []))
        kind: Any = getattr(features, "dtype", None)
        if not isinstance(features, np.ndarray) or len(shape) != 2 or kind.newbyteorder("=") not in _PRECISIONS:
            raise BagError(
                "A bag's features must be a floating-point numpy array [n, d], "
                f"found {kind or type(features).__name__} {shape}."
            )
        if 0 in shape:
            raise BagError(
                f"A bag needs at least one tile and one feature, found shape {shape}. "
                "Was no tissue found on the slide? Leave such slides out of the manifest."
            )
        for unit, coords in self.coords().items():
            if coords.dtype.kind not in "fiu":
                raise BagError(f"coords_{unit} must be numbers, found {coords.dtype}. Extract the slide again.")
            if coords.shape != (shape[0], 2):
                raise BagError(
                    f"coords_{unit} must be [n, 2] with n = {shape[0]} like the features, found {list(coords.shape)}. "
                    "The file was probably cut short while it was written; extract the slide again."
                )

    def coords(self) -> dict[str, AnyArray]:
        """The coordinates that the bag has, by their unit."""
        return {
            unit: coords for unit, coords in (("px0", self.coords_px0), ("um", self.coords_um)) if coords is not None
        }

    @property
    def num_instances(self) -> int:
        """n, the number of tiles."""
        return int(self.features.shape[0])

    @property
    def width(self) -> int:
        """d, the length of a feature vector."""
        return int(self.features.shape[1])

    @property
    def digest(self) -> str:
        """32 hex digits of features, coordinates and info; equal bags have equal digests, whatever layout they had."""
        hasher = hashlib.blake2b(digest_size=16)
        content = {key: value for key, value in self.info.to_json().items() if key != "layout"}
        hasher.update(json.dumps(content, sort_keys=True).encode())
        for values in (self.features, self.coords_px0, self.coords_um):
            if values is None:
                hasher.update(b"none")
                continue
            # Little-endian: the digest of a bag is the same on machines of either byte order.
            little = values.astype(values.dtype.newbyteorder("<"), copy=False)
            hasher.update(f"{little.dtype.str}{values.shape}".encode())
            hasher.update(np.ascontiguousarray(little).data)
        return hasher.hexdigest()

    @property
    def feature_digest(self) -> str:
        """32 hex digits of the feature values alone: equal for one slide stored under two ids, tools or precisions."""
        return _half_digest(self.features, self.features.shape)


class Fingerprint(NamedTuple):
    """Digests of samples of a slide's features.

    Attributes:
        content: The `content_mark` of the values: a copy is recognized however it was saved, under whatever id.
        stored: Of how they are stored: it changes when the file is written again in another form.
    """

    content: str
    stored: str


def content_mark(features: Any, shape: Sequence[int] = ()) -> str:
    """32 hex digits of the shape and of a few rows in half precision; empty for a bag whose values are all the same.

    Equal for a slide that was saved again in another file format, compression, chunking or precision (float16, float32,
    float64; bfloat16 has fewer digits than that), without reading the whole of it: `features` [n, d] may be what gives
    single rows, a dataset or a mapped array; `shape` is needed where they do not say it.

    >>> x = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    >>> content_mark(x) == content_mark(x.astype(np.float16)), content_mark(x) == content_mark(x[:-1])
    (True, False)
    """
    shape = tuple(map(int, shape or features.shape))
    places = sorted({(shape[0] - 1) * step // (_SAMPLED_ROWS - 1) for step in range(_SAMPLED_ROWS)})
    rows = np.concatenate([np.asarray(features[place : place + 1]) for place in places])
    return "" if (rows == rows.flat[0]).all() else _half_digest(rows, shape)


def _half_digest(values: AnyArray, shape: tuple[int, ...]) -> str:
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(values.astype("<f2"))
    return hashlib.blake2b(repr(shape).encode() + half.tobytes(), digest_size=16).hexdigest()


def check_values(bag: Bag, name: str) -> None:
    """Refuse NaN, infinity and values too large to compute with, naming the bag, row and coordinate.

    Norms, variances and similarities are computed in float32, so the sum of a row's squares must not overflow there.
    """
    for unit, coords in bag.coords().items():
        if coords.dtype.kind == "f" and not all_finite(coords):
            row = int(np.flatnonzero(~np.isfinite(coords).all(1))[0])
            raise BagError(
                f"{name} has coords_{unit} that are not finite numbers, first {coords[row].tolist()} in row {row}. "
                "Extract the slide again."
            )
    # The usual case in one pass: |row| <= max |value| sqrt(d), so a small maximum clears all rows at once.
    largest = largest_magnitude(bag.features)
    if largest * math.sqrt(bag.width) < LONGEST_ROW:
        return
    if math.isfinite(largest):
        with np.errstate(over="ignore"):
            # Divided by the largest value first: squares of large float64 values would overflow themselves.
            lengths = largest * np.sqrt(np.square(bag.features.astype(np.float64) / largest).sum(1))
        long = np.flatnonzero(lengths >= LONGEST_ROW)
        if len(long):
            raise BagError(
                f"{name} has {len(long)} rows whose values are too large to compute with in float32, the first is row "
                f"{int(long[0])} with a length of {lengths[long[0]]:.3g}; expected less than {LONGEST_ROW:.3g}. "
                "These are not features of an encoder; extract the slide again."
            )
        return
    # The maximum is NaN or infinite: find out where, for the message.
    bad = ~np.isfinite(bag.features)
    row, column = (int(index[0]) for index in np.nonzero(bad))
    place = f" at {bag.coords_px0[row].tolist()}" if bag.coords_px0 is not None else ""
    value = bag.features[row, column]
    hint = (
        "Half precision overflows beyond 65504; extract in float32 or bfloat16."
        if bag.features.dtype == np.float16 and np.isinf(value)
        else "Extract the slide again."
    )
    raise BagError(
        f"{name} has {int(bad.sum())} features that are not finite numbers, first {value} "
        f"in row {row}{place}, column {column}. {hint}"
    )


def all_finite(values: AnyArray) -> bool:
    """Whether no value is NaN or infinite.

    >>> all_finite(np.array([1.0, 2.0])), all_finite(np.array([1.0, np.nan], np.float16))
    (True, False)
    """
    if values.dtype == np.float16:  # numpy's half-precision arithmetic is slow; the exponent bits tell
        bits: AnyArray = np.ascontiguousarray(values).view(np.uint16) & np.uint16(0x7C00)
        return bool((bits != 0x7C00).all())
    return bool(np.isfinite(values).all())


def largest_magnitude(values: AnyArray) -> float:
    """Max |value|; NaN or infinity where a value is.

    >>> largest_magnitude(np.array([1.0, -2.0])), largest_magnitude(np.array([1.0, np.inf], np.float16))
    (2.0, inf)
    """
    if values.dtype == np.float16:  # numpy's half-precision arithmetic is slow, and 65504 is a bound that will do
        return 65504.0 if all_finite(values) else math.inf
    return float(np.maximum(values.max(), -values.min()))  # np.maximum hands NaN on, max() may not
