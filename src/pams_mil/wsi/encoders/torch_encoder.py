"""A torch network as an encoder: normalization, channels-last, autocast, batches cut to suit the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.errors import ConfigError, RunError
from pams_mil.models.core.devices import CoreTeam, choose_device
from pams_mil.wsi.encoders.encoder import EncoderOptions

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchEncoder:
    """x -> network((x - mean) / std) with eight-bit x, `mean` and `std` on the scale 0..255.

    `input_px` resizes tiles to the side the network was trained with; None keeps them as they are.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        name: str,
        digest: str,
        mean: Sequence[float],
        std: Sequence[float],
        input_px: int | None,
        options: EncoderOptions,
    ) -> None:
        self.name, self.digest, self.input_px = name, digest, input_px
        self.device = choose_device(options.device)
        self.dtype = choose_precision(options.precision, self.device)
        self.network = network.eval().requires_grad_(False).to(self.device)
        for parameter in self.network.parameters():
            # Weights in the memory order of the images, or every convolution would reorder one of the two.
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        self._mean = torch.tensor(mean, device=self.device).reshape(1, -1, 1, 1)
        self._gain = 1.0 / torch.tensor(std, device=self.device).reshape(1, -1, 1, 1)
        self._team = CoreTeam() if self.device.type == "cpu" else None

    def __call__(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """[b, t, t, 3] -> [b, d] float32."""
        try:
            if self._team is None:
                parts = [self._encode(tiles)]
            else:
                # one tile per core: the maps of more would not fit its cache
                parts = self._team.map(self._encode, np.split(tiles, len(tiles)))
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"{self.name} ran out of memory on {self.device} with a batch of {len(tiles)} tiles; "
                "use a smaller --batch."
            ) from error
        return torch.cat(parts).float().cpu().numpy()

    @torch.inference_mode()
    def _encode(self, tiles: npt.NDArray[np.uint8]) -> Tensor:
        # rows of RGB pixels are channels-last already: the permuted view needs no copy
        images = torch.from_numpy(np.ascontiguousarray(tiles)).to(self.device).permute(0, 3, 1, 2)
        x = images.float().sub_(self._mean).mul_(self._gain)
        if self.input_px is not None and x.shape[-1] != self.input_px:
            size = (self.input_px, self.input_px)
            # antialias: when reducing, plain bicubic would skip pixels.
            x = functional.interpolate(x, size=size, mode="bicubic", antialias=True)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            features: Tensor = self.network(x)
        return features.mean((2, 3)) if features.ndim == 4 else features


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The type convolutions and products run in; `auto` is half precision on GPUs, where it is faster."""
    if name == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if name not in _DTYPES:
        raise ConfigError(f"There is no precision {name!r}; choose auto, float32, bfloat16 or float16.")
    return _DTYPES[name]
