"""Where bags come from: a folder of feature files, or a pack. Both give a slide's bag on request."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pams_mil.data.bags.bag import Bag
from pams_mil.data.bags.layouts import read_bag
from pams_mil.data.bags.locate import FeatureFolder
from pams_mil.data.manifest.manifest import Manifest, SlideRecord


class BagStore(Protocol):
    """Gives the bag of a slide; opens files on first use, so that it can be sent to worker processes."""

    def read(self, record: SlideRecord, *, verify: bool = True) -> Bag:
        """The slide's bag, checked against its checksums and for finite values unless told not to."""
        ...


class FolderStore:
    """Bags read from feature files of any known layout."""

    def __init__(self, folder: Path | str, *, manifest_folder: Path | None = None) -> None:
        self._folder = FeatureFolder(folder, manifest_folder=manifest_folder)

    def read(self, record: SlideRecord, *, verify: bool = True) -> Bag:
        """The slide's bag."""
        return read_bag(self._folder.find(record), verify=verify)


def open_store(features: Path | str, manifest: Manifest) -> BagStore:
    """A pack or a folder of feature files, whichever lies at the path."""
    from pams_mil.data.packs.pack_reader import Pack, is_pack  # noqa: PLC0415  folders need no pack

    if is_pack(features):
        return Pack(features)
    beside = manifest.source.parent if manifest.source is not None else None
    return FolderStore(features, manifest_folder=beside)
