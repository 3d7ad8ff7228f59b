"""How wide the features of known encoders are, so that a file that says one encoder and holds another is named.

Widths of tile encoders as TRIDENT, STAMP and LazySlide call them; several where an encoder is used in several ways
(Virchow's class token alone, 1280, or with the mean of its patch tokens, 2560). Slide encoders give one vector a slide.
"""

from __future__ import annotations

import re

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
    widths = {_plain(name): found for name, found in table.items()}
    aliases = {_plain(name): _plain(meant) for name, meant in _ALIASES.items()}
    name = _plain(encoder)
    return widths.get(aliases.get(name, name), ())


def encoders_of(width: int, *, slide_level: bool = False) -> list[str]:
    """The known encoders whose features are so wide.

    >>> encoders_of(3072)
    ['midnight12k']
    """
    table = SLIDE_WIDTHS if slide_level else TILE_WIDTHS
    return [name for name, widths in table.items() if width in widths]


def width_complaint(encoder: str, width: int, *, slide_level: bool = False) -> str:
    """What is wrong with an encoder's name beside a width, as a sentence; empty when nothing is known to be.

    >>> width_complaint("uni", 512)
    "the encoder 'uni' makes 1024 features, and these bags have 512, as 'conch', 'conch_v1' make"
    >>> width_complaint("uni", 1024), width_complaint("mine", 7)
    ('', '')
    """
    expected = known_widths(encoder, slide_level=slide_level)
    if not expected or width in expected:
        return ""
    makers = encoders_of(width, slide_level=slide_level)
    guess = f", as {', '.join(map(repr, makers))} make" if makers else ""
    return (
        f"the encoder {encoder!r} makes {' or '.join(map(str, expected))} features, and these bags have {width}{guess}"
    )


def _plain(name: str) -> str:
    """A name without what people spell differently: case, separators, who published it, a hash at the end."""
    last = name.strip().casefold().rsplit("/", 1)[-1]
    return re.sub(r"[\s_.\-]", "", re.sub(r"-[0-9a-f]{8}$", "", last))
