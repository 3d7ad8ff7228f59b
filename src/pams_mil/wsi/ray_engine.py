"""Slides spread over a Ray cluster: every actor keeps one encoder and extracts one slide after the other.

The output folder is shared by all nodes. Claims and atomic writes protect it as they do for processes on one machine,
so a node may be lost at any time: Ray starts its actor again elsewhere and repeats the slide in work.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pams_mil.errors import MissingExtraError
from pams_mil.wsi.encoders.base import EncoderOptions, create_encoder
from pams_mil.wsi.extract import Outcome, Watcher, extract, settle_failures
from pams_mil.wsi.settings import TileSettings, WorkSettings
from pams_mil.wsi.sources import SlideSource


class SlideActor:
    """Extracts slides on a node of the cluster; becomes a Ray actor below."""

    def __init__(self, encoder: str, options: EncoderOptions, settings: TileSettings, work: WorkSettings) -> None:
        self._encoder = create_encoder(encoder, options)
        self._settings, self._work = settings, work

    def extract(self, source: SlideSource, out: str) -> Outcome:
        """One slide."""
        return extract([source], Path(out), self._encoder, self._settings, self._work)


def extract_on_cluster(
    sources: Sequence[SlideSource],
    out: Path,
    encoder: str,
    options: EncoderOptions,
    settings: TileSettings,
    work: WorkSettings,
    watcher: Watcher,
    announce: Callable[[str], None] | None = None,
) -> Outcome:
    """Extract every slide whose bag is missing, on the cluster that Ray is connected to (or starts here)."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("--engine ray", package="ray", extra="ray") from error
    create_encoder(encoder, options, announce=announce)  # an unknown name or missing weights fail here, in words
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    resources = ray.cluster_resources()
    with_gpu = options.device != "cpu" and resources.get("GPU", 0) >= 1
    share = {"num_gpus": 1} if with_gpu else {"num_cpus": 1}
    many = int(resources["GPU"] if with_gpu else resources.get("CPU", 1))
    kind = ray.remote(**share, max_restarts=-1, max_task_retries=-1)(SlideActor)
    actors = [kind.remote(encoder, options, settings, work) for _ in range(max(1, min(many, len(sources))))]
    try:
        outcome = _collect(ray, actors, sources, str(out.resolve()), watcher)
    finally:
        for actor in actors:
            ray.kill(actor)
    settle_failures(out, outcome)
    return outcome


def _collect(ray: Any, actors: list[Any], sources: Sequence[SlideSource], out: str, watcher: Watcher) -> Outcome:
    """Keep every actor busy with one slide; the next slide goes to whoever is free first."""
    total = Outcome()
    queue = list(reversed(sources))
    busy = {actor.extract.remote(queue.pop(), out): actor for actor in actors if queue}
    while busy:
        (finished,), _ = ray.wait(list(busy), num_returns=1)
        actor = busy.pop(finished)
        part: Outcome = ray.get(finished)
        total.made += part.made
        total.kept += part.kept
        total.failed.update(part.failed)
        total.tiles += part.tiles
        for slide_id in (*part.made, *part.kept, *part.failed):
            watcher.planned(slide_id, part.tiles)
            watcher.encoded(part.tiles)
            watcher.finished(slide_id, part.failed[slide_id][2] if slide_id in part.failed else "")
        if queue:
            busy[actor.extract.remote(queue.pop(), out)] = actor
    return total
