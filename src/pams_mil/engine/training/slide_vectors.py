"""One vector per slide: what slide encoders give (TITAN, PRISM, CHIEF, GigaPath), and what cannot be done with it."""

from __future__ import annotations

from pams_mil.data.bags.dataset import BagDataset
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.errors import ConfigError

_LOOKED_AT = 5


def refuse_remix_of_vectors(config: RunConfig, remix: str, bags: BagDataset) -> None:
    """Stop before a remix is asked to exchange tiles between bags that are slide vectors."""
    first = min(_LOOKED_AT, len(bags))
    if config.model.name != "linear" and any(len(bags[index].features) > 1 for index in range(first)):
        return
    why = (
        "the model 'linear' reads one vector per slide"
        if config.model.name == "linear"
        else f"the first {first} training bags hold one row each, such as the vector of a slide encoder"
    )
    raise ConfigError(
        f"The remix {remix!r} exchanges tiles between slides, and {why}: there is nothing to exchange. "
        "Train without it: method.remix=null."
    )
