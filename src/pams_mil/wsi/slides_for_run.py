"""New slides for a trained run: extracted in the way its training features were made, and listed in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pams_mil import atomic
from pams_mil.data.bags.bag import BagInfo
from pams_mil.data.bags.feature_origin import STATED
from pams_mil.errors import ConfigError, SlideError
from pams_mil.wsi.dicom_series import dicom_slides
from pams_mil.wsi.encoders.encoder import EncoderOptions, create_encoder
from pams_mil.wsi.extract import BAG_FOLDER, extract
from pams_mil.wsi.slide_kind import is_ome_zarr
from pams_mil.wsi.slide_sources import READABLE_SUFFIXES, SlideSource
from pams_mil.wsi.tile_settings import TileSettings


@dataclass(frozen=True)
class ReadyBags:
    """A table of slides and the folder with their bags, as `pams predict` takes them."""

    manifest: Path
    features: Path


def is_slide(path: Path) -> bool:
    """Whether a path looks like a slide rather than a table or a run: by its name, or as the folder of a slide's files.

    >>> is_slide(Path("case 1.SVS")), is_slide(Path("cohort.csv"))
    (True, False)
    """
    if path.suffix.lower() in READABLE_SUFFIXES:
        return True
    return path.is_dir() and (is_ome_zarr(path) or bool(dicom_slides(path)))


def tile_side_px0(info: BagInfo, made: Mapping[str, Any], mpp_of_slide: float) -> float | None:
    """The side of a bag's tiles in level-0 pixels: as its file says, or tile_px mpp / mpp of the slide; None: unknown.

    >>> tile_side_px0(BagInfo(), {"mpp": 0.5, "tile_px": 256}, 0.25)
    512.0
    """
    if info.tile_px0 is not None and info.tile_px0 > 0:
        return float(info.tile_px0)
    mpp, tile_px = info.mpp or made.get("mpp"), info.tile_px or made.get("tile_px")
    return None if mpp is None or tile_px is None else float(tile_px) * float(mpp) / mpp_of_slide


def bags_for_run(
    sources: Sequence[SlideSource],
    out: Path,
    made: Mapping[str, Any],
    *,
    encoder: str | None = None,
    options: EncoderOptions | None = None,
    announce: Callable[[str], None] | None = None,
) -> ReadyBags:
    """Bags of these slides below `out`, made as `made` says: encoder, mpp and tile_px of the training features.

    `encoder` names the encoder where the stored name does not lead to its file (`onnx:FILE`, your own class), or
    where there is none because the training features' files did not say. A slide that cannot be read is announced and
    stays in the table without a bag, so that whoever reads on misses it; it is an error if none can be read.
    """
    known = {**made, "encoder": made.get("encoder") or encoder}
    missing = [name for name in STATED if known.get(name) is None]
    if missing:
        options_for = " ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ConfigError(
            f"The run does not say how its training features were made ({', '.join(missing)} unknown), so slides "
            f"cannot be encoded the same way. State it: {options_for} here, data.<name> when training, or columns of "
            "the cohort table. Or extract the slides yourself and predict from the bags."
        )
    network = create_encoder(encoder or str(made["encoder"]), options, announce=announce)
    if made.get("encoder") not in (None, network.name):
        raise ConfigError(f"The run was trained on features of {made['encoder']}, not of {network.name}.")
    settings = TileSettings(mpp=float(made["mpp"]), tile_px=int(made["tile_px"]))
    outcome = extract(sources, out, network, settings)
    if len(outcome.failed) == len(sources) and sources:
        raise SlideError("; ".join(message for _, _, message in outcome.failed.values()))
    if announce is not None:
        for _, _, message in outcome.failed.values():
            announce(message)
    manifest = out / "slides.csv"
    atomic.write_csv(manifest, ["slide_id"], [[source.slide_id] for source in sources])
    return ReadyBags(manifest, out / BAG_FOLDER)
