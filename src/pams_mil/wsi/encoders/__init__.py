"""Encoders: tiles in, feature vectors out. The name on the command line is the file's name here."""

from __future__ import annotations

from pams_mil.wsi.encoders.encoder import Encoder, create_encoder, encoder_names

__all__ = ["Encoder", "create_encoder", "encoder_names"]
