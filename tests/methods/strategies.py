"""Random hierarchies and logits for property tests."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from pams_mil.class_checks import Level
from pams_mil.hierarchy import ClassHierarchy


@st.composite
def trees(draw, *, max_levels=4, max_classes=30, ties=True):
    """A valid hierarchy of 1 to `max_levels` levels with 2 to `max_classes` finest classes, ties included."""
    depth = draw(st.integers(1, max_levels))
    counts = sorted(draw(st.lists(st.integers(1, max_classes), min_size=depth, max_size=depth)))
    counts[-1] = max(counts[-1], 2)
    levels: list[Level] = []
    for number, count in enumerate(counts):
        parents = _parents(draw, counts[number - 1] if number else 1, count)
        above = levels[-1].ranks if levels else (0,)
        ranks = [0]
        for index in range(1, count):
            same, other = parents[index], parents[index - 1]
            forced = number > 0 and above.count(above[same]) > 1 and above[same] == above[other]
            tied = forced or (ties and same == other and draw(st.booleans()))
            ranks.append(ranks[-1] + (not tied))
        names = tuple(f"l{number}c{index}" for index in range(count))
        levels.append(Level(names, tuple(parents), tuple(ranks)))
    return ClassHierarchy(name="random", levels=tuple(levels))


def _parents(draw, groups, count):
    """Every group at least one class, in order."""
    cuts = sorted(draw(st.permutations(range(1, count)))[: groups - 1]) if groups > 1 else []
    return np.searchsorted(np.asarray(cuts), np.arange(count), side="right").tolist()


@st.composite
def samples(draw, num_classes, *, scale=50.0, batch=4):
    """Logits [batch, c] up to ±scale in float64, some rows saturated or uniform, and targets."""
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    size = draw(st.sampled_from([0.1, 1.0, 10.0, scale]))
    logits = (2 * torch.rand(batch, num_classes, generator=generator, dtype=torch.float64) - 1) * size
    logits[0] = 0.0
    target = torch.randint(num_classes, (batch,), generator=generator)
    return logits, target
