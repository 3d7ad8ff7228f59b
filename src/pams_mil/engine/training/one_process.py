"""Where the loop runs: one process on the CPU by itself, anything else through Fabric.

Importing Fabric takes a third of the time that a process needs to start (torchmetrics, matplotlib and scipy come with
it), and its wrappers a part of every step of a small bag. One process on one CPU has no use for either.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch

from pams_mil.engine.config.run_config import ComputeConfig
from pams_mil.errors import ConfigError, first_line

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Processes: TypeAlias = Union["Fabric", "OneProcess"]


class OneProcess:
    """One process on the CPU in float32: what the loop asks of Fabric, and nothing to wrap or to move."""

    device = torch.device("cpu")
    global_rank = 0
    world_size = 1
    is_global_zero = True

    def launch(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function here."""
        return function(self, *arguments)

    def setup(self, module: Any, optimizer: Any) -> tuple[Any, Any]:
        """Both as they are."""
        return module, optimizer

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of the loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def no_backward_sync(self, module: Any, enabled: bool = True) -> AbstractContextManager[None]:
        """Nobody to wait for."""
        return nullcontext()

    def autocast(self) -> AbstractContextManager[None]:
        """Float32 stays float32."""
        return nullcontext()

    def clip_gradients(self, module: Any, optimizer: Any, *, max_norm: float, error_if_nonfinite: bool = True) -> None:
        """Scale the gradients down to this norm."""
        torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def all_reduce(self, value: torch.Tensor, reduce_op: str = "sum") -> torch.Tensor:
        """The sum over one process."""
        return value

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value


def start_processes(compute: ComputeConfig) -> Processes:
    """What the settings ask for; `ConfigError` where this machine cannot."""
    if is_one_cpu(compute):
        return OneProcess()
    from lightning_fabric import Fabric  # noqa: PLC0415  two seconds, see above

    try:
        return Fabric(
            accelerator=compute.accelerator,
            devices=compute.devices,
            num_nodes=compute.nodes,
            strategy=compute.strategy,
            precision=compute.precision,  # type: ignore[arg-type]
        )
    except Exception as error:  # Fabric has kinds of its own for every setting it cannot serve here
        settings = ", ".join(
            f"{name}={getattr(compute, name)}" for name in ("accelerator", "devices", "strategy", "precision")
        )
        raise ConfigError(
            f"This machine cannot train with compute settings {settings}: {first_line(error).rstrip('.!')}. "
            "Leave compute.accelerator at auto, or choose cpu."
        ) from error


def is_one_cpu(compute: ComputeConfig) -> bool:
    """Whether the settings mean one process on the CPU in float32, and no launcher says otherwise.

    >>> is_one_cpu(ComputeConfig(accelerator="cpu")), is_one_cpu(ComputeConfig(accelerator="cpu", devices=2))
    (True, False)
    """
    plain = (compute.devices, compute.nodes, compute.strategy, compute.precision) == (1, 1, "auto", "32-true")
    # Fabric's and torch's launchers start this program several times and say so in the environment.
    launched = any(name.startswith("LT_") for name in os.environ) or os.environ.get("WORLD_SIZE", "1") != "1"
    return plain and not launched and (compute.accelerator == "cpu" or (compute.accelerator == "auto" and _only_cpu()))


def _only_cpu() -> bool:
    """Whether `auto` means the CPU here."""
    return not (torch.cuda.is_available() or torch.backends.mps.is_available() or find_spec("torch_xla"))
