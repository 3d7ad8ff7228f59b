"""Cohorts on disk: bags of features in any common layout, manifests, splits, packs and the training dataset.

Names are loaded on first use, so that reading a manifest imports neither h5py nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.lazy import lazy_names

if TYPE_CHECKING:
    from pams_mil.data.bags.bag import Bag, BagInfo
    from pams_mil.data.bags.bag_file import write_bag
    from pams_mil.data.bags.dataset import BagDataset, BagSample
    from pams_mil.data.bags.layouts import read_bag
    from pams_mil.data.manifest.manifest import Manifest, SlideRecord
    from pams_mil.data.packs.pack_reader import Pack
    from pams_mil.data.packs.pack_writer import write_pack

_HOMES = {
    "Bag": "bags.bag",
    "BagInfo": "bags.bag",
    "BagDataset": "bags.dataset",
    "BagSample": "bags.dataset",
    "Manifest": "manifest.manifest",
    "Pack": "packs.pack_reader",
    "SlideRecord": "manifest.manifest",
    "read_bag": "bags.layouts",
    "write_bag": "bags.bag_file",
    "write_pack": "packs.pack_writer",
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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
