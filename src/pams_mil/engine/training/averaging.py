"""Averaged weights: a running mean over the last epochs' steps, for validation and prediction.

After optimizer step t = 0, 1, 2, ... of training, with E epochs to average over and S optimizer steps in an epoch:

    θ̄ ← β_t θ̄ + (1 − β_t) θ,     β_t = min(1 − 1/(E·S), (1 + t)/(10 + t)),     β_t at least 0

The second part keeps the first random weights from lingering. Single epochs jump about the optimum, their mean lies
closer to it, so that the last epoch can be taken and validation slides are free to calibrate on. Training itself goes
on from θ. Parameters alone are averaged; no model here has running statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pams_mil.errors import require_number


class AveragedWeights:
    """θ̄ beside a module that is trained.

    Args:
        module: What is trained; θ̄ starts as its weights.
        epochs: E.

    >>> module = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(module.weight)
    >>> averaged = AveragedWeights(module, epochs=1.0)
    >>> _ = nn.init.ones_(module.weight)
    >>> averaged.update(steps_per_epoch=100)  # β = 1/10
    >>> with averaged.in_use():
    ...     round(module.weight.item(), 6)
    0.9
    >>> module.weight.item()
    1.0
    """

    def __init__(self, module: nn.Module, *, epochs: float) -> None:
        require_number("epochs", epochs, above=0)
        self._module, self._epochs = module, epochs
        self.steps = 0
        self.tensors: dict[str, Tensor] = {name: weight.detach().clone() for name, weight in module.named_parameters()}

    @torch.no_grad()
    def update(self, *, steps_per_epoch: int) -> None:
        """Count the optimizer step that was just taken."""
        keep = decay(self.steps, self._epochs, steps_per_epoch)
        weights = [weight.detach() for weight in self._module.parameters()]
        # lerp: θ̄ + (1 − β)(θ − θ̄), for all tensors in one call.
        torch._foreach_lerp_(list(self.tensors.values()), weights, 1.0 - keep)
        self.steps += 1

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The module has θ̄ inside and its own weights again afterwards, bit for bit."""
        # Copied and put back rather than swapped: the optimizer and wrappers of several devices hold these very
        # tensors.
        own = {name: weight.detach().clone() for name, weight in self._module.named_parameters()}
        self._put(self.tensors)
        try:
            yield
        finally:
            self._put(own)

    def restore(self, own: Mapping[str, Tensor], steps: int) -> None:
        """Take the module's present weights for θ̄ after this number of steps, and give it these to train on."""
        for name, weight in self._module.named_parameters():
            self.tensors[name].copy_(weight.detach())
        self.steps = steps
        self._put(own)

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        for name, weight in self._module.named_parameters():
            weight.copy_(tensors[name])


def decay(step: int, epochs: float, steps_per_epoch: int) -> float:
    """β_t.

    >>> decay(0, 2, 100), decay(10_000, 2, 100), decay(5, 0.5, 1)
    (0.1, 0.995, 0.0)
    """
    return max(0.0, min(1.0 - 1.0 / (epochs * steps_per_epoch), (1 + step) / (10 + step)))
