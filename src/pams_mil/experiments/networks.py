"""Image classifiers for the natural-image study: ResNet-18 and a small network for quick runs.

ResNet-18 (He et al. 2016): a stem, four stages of two residual blocks with 64, 128, 256 and 512 channels, the first
block of stages 2 to 4 halving the resolution, global average, one linear layer. A block is x + F(x) with
F = conv3x3-BN-ReLU-conv3x3-BN, and a strided 1x1 convolution with BN on the shortcut where the shape changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ImageResidualBlock(nn.Module):
    """relu(shortcut(x) + F(x))."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        same = stride == 1 and channels_in == channels_out
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """[b, c, h, w] to [b, c', h / stride, w / stride]."""
        return torch.relu(self.shortcut(x) + self.residual(x))


def resnet18(num_classes: int) -> nn.Module:
    """ResNet-18.

    >>> sum(p.numel() for p in resnet18(1000).parameters())
    11689512
    """
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    widths = (64, 64, 128, 256, 512)
    blocks: list[nn.Module] = []
    for stage in range(4):
        blocks.append(ImageResidualBlock(widths[stage], widths[stage + 1], stride=1 if stage == 0 else 2))
        blocks.append(ImageResidualBlock(widths[stage + 1], widths[stage + 1], stride=1))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes)]
    return nn.Sequential(*stem, *blocks, *head)


def small_network(num_classes: int) -> nn.Module:
    """Three strided convolutions, for runs of minutes on a CPU."""
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(channels_in, channels_out, 3, 2, 1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))
