"""Slides spread over a Ray cluster, one task per slide.

The output folder is shared by all nodes. Claims and atomic writes protect it as they do for processes on one machine,
so a node may be lost at any time: Ray gives its slide to another, as soon as one is free.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pams_mil.errors import needs_extra
from pams_mil.wsi.encoders.encoder import Encoder, EncoderOptions, create_encoder
from pams_mil.wsi.extract import OnProgress, Outcome, extract, settle_failures
from pams_mil.wsi.slide_sources import SlideSource
from pams_mil.wsi.tile_grid import TileSettings, WorkSettings


@functools.lru_cache(maxsize=1)
def loaded_encoder(name: str, options: EncoderOptions) -> Encoder:
    """The encoder of a worker process: loaded for its first slide, kept for those that follow."""
    return create_encoder(name, options)


def extract_one(
    source: SlideSource, out: str, encoder: str, options: EncoderOptions, settings: TileSettings, work: WorkSettings
) -> Outcome:
    """One slide, wherever Ray sends it."""
    return extract([source], Path(out), loaded_encoder(encoder, options), settings, work)


def extract_on_cluster(
    sources: Sequence[SlideSource],
    out: Path,
    encoder: str,
    options: EncoderOptions,
    settings: TileSettings,
    work: WorkSettings,
    progress: OnProgress = lambda what, fraction: None,
    tell: Callable[[str], None] = lambda problem: None,
    announce: Callable[[str], None] | None = None,
) -> Outcome:
    """Extract every slide whose bag is missing, on the cluster that Ray is connected to (or starts here)."""
    with needs_extra("--engine ray", package="ray", extra="ray"):
        ray: Any = importlib.import_module("ray")
    create_encoder(encoder, options, announce=announce)  # an unknown name or missing weights fail here, in words
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    with_gpu = options.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1
    # max_calls=0 keeps the worker, and with it the loaded encoder, for the next slide.
    share = {"num_gpus": 1, "max_calls": 0} if with_gpu else {"num_cpus": 1}
    # Retried without end when a node is lost; errors of a slide itself come back as its outcome, not as exceptions.
    task = ray.remote(**share, max_retries=-1)(extract_one)
    place = str(out.resolve())
    tasks = [task.remote(source, place, encoder, options, settings, work) for source in sources]
    total = Outcome()
    while tasks:
        finished, tasks = ray.wait(tasks, num_returns=1)
        outcome: Outcome = ray.get(finished[0])
        total.extracted += outcome.extracted
        total.reused += outcome.reused
        total.failed.update(outcome.failed)
        total.tiles += outcome.tiles
        for _, _, problem in outcome.failed.values():
            tell(problem)
        progress("Extracting", 1 - len(tasks) / len(sources))
    settle_failures(out, total)
    return total
