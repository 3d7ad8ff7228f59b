"""Whole slides: tissue, tiles at an exact physical size, encoders, bags out, heatmaps back.

Names are loaded on first use. The function `extract` lives in the module of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.lazy import lazy_names

if TYPE_CHECKING:
    from pams_mil.wsi.bag_record import ExtractionRecord, read_record
    from pams_mil.wsi.encoders.encoder import Encoder, EncoderOptions, create_encoder, encoder_names
    from pams_mil.wsi.heatmap import Heatmap, write_geojson
    from pams_mil.wsi.slide import Slide
    from pams_mil.wsi.slide_sources import SlideSource, find_slides
    from pams_mil.wsi.tile_settings import TileSettings, WorkSettings
    from pams_mil.wsi.tissue import Tissue, find_tissue

_HOMES = {
    "Encoder": "encoders.encoder",
    "EncoderOptions": "encoders.encoder",
    "ExtractionRecord": "bag_record",
    "Heatmap": "heatmap",
    "Slide": "slide",
    "SlideSource": "slide_sources",
    "TileSettings": "tile_settings",
    "Tissue": "tissue",
    "WorkSettings": "tile_settings",
    "create_encoder": "encoders.encoder",
    "encoder_names": "encoders.encoder",
    "find_slides": "slide_sources",
    "find_tissue": "tissue",
    "read_record": "bag_record",
    "write_geojson": "heatmap",
}

__all__ = [
    "Encoder",
    "EncoderOptions",
    "ExtractionRecord",
    "Heatmap",
    "Slide",
    "SlideSource",
    "TileSettings",
    "Tissue",
    "WorkSettings",
    "create_encoder",
    "encoder_names",
    "find_slides",
    "find_tissue",
    "read_record",
    "write_geojson",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
