"""An optimizer's state as named tensors and JSON, so that it can be stored without pickle."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pams_mil.errors import CheckpointError


def flatten(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by `<parameter>.<name>`, and the rest of `optimizer.state_dict()` as plain values.

    >>> import torch
    >>> tensors, rest = flatten({"state": {0: {"step": torch.tensor(1.0), "n": 2}}, "param_groups": [{"lr": 0.1}]})
    >>> tensors, rest
    ({'0.step': tensor(1.)}, {'values': {'0.n': 2}, 'param_groups': [{'lr': 0.1}]})
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for parameter, entries in state["state"].items():
        for name, value in entries.items():
            kind = tensors if isinstance(value, Tensor) else values
            kind[f"{parameter}.{name}"] = value
    return tensors, {"values": values, "param_groups": state["param_groups"]}


def unflatten(tensors: dict[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    """What `flatten` was given, for `optimizer.load_state_dict`."""
    state: dict[int, dict[str, Any]] = {}
    try:
        for key, value in [*tensors.items(), *rest["values"].items()]:
            parameter, _, name = key.partition(".")
            state.setdefault(int(parameter), {})[name] = value
        groups = [
            {**group, "betas": tuple(group["betas"])} if "betas" in group else group for group in rest["param_groups"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"The checkpoint holds an optimizer state that cannot be read: {error!r}.") from error
    return {"state": state, "param_groups": groups}
