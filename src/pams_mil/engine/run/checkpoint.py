"""Checkpoints: one safetensors file each, tensors as tensors and everything else as JSON in its header.

One file, one rename: after a kill at any moment there is the old checkpoint or the new one, never parts of both.
Nothing in it can run code. A digest over all content is compared on reading, so a flipped bit is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pams_mil import atomic
from pams_mil.engine.learner import Learner, all_finite
from pams_mil.errors import CheckpointError, listing

FORMAT = "pams-checkpoint"
VERSION = 2
NOT_WEIGHTS = ("optimizer.", "trained.")
"""What only training needs: the optimizer's, and the trained weights where those to predict with are averaged."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name (`model.`, `objective.`, and `NOT_WEIGHTS`) and plain values.

    Attributes:
        tensors: Everything large, on the CPU.
        state: Everything else; JSON.
    """

    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of one part, without its prefix."""
        prefix = f"{name}."
        return {key[len(prefix) :]: value for key, value in self.tensors.items() if key.startswith(prefix)}


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically, read back and compared before it gets its name."""
    # Copies, because safetensors refuses tensors that share memory or are views with strides.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    state = json.dumps(dict(checkpoint.state), allow_nan=False)
    digest = content_digest(tensors, state)
    # One entry, because safetensors writes several in random order and equal runs should give equal bytes.
    header = {FORMAT: json.dumps({"version": VERSION, "digest": digest, "state": state})}
    with atomic.replacing(path, verify=_verify) as file:
        try:
            save_file(tensors, file, metadata=header)
        except SafetensorError as error:
            raise OSError(None, f"the disk refused the checkpoint ({error})") from error


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, refusing what is truncated, altered, unsafe, of another program or of another version."""
    start = b""
    try:
        with path.open("rb") as opened:
            start = opened.read(2)
        # A header that claims more than the file has, or more than 100 MB, is refused before memory is claimed for it.
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except OSError as error:
        raise CheckpointError(f"There is no readable checkpoint {path}: {error.strerror or error}.") from error
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, MemoryError) as error:
        # torch.save writes a zip archive, older versions of it and pickle itself start with pickle's protocol opcode.
        if start == b"PK" or start[:1] == b"\x80":
            raise CheckpointError(
                f"{path} is a pickle or torch archive, which can run code when it is loaded, and is refused. "
                "Expected a safetensors file written by 'pams train'."
            ) from error
        raise CheckpointError(
            f"{path} is not a readable checkpoint: {error}. It was cut short or altered; expected a safetensors file "
            "written by 'pams train'. Restore it from a copy, or train again."
        ) from error
    if FORMAT not in metadata:
        raise CheckpointError(
            f"{path} is a safetensors file, but not a checkpoint of PAMS: its header has no {FORMAT!r}. "
            "Weights of other tools are loaded with pams_mil.models.load_published."
        )
    header = _parsed(path, metadata[FORMAT])
    if (version := header.get("version")) != VERSION:
        raise CheckpointError(f"{path} has checkpoint version {version!r}; this PAMS reads {VERSION}. Train again.")
    # The digest is of the state's text as it stands in the file: JSON that is parsed and dumped again may differ.
    state = str(header.get("state", ""))
    if content_digest(tensors, state) != header.get("digest"):
        raise CheckpointError(
            f"{path} does not match its checksum: it was altered after it was written. "
            "Restore it from a copy, or train again."
        )
    return Checkpoint(tensors, _parsed(path, state))


def content_digest(tensors: Mapping[str, Tensor], state: str) -> str:
    """BLAKE2b over names, types, shapes, values and state."""
    hasher = hashlib.blake2b(state.encode(), digest_size=16)
    # By name: safetensors gives tensors back in an order of its own.
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        # As bytes: numpy has no bfloat16.
        hasher.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """What identifies the weights of a model, wherever they are stored; the optimizer's state does not count."""
    weights = {name: value.detach().cpu() for name, value in tensors.items() if not name.startswith(NOT_WEIGHTS)}
    return content_digest(weights, "")


def load_weights(learner: Learner, saved: Checkpoint) -> None:
    """Put a checkpoint's weights and objective state into a learner built from its spec."""
    stored = {name: tensor for name, tensor in saved.tensors.items() if not name.startswith(NOT_WEIGHTS)}
    refuse_misfit(learner.state_dict(), stored)
    bad = not_finite(stored)
    if bad:
        raise CheckpointError(
            f"The checkpoint holds weights that are not finite numbers, in {listing(bad, most=3)}, so it cannot tell "
            "one class from another. Restore it from a copy, or train again."
        )
    learner.load_state_dict(stored)


def refuse_misfit(expected: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names or shapes than a model has."""
    sides = [{name: list(one.shape) for name, one in side.items()} for side in (expected, stored)]
    odd = [name for name in sorted({**expected, **stored}) if sides[0].get(name) != sides[1].get(name)][:3]
    if odd:
        wanted, actual = ({name: side.get(name, "none") for name in odd} for side in sides)
        raise CheckpointError(
            f"The checkpoint does not fit the model that it describes: expected {wanted}, found {actual}."
        )


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors with a value that is NaN or infinite."""
    return [name for name, tensor in tensors.items() if tensor.is_floating_point() and not all_finite(tensor)]


def _parsed(path: Path, state: str) -> dict[str, Any]:
    try:
        content = json.loads(state)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} holds a state that is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a state that is a {type(content).__name__}; expected an object.")
    return content


def _verify(file: Path) -> None:
    """Loading compares the digest in the header, which was made of what is in memory."""
    try:
        load(file)
    except CheckpointError as error:
        raise OSError(None, "what was read back differs from what was written") from error
