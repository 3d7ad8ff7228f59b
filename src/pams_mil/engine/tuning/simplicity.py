"""Which of two recipes is simpler: the one place that says so.

A recipe is simpler than another if, at the first line in which they differ, it has less:

    1. parts beside plain cross-entropy: another loss, alignment of levels, remixing, instance dropout (one each)
    2. the pooling's place in POOLINGS, from a mean to one question per boundary of urgency; other models come last
    3. the share of instances dropped
    4. how often bags are remixed
    5. how far the learning rate is from the shared one, as a ratio
    6. how far the number of epochs is from the shared one, as a ratio
    7. its name, so that no two are equally simple
"""

from __future__ import annotations

import math
from typing import Any

from pams_mil.engine.config.complete_config import make_method
from pams_mil.engine.config.run_config import RunConfig, short_name
from pams_mil.errors import counted
from pams_mil.methods.method import Method

POOLINGS = ("mean_pool", "max_pool", "abmil", "priority smooth_max", "clam_sb", "clam_mb", "priority attention")
"""From the fewest to the most learned weights of pooling."""
Simplicity = tuple[int, int, float, float, float, float, str]


def simplicity(name: str, config: RunConfig, shared: RunConfig) -> Simplicity:
    """The seven lines above, for sorting; `shared` are the settings of the reference.

    >>> from pams_mil.engine.config.run_config import configure
    >>> plain = configure("m.csv", classes="bracs", method="ce", lr=1e-3)
    >>> simplicity("plain", plain, plain)
    (0, 2, 0.0, 0.0, 0.0, 0.0, 'plain')
    >>> parts_of(configure("m.csv", classes="bracs", method="pams"))
    ('loss', 'alignment', 'remix')
    """
    method = make_method(config.method)
    remixed = float(config.pairing.get("probability", 0.5)) if _remixes(method) else 0.0
    pooling = f"{config.model.name} {config.model.options.get('pooling', '')}".strip()
    place = POOLINGS.index(pooling) if pooling in POOLINGS else len(POOLINGS)
    mine, theirs = config.training, shared.training
    rate, epochs = (
        round(abs(math.log(one / two)), 9) for one, two in ((mine.lr, theirs.lr), (mine.epochs, theirs.epochs))
    )
    return (len(parts_of(config)), place, mine.drop_instances or 0.0, remixed, rate, epochs, name)


def parts_of(config: RunConfig) -> tuple[str, ...]:
    """What a recipe has beside plain cross-entropy."""
    method = make_method(config.method)
    has = {
        "loss": config.method.name != "ce" and getattr(method, "alpha", 1.0) is not None,
        "alignment": bool(getattr(method, "lambda_align", 0)),
        "remix": _remixes(method),
        "dropout": bool(config.training.drop_instances),
    }
    return tuple(component for component, there in has.items() if there)


def in_words(config: RunConfig) -> str:
    """A recipe for people, e.g. 'clam_mb, cross-entropy, SFR on 50 % of the bags, 70 % of instances dropped'."""
    method: Any = make_method(config.method)
    pooling = config.model.options.get("pooling")
    name = short_name(config.model.name)
    words = [f"{name} ({pooling})" if pooling else name]
    losses = {"ce": "cross-entropy", "pams": "MSCE", "msce": "MSCE"}
    words.append(losses.get(config.method.name, short_name(config.method.name)))
    if getattr(method, "lambda_align", 0):
        words.append("levels aligned")
    if _remixes(method):
        relabels = ", urgent label" if config.pairing.get("rule") == "urgent_label" else ""
        share = 100 * config.pairing.get("probability", 0.5)
        words.append(f"{method.remix.upper()} on {share:g} % of the bags{relabels}")
    if config.training.drop_instances:
        words.append(f"{100 * config.training.drop_instances:g} % of the instances dropped")
    return ", ".join([*words, counted(config.training.epochs, "epoch"), f"lr {config.training.lr:g}"])


def _remixes(method: Method) -> bool:
    return method.remix not in (None, "none")
