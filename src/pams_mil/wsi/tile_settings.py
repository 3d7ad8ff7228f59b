"""How slides are cut and encoded: one set of settings per output folder, so that bags in it can be compared."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pams_mil import atomic
from pams_mil.errors import ConfigError, ParameterError
from pams_mil.wsi.encoders.encoder import Encoder, weights_digest
from pams_mil.wsi.resolution import check_mpp

_FILE = "extraction.json"


@dataclass(frozen=True)
class TileSettings:
    """Settings that change features; the paper's are the defaults.

    `on_bad_tile` says what an unreadable tile means: `fail` gives the slide up, `skip` counts it and goes on.
    """

    mpp: float = 1.0
    tile_px: int = 256
    min_tissue: float = 0.10
    on_bad_tile: str = "fail"
    reader: str = "auto"
    feature_dtype: str = "float32"

    def __post_init__(self) -> None:
        check_mpp(self.mpp, "--mpp")
        if not 16 <= self.tile_px <= 8192:
            raise ParameterError(f"--tile-px is {self.tile_px}; expected 16 to 8192 pixels.")
        if not 0.0 < self.min_tissue <= 1.0:
            raise ParameterError(f"--min-tissue is {self.min_tissue:g}; expected a share above 0 and up to 1.")
        for name, value, allowed in (
            ("--on-bad-tile", self.on_bad_tile, ("fail", "skip")),
            ("--reader", self.reader, ("auto", "openslide", "tiffslide", "image")),
            ("--feature-dtype", self.feature_dtype, ("float32", "float16")),
        ):
            if value not in allowed:
                raise ParameterError(f"{name} is {value!r}; expected {' or '.join(allowed)}.")


@dataclass(frozen=True)
class WorkSettings:
    """Settings that change speed alone."""

    workers: int = min(4, os.cpu_count() or 1)
    batch: int = 32
    preview: bool = False

    def __post_init__(self) -> None:
        for name, value in (("--workers", self.workers), ("--batch", self.batch)):
            if value < 1:
                raise ParameterError(f"{name} is {value}; expected at least 1.")


def hold_to(out: Path, settings: TileSettings, encoder: Encoder) -> None:
    """Write the folder's settings down, or refuse to add bags that were made differently from those in it."""
    wanted: dict[str, Any] = {"encoder": encoder.name, "encoder_digest": weights_digest(encoder), **asdict(settings)}
    path = out / _FILE
    if not path.exists():
        atomic.write_json(path, wanted)
        return
    try:
        found = json.loads(path.read_text("utf-8"))
        # Only what is compared now: settings of later versions in the file do not count.
        differing = [name for name in wanted if found.get(name) != wanted[name]]
    except (ValueError, AttributeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Remove it, or use another --out.") from error
    if differing:
        changes = ", ".join(f"{name} was {found.get(name)!r}, now {wanted[name]!r}" for name in differing)
        raise ConfigError(f"{out} holds bags made with other settings: {changes}. Use another --out folder.")
