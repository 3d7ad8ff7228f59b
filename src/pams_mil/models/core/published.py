"""Published checkpoints: their keys, mapped onto ours. Files are opened without running any code in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pams_mil.errors import CheckpointError, first_line, listing
from pams_mil.models.core.mil_model import MILModel

# Wrappers that training frameworks put around a state dict or in front of every key.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "model.", "net.")


def load_published(model: MILModel, source: str | Path | Mapping[str, Any]) -> MILModel:
    """Load a checkpoint of the original code into the model of the same architecture, and return the model.

    Args:
        model: from `create_model`, with the checkpoint's feature width and number of classes.
        source: a file (.pt, .pth, .ckpt, read with weights_only, or .safetensors) or its content.

    Raises:
        CheckpointError: unsafe or unreadable file, unknown or missing keys, another shape.
    """
    state = published_state(model, source)
    check_fit(state, model.state_dict(), model)
    model.load_state_dict(state)
    return model


def published_state(model: MILModel, source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a published checkpoint under the names that this model has for them, shapes not yet compared."""
    mapping = getattr(model, "published_keys", None)
    if mapping is None:
        raise CheckpointError(f"There is no published checkpoint layout for {type(model).__name__}.")
    published = flatten_state(read_weights(Path(source)) if isinstance(source, str | Path) else source)
    translated = translate_keys(published, mapping, model=type(model).__name__)
    convert = getattr(model, "merge_published", None)
    return dict(convert(translated) if convert is not None else translated)


def flatten_state(content: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Tensors by dotted key, without the wrappers of training frameworks; nested dicts become prefixes.

    >>> import torch
    >>> sorted(flatten_state({"classifier": {"module.fc.weight": torch.zeros(1)}}))
    ['classifier.fc.weight']
    """
    for wrapper in _WRAPPERS:
        if not prefix and isinstance(content.get(wrapper), Mapping):
            return flatten_state(content[wrapper])
    flat: dict[str, Tensor] = {}
    for key, value in content.items():
        name = str(key)
        for unwanted in _PREFIXES:
            name = name.removeprefix(unwanted)
        if isinstance(value, Mapping):
            flat.update(flatten_state(value, f"{prefix}{name}."))
        elif isinstance(value, Tensor):
            flat[prefix + name] = value
    return flat


def translate_keys(published: Mapping[str, Tensor], mapping: Mapping[str, str], *, model: str) -> dict[str, Tensor]:
    r"""Rename by full-match patterns; an empty replacement drops a key on purpose.

    A part that was trained on several GPUs has `.module.` behind its name (CLAM's `attention_net.module.0.weight`);
    a key that fits no pattern is tried without.

    >>> import torch
    >>> translate_keys({"_fc1.module.0.bias": torch.zeros(1)}, {r"_fc1\.0\.(\w+)": r"projection.\1"}, model="TransMIL")
    {'projection.bias': tensor([0.])}
    """
    translated: dict[str, Tensor] = {}
    unknown: list[str] = []
    for key, value in published.items():
        names = (key, key.replace(".module.", ".", 1))
        matches = [(pattern, name) for name in names for pattern in mapping if re.fullmatch(pattern, name)]
        if not matches:
            unknown.append(key)
            continue
        pattern, name = matches[0]
        if mapping[pattern]:
            translated[re.sub(pattern, mapping[pattern], name)] = value
    if unknown:
        raise CheckpointError(
            f"The checkpoint holds keys that the published {model} does not have: {listing(unknown)}. "
            "Is it a checkpoint of another model?"
        )
    return translated


def check_fit(state: Mapping[str, Tensor], own: Mapping[str, Tensor], model: MILModel) -> None:
    """Refuse weights that are not those of a model, `own`, in name and shape."""
    missing, extra = [key for key in own if key not in state], [key for key in state if key not in own]
    if missing or extra:
        raise CheckpointError(
            f"The checkpoint does not fit this {type(model).__name__}: missing {listing(missing) or 'nothing'}, not "
            f"expected {listing(extra) or 'nothing'}. Is it of the same architecture, with the same options?"
        )
    odd = next((key for key in own if own[key].shape != state[key].shape), None)
    if odd is not None:
        raise CheckpointError(
            f"{odd} has shape {list(state[odd].shape)} in the checkpoint but {list(own[odd].shape)} in the model. "
            f"{_advice(state, model)}"
        )


def _advice(state: Mapping[str, Tensor], model: MILModel) -> str:
    """Which settings would make the widths fit."""
    weight = state.get("projection.weight")
    settings = {}
    if weight is not None and weight.ndim == 2:
        out, width = weight.shape
        if width != model.in_features:
            return (
                f"It was trained on features of width {width} and these have {model.in_features}: use features of the "
                "encoder it was trained with."
            )
        settings["embedding_features"] = (out, model.embedding_features)
        for key in ("scores.outer.weight", "tier1_scores.outer.weight"):
            if key in state and key in model.state_dict():
                settings["attention_features"] = (state[key].shape[-1], model.state_dict()[key].shape[-1])
    wanted = [f"model.{name}={value}" for name, (value, now) in settings.items() if value != now]
    return f"Set {' and '.join(wanted)}." if wanted else "Use the options that the checkpoint was trained with."


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
