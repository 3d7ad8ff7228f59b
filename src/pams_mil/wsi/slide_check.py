"""The slides of a cohort before extraction: is each there, can it be opened, does it state its scale?

Slides are opened and closed; no pixel of a tiled one is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pams_mil.data.examine import Problem
from pams_mil.errors import SlideError, counted, listing
from pams_mil.wsi.resolution import ScaleError
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.slide_sources import SlideSource, find_slides


@dataclass(frozen=True)
class SlideFacts:
    """What is known of a slide once it was opened; `mpp` is None where the file does not state its scale."""

    slide_id: str
    reader: str
    mpp: float | None


@dataclass(frozen=True)
class SlideFindings:
    """What was found out about the slides of a cohort."""

    slides: tuple[SlideFacts, ...]
    problems: tuple[Problem, ...]

    def summary(self) -> dict[str, Any]:
        """How many slides could be opened, by which reader, at which resolutions."""
        resolutions = Counter(f"{facts.mpp:.3g}" for facts in self.slides if facts.mpp is not None)
        return {
            "readable": len(self.slides),
            "readers": dict(Counter(facts.reader for facts in self.slides)),
            "mpp": {mpp: resolutions[mpp] for mpp in sorted(resolutions, key=float)},
        }


def check_slides(
    slide_ids: Sequence[str],
    folder: Path,
    *,
    workers: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> SlideFindings:
    """Open the slide file of every id below a folder."""
    try:
        sources = find_slides([folder])
    except SlideError as error:
        return SlideFindings((), (Problem("slides", str(error)),))
    by_name = {source.slide_id.removesuffix(".ome"): source for source in sources}  # a.ome.zarr is often called a
    # Exact names overrule the shortened ones above.
    by_name |= {name: source for source in sources for name in (source.path.name, source.slide_id)}
    wanted = {slide_id: by_name.get(slide_id) for slide_id in slide_ids}
    present = [(slide_id, source) for slide_id, source in wanted.items() if source is not None]
    facts, problems = [], list(_missing([slide_id for slide_id, source in wanted.items() if source is None], folder))
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for done, found in enumerate(pool.map(lambda pair: _opened(*pair), present), 1):
            if progress is not None:
                progress(done, len(present))
            if isinstance(found, Problem):
                problems.append(found)
            else:
                facts.append(found)
    problems += _without_scale(facts)
    return SlideFindings(tuple(facts), tuple(problems))


def _opened(slide_id: str, source: SlideSource) -> SlideFacts | Problem:
    try:
        try:
            with Slide(source.path) as slide:
                return SlideFacts(slide_id, slide.reader_name, slide.mpp)
        except ScaleError:
            # The scale is missing, but can the slide be opened? Any value will do to find out.
            with Slide(source.path, mpp_of_slide=1.0, mpp_is_certain=True) as slide:
                return SlideFacts(slide_id, slide.reader_name, None)
    except SlideError as error:
        return Problem("unreadable slide", f"Slide {slide_id!r}: {error}", (slide_id,))


def _missing(slide_ids: Sequence[str], folder: Path) -> Iterable[Problem]:
    if slide_ids:
        message = f"No slide file was found below {folder} for {counted(len(slide_ids), 'slide')} of the table: "
        yield Problem("missing slide", f"{message}{listing(slide_ids)}.", tuple(slide_ids))


def _without_scale(facts: Iterable[SlideFacts]) -> Iterable[Problem]:
    unknown = tuple(slide.slide_id for slide in facts if slide.mpp is None)
    if unknown:
        message = f"{counted(len(unknown), 'slide')} without a usable resolution in the file: {listing(unknown)}. "
        advice = "State it when extracting: --mpp-of-slide, or --mpp-table for single slides."
        yield Problem("slide without scale", message + advice, unknown, error=False)
