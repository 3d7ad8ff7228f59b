"""`timm:MODEL`: any image model of timm, or of the Hugging Face hub as `timm:hf-hub:OWNER/NAME`, without its head.

Normalization and input size are those the model was trained with, from its own configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import nn

from pams_mil.digests import file_digest
from pams_mil.errors import ConfigError, needs_extra
from pams_mil.models.core.published import read_tensors
from pams_mil.wsi.encoders.encoder import EncoderOptions
from pams_mil.wsi.encoders.torch_encoder import TorchEncoder

NOTICE = (
    "Weights from timm or the Hugging Face hub have licenses of their own, several of them non-commercial; "
    "read the model's page before use. They are downloaded at first use."
)


def create(model: str, options: EncoderOptions) -> TorchEncoder:
    """The encoder for a model name of timm."""
    network = build(model, options)
    cfg = getattr(network, "pretrained_cfg", {}) or {}
    if "mean" not in cfg or "std" not in cfg:
        raise ConfigError(f"timm:{model} does not state its normalization; wrap it in a class of your own instead.")
    input_px = int(cfg["input_size"][-1]) if cfg.get("input_size") else None
    return encoder(network, options, f"timm:{model}", cfg["mean"], cfg["std"], input_px)


def encoder(
    network: nn.Module, options: EncoderOptions, name: str, mean: Sequence[float], std: Sequence[float],
    input_px: int | None,
) -> TorchEncoder:  # fmt: skip
    """A network of timm as an encoder, with its normalization on the scale 0..1."""
    mean, std = ([255.0 * float(value) for value in values] for values in (mean, std))
    digest = file_digest(options.weights) if options.weights else network_digest(network)
    return TorchEncoder(network, name=name, digest=digest, mean=mean, std=std, input_px=input_px, options=options)


def build(model: str, options: EncoderOptions) -> nn.Module:
    """A timm network without its head: weights from the file given, else from the hub."""
    with needs_extra(f"The encoder timm:{model}", package="timm", extra="encoders"):
        import timm  # noqa: PLC0415  an optional dependency
    try:
        network: nn.Module = timm.create_model(model, pretrained=options.weights is None, num_classes=0)
    except Exception as error:  # unknown names, no network, gated repositories: each library has its own kinds
        raise ConfigError(
            f"timm could not make {model!r}: {error}. Offline? Give a weight file with --weights."
        ) from error
    if options.weights is not None:
        weights = read_tensors(options.weights)
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise ConfigError(f"{options.weights} does not fit {model!r}: {error}") from error
    return network


def network_digest(network: nn.Module) -> str:
    """32 hex digits of a network's weights."""
    digest = hashlib.blake2b(digest_size=16)
    # Sorted by name: the digest is of the weights, not of the order in which a version of timm registers them.
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
