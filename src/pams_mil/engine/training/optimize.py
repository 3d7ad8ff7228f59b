"""Optimizer, learning rate, clipping and averaged weights, as settings say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pams_mil.engine.config.run_config import TrainingConfig
from pams_mil.engine.learner import Learner
from pams_mil.engine.training.one_process import Processes
from pams_mil.errors import ConfigError

_KINDS: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "radam": torch.optim.RAdam}


def make_optimizer(learner: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """Adam and its kin over all parameters.

    DTFD's authors give each tier an Adam of its own. Adam treats every parameter by itself, so one Adam over
    both takes the very same steps.
    """
    options: dict[str, Any] = {"lr": training.lr, "betas": training.betas, "weight_decay": training.weight_decay}
    # One pass over all parameters; torch has no such RAdam.
    if training.optimizer != "radam":
        options["fused"] = True
    optimizer: torch.optim.Optimizer = _KINDS[training.optimizer](learner.parameters(), **options)
    return optimizer


def learning_rate(training: TrainingConfig, epoch: int) -> float:
    """The rate of an epoch counted from 0: a pure function, so a resumed run needs no scheduler state.

    >>> step = TrainingConfig(epochs=10, lr=1.0, schedule="step")
    >>> [learning_rate(step, epoch) for epoch in (0, 4, 5, 9)]
    [1.0, 1.0, 0.2, 0.2]
    """
    if epoch < training.warmup_epochs:
        return training.lr * (epoch + 1) / (training.warmup_epochs + 1)
    if training.schedule == "step":
        return training.lr * (training.step_factor if 2 * epoch >= training.epochs else 1.0)
    if training.schedule == "cosine":
        # 0 in the first epoch after the warmup; 1, a rate of 0, would be the epoch after the last.
        done = (epoch - training.warmup_epochs) / max(1, training.epochs - training.warmup_epochs)
        return training.lr * 0.5 * (1.0 + math.cos(math.pi * done))
    return training.lr


def set_learning_rate(optimizer: torch.optim.Optimizer, training: TrainingConfig, epoch: int) -> float:
    """Use the rate of this epoch from now on."""
    rate = learning_rate(training, epoch)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def clip_gradients(fabric: Processes, learner: Learner, optimizer: Any, training: TrainingConfig) -> None:
    """Scale gradients down to the largest norm allowed, over everything or part by part."""
    if not training.clip_norm:
        return
    if not training.clip_each_part:
        fabric.clip_gradients(learner, optimizer, max_norm=training.clip_norm, error_if_nonfinite=False)
        return
    for module in learner.parts():
        torch.nn.utils.clip_grad_norm_(module.parameters(), training.clip_norm)


def check_precision(training: TrainingConfig, precision: str) -> None:
    """Part-wise clipping would clip scaled gradients under float16; refuse it."""
    if training.clip_norm and training.clip_each_part and precision == "16-mixed":
        raise ConfigError(
            "training.clip_each_part does not go with compute.precision 16-mixed, whose gradients are scaled. "
            "Use bf16-mixed, or set training.clip_each_part=false."
        )


class AveragedWeights:
    """θ̄ beside a module that is trained: a running mean over the last epochs' steps, for validation and prediction.

    After optimizer step t = 0, 1, 2, ... of training, with E epochs to average over and S optimizer steps in an epoch:

        θ̄ ← β_t θ̄ + (1 − β_t) θ,     β_t = min(1 − 1/(E·S), (1 + t)/(10 + t)),     β_t at least 0

    The second part keeps the first random weights from lingering. Single epochs jump about the optimum, their mean lies
    closer to it, so that the last epoch can be taken and validation slides are free to calibrate on. Training itself
    goes on from θ. Parameters alone are averaged; no model here has running statistics.

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
