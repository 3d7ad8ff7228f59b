"""All data randomness is a pure function of (seed, keys): there is no generator state to lose on a resume.

The keys, for example an epoch and a slide id, are hashed with the seed by BLAKE2b. So two slides, two
epochs or two purposes never share a stream, and the order or number of workers changes nothing.
"""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Key = int | str


def derive(seed: int, *keys: Key) -> int:
    """A 63-bit seed for (seed, keys); type and position of every key count.

    >>> derive(0, 1, "slide") == derive(0, 1, "slide")
    True
    >>> len({derive(0, 1), derive(0, "1"), derive(1, 0), derive(0, 1, 0)})
    4
    """
    digest = hashlib.blake2b(digest_size=8)
    for key in (seed, *keys):
        kind = b"s" if isinstance(key, str) else b"i"
        text = (key if isinstance(key, str) else str(operator.index(key))).encode("utf-8", "surrogatepass")
        # With its length in front of each key, ("ab", "c") and ("a", "bc") are different bytes.
        digest.update(kind + len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> 1


def generator(seed: int, *keys: Key) -> torch.Generator:
    """A fresh torch CPU generator for (seed, keys)."""
    import torch  # noqa: PLC0415  torch is slow to import and many commands never need it

    return torch.Generator().manual_seed(derive(seed, *keys))


def numpy_generator(seed: int, *keys: Key) -> np.random.Generator:
    """A fresh numpy generator for (seed, keys).

    >>> int(numpy_generator(0, "a").integers(100)) == int(numpy_generator(0, "a").integers(100))
    True
    """
    return np.random.default_rng(derive(seed, *keys))
