"""`lunit-vits16`: the ViT-S/16 that Kang et al. (CVPR 2023) trained on pathology with DINO; 384 features.

Tiles are resized to 224 px and normalized with the statistics of the training set. Needs the `encoders` extra; give
the released file with --weights where there is no network.
"""

from __future__ import annotations

from pams_mil.wsi.encoders.encoder import EncoderOptions
from pams_mil.wsi.encoders.timm_model import build, encoder
from pams_mil.wsi.encoders.torch_encoder import TorchEncoder

DISCOVER = {"lunit-vits16": "create"}
NAME = "lunit-vits16"
NOTICE = (
    "The weights of lunit-vits16 (Lunit Inc., benchmark-ssl-pathology) are licensed for non-commercial use only; "
    "by using them you accept their license: https://github.com/lunit-io/benchmark-ssl-pathology#license"
)
MEAN = (0.70322989, 0.53606487, 0.66096631)
STD = (0.21716536, 0.26081574, 0.20723464)
_HUB, _PLAIN = "hf-hub:1aurent/vit_small_patch16_224.lunit_dino", "vit_small_patch16_224"


def create(options: EncoderOptions) -> TorchEncoder:
    """The encoder, with weights from the hub or from `options.weights`."""
    network = build(_PLAIN if options.weights else _HUB, options)
    return encoder(network, options, NAME, MEAN, STD, 224)
