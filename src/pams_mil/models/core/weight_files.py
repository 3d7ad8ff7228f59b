"""Weights in files of other tools, safetensors or torch's own, read without ever running code in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pams_mil.errors import CheckpointError, first_line


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """Tensors by name, and nothing else."""
    content = read_weights(path)
    if not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError(f"{path} does not hold a plain mapping of names to tensors.")
    return content


def read_weights(path: Path) -> Mapping[str, Any]:
    """What a file maps names to: tensors, or further mappings, as training frameworks nest them."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415  only for this kind of file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, zipfile and safetensors each have their own kinds
        raise CheckpointError(
            f"Could not read the weights in {str(path)!r} safely: {first_line(error)}. Expected a .safetensors file or "
            "a torch file with tensors only; one that holds other objects could run code and is refused."
        ) from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"Expected weights by name in {str(path)!r}, found {type(content).__name__}.")
    return content
