"""The learner before its first step: drawn from the seed, or from a file of published weights."""

from __future__ import annotations

from pathlib import Path

import torch

from pams_mil import seeding
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.learner import Learner
from pams_mil.engine.run.spec import RunSpec
from pams_mil.errors import ConfigError
from pams_mil.models.core.initial_weights import start_from


def refuse_missing_init(config: RunConfig) -> None:
    """Stop before anything is read or written when `model.init` names no file."""
    init = config.model.init
    if init is not None and not init.is_file():
        raise ConfigError(
            f"model.init: there is no file {init}. Expected published weights of the model {config.model.name!r}; "
            "docs/initial-weights.md says where to get them."
        )


def initial_learner(spec: RunSpec, config: RunConfig) -> tuple[Learner, str]:
    """The learner and a sentence about its initial weights; an empty one when they are all from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeding.derive(config.seed, "weights"))
        learner = spec.build(trusted=True)
    init: Path | None = config.model.init
    return learner, "" if init is None else f"{init.name}: {start_from(learner.model, init)}"
