"""The natural-image study: five losses on CIFAR-10 in the paper's order of classes, one level, no bags.

Train one image classifier per loss on the same images, seeds and budget, and predict the test images.

The severity losses need no bags: this is an ordinary PyTorch loop with another loss in it. The networks are ResNet-18
(He et al. 2016) and a small one for quick runs. ResNet-18 is a stem, four stages of two residual blocks with 64, 128,
256 and 512 channels, the first block of stages 2 to 4 halving the resolution, global average, one linear layer. A block
is x + F(x) with F = conv3x3-BN-ReLU-conv3x3-BN, and a strided 1x1 convolution with BN on the shortcut where the shape
changes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from markupsafe import Markup
from pydantic import Field
from torch import Tensor, nn

from pams_mil import atomic, methods
from pams_mil.arrays import Pixels
from pams_mil.cohorts.cifar10_bags import Cifar10
from pams_mil.engine.config.run_config import Strict, build, with_overrides
from pams_mil.engine.config.yaml_file import read_yaml
from pams_mil.errors import ConfigError
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.experiments.paper import FOLDER, Study, paper_table
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.probability import OrderedProbabilities, expected_class_of_errors
from pams_mil.metrics.reduce import divide
from pams_mil.report import svg
from pams_mil.report.bench import Entry, summarize
from pams_mil.report.bench_page import Further
from pams_mil.report.page import ReportTable
from pams_mil.seeding import generator

LOSSES = {
    "CE": methods.CELoss,
    "Weighted CE (1:10)": methods.WeightedCELoss,
    "CO2": methods.CO2Loss,
    "CDW-CE": methods.CDWCELoss,
    "MSCE": methods.MSCELoss,
}
REFERENCE = "MSCE"
Loss = Literal["CE", "Weighted CE (1:10)", "CO2", "CDW-CE", "MSCE"]


class Budget(Strict):
    """What every loss gets alike: Adam with a cosine schedule, flips and shifted crops as augmentation."""

    epochs: int = 30
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 5e-4


class ImageGrid(Strict):
    """The settings of the study."""

    source: Path
    """The folder of the python batches, or of class folders."""
    train: int = Field(50_000, ge=1)
    test: int = Field(10_000, ge=1)
    network: Literal["resnet18", "small"] = "resnet18"
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    losses: tuple[Loss, ...] = Field(get_args(Loss), min_length=1)
    training: Budget = Budget()


def cifar10_study(
    changes: Sequence[str], out: Path, *, resamples: int, progress: Callable[[float, str], None]
) -> Study:
    """Train one network per loss and seed; compare them, with the expected class of the misclassified."""
    content = with_overrides(read_yaml(FOLDER / "grids" / "cifar10.yaml"), changes, kind=ImageGrid)
    if content["source"] is None:
        raise ConfigError("paper:cifar10 needs a local copy: source=FOLDER with the python batches or class folders.")
    grid = build(ImageGrid, content, where="paper:cifar10")
    cohort = Cifar10(source=grid.source, train=grid.train, val=1, test=grid.test)
    images = ImageSet(*cohort.images("train")), ImageSet(*cohort.images("test"))
    hierarchy = ClassHierarchy.load("cifar10")
    entries = [Entry("ResNet-18" if grid.network == "resnet18" else "small network", loss, {}) for loss in grid.losses]
    jobs = [(entry, seed) for seed in grid.seeds for entry in entries]
    for number, (entry, seed) in enumerate(jobs, 1):
        entry.runs[f"seed {seed}"] = _predictions(grid, out, hierarchy, images, entry.method, seed)
        progress(number / len(jobs), f"{entry.method}, seed {seed}: done")
    reference = REFERENCE if REFERENCE in grid.losses else grid.losses[0]
    expected = expected_classes(entries)
    rows = [[loss, *(f"{value:.2f}" for value in values)] for loss, values in expected.items()]
    caption = "Expected class (1 to 10) of misclassified images by true class, mean over seeds; higher is safer."
    table = ReportTable(["loss", *hierarchy.names()], rows, caption=caption)
    return Study(
        "Natural images: what each loss does to the direction of mistakes",
        Further((table, *paper_table("cifar10", grid.losses, "cifar10")), {"expected-class.svg": draw(expected)}),
        summarize(entries, reference=reference, resamples=resamples),
    )


def expected_classes(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """Per loss, the expected class (1-based) of the misclassified of each true class, mean over seeds."""
    means = {}
    for entry in entries:
        per_seed = [
            expected_class_of_errors(run.target, run.predicted, OrderedProbabilities(run.probabilities), run.hierarchy)
            for run in entry.runs.values()
            if run.probabilities is not None
        ]
        # A loss without mistakes in a class has no mean there; the other seeds still count.
        known = (~np.isnan(per_seed)).sum(axis=0)
        means[entry.method] = divide(np.nansum(per_seed, axis=0), known).tolist()
    return means


def draw(expected: Mapping[str, Sequence[float]]) -> Markup:
    """One line per loss over the true classes, least urgent first."""
    count = len(next(iter(expected.values())))
    numbers = range(1, count + 1)
    plane = svg.Plane(520, 340, list(numbers), [number / 100 for number in numbers])  # its y axis is in percent
    parts = plane.axes(("true class", "expected class of mistakes"), x_scale=1)
    for number, (loss, values) in enumerate(expected.items()):
        places = [plane.at(true, value / 100) for true, value in enumerate(values, 1) if not np.isnan(value)]
        parts.append(svg.polyline(places, f"curve {svg.series(number)}", loss))
    return svg.picture(520, 340, "expected class of misclassified images", parts)


def _predictions(
    grid: ImageGrid, out: Path, hierarchy: ClassHierarchy, images: tuple[ImageSet, ImageSet], label: str, seed: int
) -> Predictions:
    """Predictions of one run, read back when an earlier run of the same images, classes and budget left them."""
    train, test = images
    quick = grid.network == "small"
    folder = out / "cifar10" / "runs" / f"{LOSSES[label].__name__}-seed{seed}"
    settings = {
        "budget": grid.training.model_dump(), "quick": quick, "seed": seed, "loss": label, "classes": hierarchy.digest,
        "images": {"train": train.digest, "test": test.digest},
    }  # fmt: skip
    marker = folder / "settings.json"
    if marker.exists() and marker.read_text("utf-8") == atomic.strict_json(settings) + "\n":
        return read_predictions(folder / "predictions.csv", hierarchy, name=label)
    network = partial(small_network if quick else resnet18, hierarchy.num_classes())
    predictions = train_and_predict(
        label, network, LOSSES[label](hierarchy), train, test, hierarchy, budget=grid.training, seed=seed
    )
    write_predictions(folder / "predictions.csv", predictions)
    # After the predictions: what the marker says is there is there.
    atomic.write_json(marker, settings)
    return predictions


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


def _convolution(channels_in: int, channels_out: int, size: int, stride: int) -> list[nn.Module]:
    padding = size // 2
    return [nn.Conv2d(channels_in, channels_out, size, stride, padding, bias=False), nn.BatchNorm2d(channels_out)]


class ImageResidualBlock(nn.Module):
    """relu(shortcut(x) + F(x))."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        first, second = (
            _convolution(channels_in, channels_out, 3, stride),
            _convolution(channels_out, channels_out, 3, 1),
        )
        self.residual = nn.Sequential(*first, nn.ReLU(inplace=True), *second)
        same = stride == 1 and channels_in == channels_out
        self.shortcut = nn.Sequential(*([] if same else _convolution(channels_in, channels_out, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        """[b, c, h, w] to [b, c', h / stride, w / stride]."""
        return torch.relu(self.shortcut(x) + self.residual(x))


def resnet18(num_classes: int) -> nn.Module:
    """ResNet-18.

    >>> sum(p.numel() for p in resnet18(1000).parameters())
    11689512
    """
    layers = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    for before, width in itertools.pairwise((64, 64, 128, 256, 512)):
        layers.append(ImageResidualBlock(before, width, stride=1 if before == width else 2))
        layers.append(ImageResidualBlock(width, width, stride=1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes))


def small_network(num_classes: int) -> nn.Module:
    """Three strided convolutions, for runs of minutes on a CPU."""
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((3, 32), (32, 64), (64, 128)):
        layers += [*_convolution(channels_in, channels_out, 3, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))
