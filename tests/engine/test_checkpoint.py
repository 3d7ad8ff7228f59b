"""Checkpoints are old-complete or new-complete, and nothing in them ever runs."""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.forked import in_child

from pams_mil.engine import configure
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.checkpoint import Checkpoint
from pams_mil.engine.run.spec import RunSpec
from pams_mil.engine.run.trained_slides import TrainedSlides
from pams_mil.errors import CheckpointError, OutputError
from pams_mil.hierarchy import ClassHierarchy


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "last.safetensors"
    tensors = {"model.a": torch.randn(3, 4), "model.n": torch.tensor(7), "optimizer.0.step": torch.tensor(2.0)}
    checkpoint.save(path, Checkpoint(tensors, {"progress": {"epoch": 1, "sums": {"ce": 0.1}}, "ä": [1, None]}))
    return path, tensors


def test_round_trip_is_exact_and_bytes_are_reproducible(saved, tmp_path):
    path, tensors = saved
    read = checkpoint.load(path)
    assert read.state == {"progress": {"epoch": 1, "sums": {"ce": 0.1}}, "ä": [1, None]}
    assert all(torch.equal(read.tensors[name], tensors[name]) for name in tensors)
    assert set(read.part("model")) == {"a", "n"}
    checkpoint.save(tmp_path / "again.safetensors", read)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


@given(st.data())
def test_mutated_bytes_are_refused(saved, tmp_path_factory, data):
    path, _ = saved
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    broken = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    broken.write_bytes(content)
    with pytest.raises(CheckpointError):
        checkpoint.load(broken)


@given(st.data())
def test_truncated_and_random_files_are_refused(saved, tmp_path_factory, data):
    path, _ = saved
    whole = path.read_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    content = data.draw(st.sampled_from([cut, whole + b"x"]) | st.binary(max_size=200))
    broken = tmp_path_factory.getbasetemp() / "broken.safetensors"
    broken.write_bytes(content)
    with pytest.raises(CheckpointError):
        checkpoint.load(broken)


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_pickles_are_refused_and_not_run(tmp_path):
    marker = str(tmp_path / "executed")
    (tmp_path / "plain.safetensors").write_bytes(pickle.dumps(Payload(marker)))
    torch.save({"model": Payload(marker)}, tmp_path / "archive.safetensors")
    np.save(tmp_path / "array.npy", np.array([Payload(marker)], dtype=object), allow_pickle=True)
    for name in ("plain.safetensors", "archive.safetensors", "array.npy"):
        with pytest.raises(CheckpointError):
            checkpoint.load(tmp_path / name)
    with pytest.raises(CheckpointError, match="pickle or torch archive"):
        checkpoint.load(tmp_path / "plain.safetensors")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("length", [2**63, 2**40, 10**9])
def test_huge_header_allocates_nothing(tmp_path, length):
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{" + b" " * 64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="cut short"):
        checkpoint.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_huge_shape_in_the_header_is_refused(tmp_path):
    header = json.dumps({"model.a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    path = tmp_path / "shape.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 16)
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


def test_files_of_others_and_of_the_future_are_named(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="not a checkpoint of PAMS"):
        checkpoint.load(tmp_path / "other.safetensors")
    header = json.dumps({"version": 99, "digest": "", "state": "{}"})
    save_file({"w": torch.zeros(2)}, tmp_path / "future.safetensors", metadata={checkpoint.FORMAT: header})
    with pytest.raises(CheckpointError, match="version 99"):
        checkpoint.load(tmp_path / "future.safetensors")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        checkpoint.load(tmp_path / "none.safetensors")


def test_full_disk_keeps_the_old_checkpoint(saved, tmp_path):
    path = tmp_path / "last.safetensors"
    old = Checkpoint({"model.a": torch.zeros(8)}, {"epoch": 1})
    checkpoint.save(path, old)
    before = path.read_bytes()

    def full_disk():
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        with pytest.raises(OutputError, match=r"Could not write .*last.safetensors"):
            checkpoint.save(path, Checkpoint({"model.a": torch.zeros(100_000)}, {"epoch": 2}))

    assert in_child(full_disk) == 0
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.safetensors"]


def test_a_checkpoint_cannot_name_code_to_run(tmp_path):
    config = complete(configure("table.csv", classes="bracs"), tree := ClassHierarchy.flat(["a", "b"]))
    content = RunSpec.of(config, tree, TrainedSlides(()), {"width": 4}).to_json()
    content["settings"]["method"] = {"name": "os:mkdir", "path": str(tmp_path / "executed")}
    with pytest.raises(CheckpointError, match="names code outside of PAMS"):
        RunSpec.from_json(content).build()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [None, [], {}, {"method": 1}, {"a": 1}])
def test_odd_specs_are_refused(content):
    with pytest.raises(CheckpointError):
        RunSpec.from_json(content).build()


def test_a_disk_that_gives_back_other_bytes_is_said_and_keeps_the_old_checkpoint(saved, tmp_path, monkeypatch):
    path = tmp_path / "last.safetensors"
    path.write_bytes(b"old")
    original = checkpoint.save_file

    def worn(tensors, part, metadata):
        original(tensors, part, metadata=metadata)
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(content)

    monkeypatch.setattr(checkpoint, "save_file", worn)
    with pytest.raises(OutputError, match=r"Could not write .*last.safetensors: what was read back differs"):
        checkpoint.save(path, Checkpoint({"a": torch.ones(3)}))
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["last.safetensors"]
