"""Train one image classifier per loss on the same images, seeds and budget, and predict the test images.

The severity losses need no bags: this is an ordinary PyTorch loop with another loss in it. The networks are ResNet-18
(He et al. 2016) and a small one for quick runs. ResNet-18 is a stem, four stages of two residual blocks with 64, 128,
256 and 512 channels, the first block of stages 2 to 4 halving the resolution, global average, one linear layer. A block
is x + F(x) with F = conv3x3-BN-ReLU-conv3x3-BN, and a strided 1x1 convolution with BN on the shortcut where the shape
changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pams_mil.arrays import Pixels
from pams_mil.engine.config.run_config import Strict
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.seeding import generator


@dataclass(frozen=True)
class ImageSet:
    """Images [n, 3, h, w] and their classes [n] in the order of the hierarchy."""

    images: Pixels
    target: npt.NDArray[np.int64]

    @cached_property
    def digest(self) -> str:
        """32 hex digits of images and classes."""
        hasher = hashlib.blake2b(digest_size=16)
        for values in (self.images, self.target):
            hasher.update(f"{values.dtype.str}{values.shape}".encode())
            hasher.update(np.ascontiguousarray(values).data)
        return hasher.hexdigest()


class Budget(Strict):
    """What every loss gets alike: Adam with a cosine schedule, flips and shifted crops as augmentation."""

    epochs: int = 30
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 5e-4


def train_and_predict(
    name: str,
    network: Callable[[], nn.Module],
    loss: nn.Module,
    train: ImageSet,
    test: ImageSet,
    hierarchy: ClassHierarchy,
    *,
    budget: Budget,
    seed: int,
) -> Predictions:
    """Predictions on the test images after training with one loss; deterministic for a seed."""
    # The same first weights for every loss, whatever was drawn before; the caller's generator is left alone.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=budget.lr, weight_decay=budget.weight_decay)
    steps = budget.epochs * -(-len(train.target) // budget.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    images, target = _normalized(train.images), torch.from_numpy(train.target)
    for epoch in range(budget.epochs):
        model.train()
        draw = generator(seed, epoch, "images")
        for rows in torch.split(torch.randperm(len(target), generator=draw), budget.batch_size):
            batch = augment(images[rows], draw)
            optimizer.zero_grad(set_to_none=True)
            loss(model(batch), target[rows]).backward()
            optimizer.step()
            schedule.step()
    probabilities = _predict(model, _normalized(test.images), budget.batch_size)
    slides = [f"image-{number:05d}" for number in range(len(test.target))]
    return Predictions(
        name, hierarchy, slides, test.target, probabilities.argmax(1), probabilities, layout="image study"
    )


def augment(images: Tensor, draw: torch.Generator) -> Tensor:
    """A random horizontal flip and a random shift by up to an eighth of the width, per image."""
    n, _, height, width = images.shape
    flip = torch.rand(n, generator=draw) < 0.5
    images = torch.where(flip[:, None, None, None], images.flip(-1), images)
    margin = width // 8
    padded = nn.functional.pad(images, [margin] * 4)
    top, left = (torch.randint(0, 2 * margin + 1, (n, 1), generator=draw) for _ in range(2))
    rows = (top + torch.arange(height))[:, None, :, None]
    columns = (left + torch.arange(width))[:, None, None, :]
    # One gather for all crops: [n, 1, 1, 1], [1, 3, 1, 1], rows [n, 1, h, 1] and columns [n, 1, 1, w] broadcast.
    return padded[torch.arange(n)[:, None, None, None], torch.arange(3)[None, :, None, None], rows, columns]


def _normalized(images: Pixels) -> Tensor:
    return (torch.from_numpy(images).float() / 255.0 - 0.5) / 0.25


def _predict(model: nn.Module, images: Tensor, batch_size: int) -> npt.NDArray[np.float64]:
    model.eval()
    with torch.inference_mode():
        logits = [model(batch).double().softmax(-1) for batch in torch.split(images, batch_size)]
    return torch.cat(logits).numpy()


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
