"""CIFAR-10 from a local copy, in the paper's order; a forged batch runs nothing."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pams_mil.cohorts.cifar10_bags import Cifar10, read_batch
from pams_mil.errors import BagError, ParameterError
from pams_mil.hierarchy import ClassHierarchy

TORCHVISION = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _text(content: bytes) -> bytes:
    return b"U" + bytes([len(content)]) + content


def write_batch(path: Path, pixels: np.ndarray, labels: list[int]) -> None:
    """A batch byte by byte as Python 2 wrote the originals: protocol 2, byte strings, an array of uint8."""
    raw = pixels.astype(np.uint8).tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05" + _text(b"b") + b"\x87Rq\x06"
        b"(K\x01" + b"J" + struct.pack("<i", len(labels)) + b"M\x00\x0c\x86"
        b"cnumpy\ndtype\nq\x07" + _text(b"u1") + b"K\x00K\x01\x87Rq\x08(K\x03" + _text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )  # fmt: skip
    listed = b"]q\x02(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    path.write_bytes(
        b"\x80\x02}q\x01("
        + _text(b"batch_label")
        + _text(b"a batch")
        + _text(b"labels")
        + listed
        + _text(b"data")
        + array
        + b"u."
    )


@pytest.fixture
def batches(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        labels = [(number + row) % 10 for row in range(20)]
        write_batch(tmp_path / name, generator.integers(0, 256, (20, 3072)), labels)
    return tmp_path


def test_our_batches_are_what_the_usual_loader_reads(batches: Path) -> None:
    content = pickle.loads((batches / "data_batch_2").read_bytes(), encoding="bytes")
    pixels, labels = read_batch(batches / "data_batch_2")
    np.testing.assert_array_equal(pixels, content[b"data"])
    assert labels == content[b"labels"]


def test_labels_are_in_the_order_of_the_paper(batches: Path) -> None:
    slides = list(Cifar10(batches, train=60, val=10, test=20).slides())
    assert len(slides) == len(Cifar10(batches, train=60, val=10, test=20)) == 90
    hierarchy = ClassHierarchy.load("cifar10")
    pixels, labels = read_batch(batches / "test_batch")
    by_id = {slide.record.slide_id: slide for slide in slides}
    for row, label in enumerate(labels):
        slide = by_id[f"test_{row:05d}"]
        assert slide.record.label == TORCHVISION[label]
        assert hierarchy.index(slide.record.label) == [7, 1, 0, 2, 3, 4, 5, 6, 8, 9][label]
        image = pixels[row].reshape(3, 32, 32).transpose(1, 2, 0) / 255
        assert slide.bag.features.shape == (49, 192)
        np.testing.assert_allclose(slide.bag.features[0], image[:8, :8].ravel(), rtol=1e-6)
        np.testing.assert_allclose(slide.bag.features[8], image[4:12, 4:12].ravel(), rtol=1e-6)
        assert slide.bag.coords_px0[8].tolist() == [4, 4]


def test_train_and_val_share_no_image(batches: Path) -> None:
    ids = [slide.record.slide_id for slide in Cifar10(batches).slides()]
    assert len(ids) == len(set(ids)) == 120


def test_class_folders(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("automobile", "bird"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(6):
                Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    slides = list(Cifar10(tmp_path).slides())
    assert len(slides) == 24
    assert {slide.record.label for slide in slides} == {"car", "bird"}


def test_a_forged_batch_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Payload:
        def __reduce__(self):
            return (Path.touch, (marker,))

    (tmp_path / "b").write_bytes(pickle.dumps({"data": Payload(), "labels": [1]}, protocol=2))
    with pytest.raises(BagError, match="python batches"):
        read_batch(tmp_path / "b")
    assert not marker.exists()


def test_torn_and_foreign_sources_are_refused(batches: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = (batches / "test_batch").read_bytes()
    for cut in (0, 10, 100, len(content) - 2):
        (batches / "truncated").write_bytes(content[:cut])
        with pytest.raises(BagError, match="truncated"):
            read_batch(batches / "truncated")
    with pytest.raises(ParameterError, match="not a copy of CIFAR-10"):
        len(Cifar10(tmp_path_factory.mktemp("empty")))
    with pytest.raises(ParameterError, match="There is no folder"):
        Cifar10(batches / "nowhere")
