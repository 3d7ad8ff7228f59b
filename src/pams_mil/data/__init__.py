"""Cohorts on disk: bags of features in any common layout, manifests, splits, packs and the training dataset.

Names are loaded on first use, so that reading a manifest imports neither h5py nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pams_mil.data.bag import Bag, BagInfo
    from pams_mil.data.bagfile import write_bag
    from pams_mil.data.dataset import BagDataset, BagSample
    from pams_mil.data.layouts import read_bag
    from pams_mil.data.manifest import Manifest, SlideRecord
    from pams_mil.data.pack import Pack
    from pams_mil.data.pack_writer import write_pack

_HOMES = {
    "Bag": "bag",
    "BagInfo": "bag",
    "BagDataset": "dataset",
    "BagSample": "dataset",
    "Manifest": "manifest",
    "Pack": "pack",
    "SlideRecord": "manifest",
    "read_bag": "layouts",
    "write_bag": "bagfile",
    "write_pack": "pack_writer",
}

__all__ = [
    "Bag",
    "BagDataset",
    "BagInfo",
    "BagSample",
    "Manifest",
    "Pack",
    "SlideRecord",
    "read_bag",
    "write_bag",
    "write_pack",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
