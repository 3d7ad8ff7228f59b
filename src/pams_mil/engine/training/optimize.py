"""Optimizer, learning rate and clipping, as settings say."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

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


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


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
