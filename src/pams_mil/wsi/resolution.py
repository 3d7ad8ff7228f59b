"""The physical scale of a slide: stated by its file or by its owner, never guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pams_mil.data.bags.feature_origin import agrees
from pams_mil.errors import ParameterError, SlideError

LOWEST_MPP, HIGHEST_MPP = 0.05, 20.0
_SQUARE = 0.01  # how far the two axes of one slide may differ


class ScaleError(SlideError):
    """A slide whose physical scale is unknown, implausible or disputed."""

    reason = "scale unknown"


@dataclass(frozen=True)
class Resolution:
    """Microns per level-0 pixel and where that number comes from: `metadata`, `option` or `table`."""

    mpp: float
    origin: str


def check_mpp(value: float, name: str) -> float:
    """The value, refused unless it is a plausible number of microns per pixel.

    >>> check_mpp(0.25, "--mpp")
    0.25
    """
    if not (math.isfinite(value) and LOWEST_MPP <= value <= HIGHEST_MPP):
        raise ParameterError(
            f"{name} is {value:g} microns per pixel; expected a value from {LOWEST_MPP:g} to {HIGHEST_MPP:g} "
            "(0.25 is a 40x scan, 0.5 a 20x scan, 1.0 the resolution of the paper)."
        )
    return value


def resolve(stated: tuple[float | None, float | None], option: float | None, *, certain: bool = False) -> Resolution:
    """The resolution of a slide from what its file states and what its owner says.

    An option fills in for a slide that states nothing usable; against a plausible statement it is refused, since
    one option is given for many slides. `certain` marks a value meant for this very slide, which wins.

    >>> resolve((0.25, 0.25), None)
    Resolution(mpp=0.25, origin='metadata')
    >>> resolve((None, None), 0.5)
    Resolution(mpp=0.5, origin='option')
    """
    if option is not None:
        check_mpp(option, "the resolution given for the slide")
        if certain:
            return Resolution(option, "table")
    x, y = stated
    if x is None or y is None:
        problem = "the file does not state its resolution in microns per pixel, and it is never guessed. "
        advice = "Give it with --mpp-of-slide (for example --mpp-of-slide 0.25 for a 40x scan) or --mpp-table"
    # Some files state the dots per inch of a print or a 1 where nothing is known: that states nothing.
    elif not all(math.isfinite(value) and LOWEST_MPP <= value <= HIGHEST_MPP for value in (x, y)):
        problem = f"the file states {x:g} x {y:g} microns per pixel; expected {LOWEST_MPP:g} to {HIGHEST_MPP:g}. "
        advice = "Give the true value with --mpp-of-slide or --mpp-table"
    elif abs(x - y) > _SQUARE * max(x, y):
        raise ScaleError(
            f"the file states {x:g} microns per pixel across and {y:g} down; pixels must be square within "
            f"{_SQUARE:.0%}. Give the true value for this slide with --mpp-table"
        )
    else:
        mpp = (x + y) / 2
        if option is None or agrees("mpp", option, mpp):
            return Resolution(mpp, "metadata")
        raise ScaleError(
            f"the file states {mpp:g} microns per pixel but --mpp-of-slide says {option:g}. Leave the option out "
            "for this slide, or, if the file is wrong, give the value for this very slide with --mpp-table"
        )
    if option is None:
        raise ScaleError(problem + advice)
    return Resolution(option, "option")
