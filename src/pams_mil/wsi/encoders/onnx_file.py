"""`onnx:FILE`: any network in ONNX form, through onnxruntime.

The file takes images [b, 3, h, w] and gives features [b, d], or maps [b, d, h', w'] that are averaged. An eight-bit
input receives pixels as they are. A floating-point input needs the normalization it was trained with, as metadata
entries `mean` and `std` of the model: three numbers each, on the scale 0..1, separated by commas.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pams_mil.digests import file_digest
from pams_mil.errors import ConfigError, needs_extra
from pams_mil.wsi.encoders.encoder import EncoderOptions


class OnnxEncoder:
    """The network in a file, run by onnxruntime."""

    def __init__(self, file: str, options: EncoderOptions) -> None:
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"There is no ONNX file {path}.")
        self._session = _session(path, options.device)
        self.digest = file_digest(path)
        self.name = f"onnx:{path.stem}@{self.digest[:8]}"
        self._input = self._session.get_inputs()[0]
        shape = self._input.shape
        if len(shape) != 4 or shape[1] != 3:
            raise ConfigError(f"{path} takes an input of shape {shape}; expected images [b, 3, h, w].")
        self._fixed_batch = shape[0] if isinstance(shape[0], int) else None
        self._input_px = shape[2] if isinstance(shape[2], int) else None
        self._raw = self._input.type == "tensor(uint8)"
        self._dtype = np.float16 if self._input.type == "tensor(float16)" else np.float32
        self._mean, self._std = _normalization(self._session, path, raw=self._raw)

    def __call__(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """[b, t, t, 3] -> [b, d] float32."""
        # Some exports fix the batch size; tiles are then run in batches of just that size.
        size = self._fixed_batch or len(tiles)
        parts = [self._run(tiles[start : start + size], size) for start in range(0, len(tiles), size)]
        return np.concatenate(parts)

    def _run(self, tiles: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.float32]:
        count = len(tiles)
        if self._input_px is not None and tiles.shape[1] != self._input_px:
            side = (self._input_px, self._input_px)
            tiles = np.stack(
                [np.asarray(Image.fromarray(tile).resize(side, Image.Resampling.BICUBIC)) for tile in tiles]
            )
        if count < size:  # a fixed batch is filled up; the surplus is cut off again below
            tiles = np.concatenate([tiles, np.zeros((size - count, *tiles.shape[1:]), np.uint8)])
        images = tiles.transpose(0, 3, 1, 2)
        if not self._raw:
            images = ((images / np.float32(255.0) - self._mean) / self._std).astype(self._dtype)
        features = self._session.run(None, {self._input.name: np.ascontiguousarray(images)})[0]
        if features.ndim == 4:
            features = features.mean(axis=(2, 3))
        if features.ndim != 2 or len(features) != size:
            raise ConfigError(f"{self.name} gave features of shape {list(features.shape)}; expected [{size}, d].")
        return np.asarray(features[:count], np.float32)


def _session(path: Path, device: str) -> Any:
    with needs_extra(f"The encoder onnx:{path.name}", package="onnxruntime", extra="onnx"):
        import onnxruntime  # noqa: PLC0415  an optional dependency
    available = onnxruntime.get_available_providers()
    wanted = ["CPUExecutionProvider"]
    if device != "cpu" and "CUDAExecutionProvider" in available:
        wanted.insert(0, "CUDAExecutionProvider")
    try:
        return onnxruntime.InferenceSession(str(path), providers=wanted)
    except Exception as error:  # onnxruntime has a class of its own per kind of damage
        raise ConfigError(f"{path} cannot be opened as an ONNX model: {error}") from error


def _normalization(session: Any, path: Path, *, raw: bool) -> tuple[Any, Any]:
    if raw:
        return None, None
    stated = session.get_modelmeta().custom_metadata_map
    try:
        mean, std = (
            np.array([float(value) for value in stated[name].split(",")], np.float32).reshape(1, 3, 1, 1)
            for name in ("mean", "std")
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{path} takes floating-point images but does not state how to normalize them. Add metadata entries 'mean' "
            "and 'std', three numbers each on the scale 0..1 (onnx.helper.set_model_props), or export it with an "
            "eight-bit input that normalizes inside."
        ) from error
    return mean, std


create = OnnxEncoder
