"""Where bags come from: a folder of feature files, or a pack. Both give a slide's bag on request.

Ids are looked up among the files that exist; they are never pasted into a path, so no id can point outside. A path of
the manifest must lie below the feature folder or the manifest's own.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any, Protocol

from pams_mil.data.bags.bag import Bag, Fingerprint
from pams_mil.data.bags.feature_origin import feature_origin
from pams_mil.data.bags.filenames import SLIDE_SUFFIXES, features_of
from pams_mil.data.bags.layouts import mark_file, read_bag
from pams_mil.data.bags.layouts.lazyslide import is_store, store_of
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.digests import file_signature, sampled_digest
from pams_mil.errors import BagError, MissingBagError, counted, listing


class BagStore(Protocol):
    """Gives the bag of a slide; opens files on first use, so that it can be sent to worker processes."""

    def read(self, record: SlideRecord, *, verify: bool = True) -> Bag:
        """The slide's bag, checked against its checksums and for finite values unless told not to."""
        ...

    def fingerprint(self, record: SlideRecord) -> Fingerprint:
        """What tells the slide's stored features from others, without reading all of them."""
        ...

    def identity(self, record: SlideRecord) -> Hashable:
        """What changes when the slide's features are written again; None where nothing says so."""
        ...


@lru_cache(maxsize=1 << 16)
def _fingerprint(path: Path, signature: tuple[int, ...]) -> Fingerprint:
    content = ""
    with suppress(BagError):  # a damaged file has no content; reading it says why
        content = mark_file(path)
    try:
        return Fingerprint(content, sampled_digest(path))
    except OSError as error:
        raise BagError(f"{path} cannot be read: {error.strerror or error}.") from error


def open_store(features: Path | str | BagStore | None, manifest: Manifest) -> BagStore:
    """The pack or folder of feature files at a path, that of the manifest when None; an opened store as it is."""
    from pams_mil.data.bags.pack_reader import Pack, is_pack  # noqa: PLC0415  folders need no pack

    if not isinstance(features, (str, Path, NoneType)):
        return features
    place, beside = features_of(manifest.source, features), manifest.source and manifest.source.parent
    return Pack(place) if is_pack(place) else FeatureFolder(place, manifest_folder=beside)


def fingerprints(store: BagStore, records: Iterable[SlideRecord], *, readable: bool = False) -> dict[str, Fingerprint]:
    """The fingerprint of every slide's features; all slides without features are refused at once, with their number.

    Where they must be `readable`, a file without content is read: a damaged one is refused before hours are spent.
    """
    prints: dict[str, Fingerprint] = {}
    missing: dict[str, MissingBagError] = {}
    for record in records:
        try:
            prints[record.slide_id] = store.fingerprint(record)
            if readable and not prints[record.slide_id].content:
                store.read(record)
        except MissingBagError as error:
            missing[record.slide_id] = error
    if missing:
        raise MissingBagError(
            f"{len(missing)} of {counted(len(missing) + len(prints), 'slide')} have no features: {listing(missing)}. "
            f"The first: {next(iter(missing.values()))} 'pams check' lists them all."
        )
    return prints


def first_origin(store: BagStore, records: Iterable[SlideRecord]) -> dict[str, Any]:
    """The origin of the first slide's features; every other bag is checked against it when it is read."""
    return feature_origin(store.read(next(iter(records))))


SUFFIXES = (".h5", ".hdf5", ".zarr", ".safetensors", ".npy", ".pt", ".pth")  # the most informative kind first
_SIDE_FOLDERS = {"coords", "patches", "labels", "inst_labels", "patch_labels", "masks", "stitches"}


class FeatureFolder:
    """The feature files of a cohort, of any known layout; files are listed once, on first use."""

    def __init__(self, folder: Path | str, *, manifest_folder: Path | None = None) -> None:
        self.folder = Path(folder)
        self.manifest_folder = manifest_folder
        if not self.folder.is_dir():
            raise BagError(f"There is no feature folder {self.folder}.")

    def read(self, record: SlideRecord, *, verify: bool = True) -> Bag:
        """The slide's bag."""
        return read_bag(self.find(record), verify=verify)

    def fingerprint(self, record: SlideRecord) -> Fingerprint:
        """Samples of the feature file."""
        path = self.find(record)
        # Nothing says at once whether one of the many files of a store was changed.
        return _fingerprint.__wrapped__(path, ()) if path.is_dir() else _fingerprint(path, file_signature(path))

    def identity(self, record: SlideRecord) -> Hashable:
        """The feature file with its times and size; None for a store of many files."""
        path = self.find(record)
        return None if path.is_dir() else (str(path), file_signature(path))

    def find(self, record: SlideRecord) -> Path:
        """The feature file of a slide; missing and ambiguous ones are errors that name candidates."""
        if record.path:
            return self._given(record)
        files = self._files.get(record.slide_id)
        if files is None and record.slide_id.lower().endswith(SLIDE_SUFFIXES):
            files = self._files.get(str(PurePosixPath(record.slide_id).with_suffix("")))
        if files is None:
            raise MissingBagError(
                f"Slide {record.slide_id!r} has no feature file in {self.folder}.{self._hint(record.slide_id)}"
            )
        # CLAM writes every slide as .h5 and as .pt: the same features, so the richer kind is taken without asking.
        best = min(SUFFIXES.index(path.suffix.lower()) for path in files)
        chosen = [path for path in files if SUFFIXES.index(path.suffix.lower()) == best]
        if len(chosen) > 1:
            raise BagError(
                f"Slide {record.slide_id!r} has several feature files: {listing(sorted(chosen))}. "
                "Point --features at one folder, or give the file in a 'path' column."
            )
        return chosen[0]

    def _given(self, record: SlideRecord) -> Path:
        if "\\" in record.path:
            raise BagError(
                f"Slide {record.slide_id!r} has the path {record.path!r}; write paths with forward slashes, "
                f"e.g. {record.path.replace(chr(92), '/')!r}."
            )
        bases = [self.folder] if self.manifest_folder is None else [self.folder, self.manifest_folder]
        path = next((path for base in bases if _is_there(path := base / record.path)), None)
        if path is None:
            raise MissingBagError(
                f"Slide {record.slide_id!r} has no feature file {record.path!r} below {listing(bases)}."
            )
        if not any(_lies_in(path, place) for place in bases):
            raise BagError(
                f"Slide {record.slide_id!r} has the path {record.path!r}, which leads outside of {listing(bases)}. "
                "Point --features at the folder that holds the file."
            )
        return path

    def _hint(self, slide_id: str) -> str:
        """A file of almost this name: other case, signs or suffixes, or more behind it, as in TCGA's names.

        Looked up, not compared with every file: a cohort may miss thousands.
        """
        key = _letters(slide_id)
        position = bisect_left(self._alike, (key, ""))
        if key and position < len(self._alike) and self._alike[position][0].startswith(key):
            return f" Did you mean {self._alike[position][1]!r}?"
        return ""

    @cached_property
    def _alike(self) -> list[tuple[str, str]]:
        """Every name by its letters and digits, sorted."""
        return sorted((_letters(name), name) for name in self._files)

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        """Every name a feature file may be called by: its stem, and its path below the folder without suffix."""
        files: dict[str, list[Path]] = {}
        for path in _walk(self.folder):
            relative = path.relative_to(self.folder).with_suffix("")
            # A set: in the folder itself both names are the same.
            for name in {path.name[: -len(path.suffix)], relative.as_posix()}:
                files.setdefault(name, []).append(path)
        return files


def _letters(name: str) -> str:
    """The letters and digits of a name without the suffix of a slide.

    >>> _letters("Slide-1.SVS") == _letters("slide_1")
    True
    """
    folded = name.casefold()
    for suffix in SLIDE_SUFFIXES:
        folded = folded.removesuffix(suffix)
    return "".join(sign for sign in folded if sign.isalnum())


def _is_there(path: Path) -> bool:
    """Whether a feature file or store lies at a path; what no file can be called, or nobody may look at, is not."""
    try:
        return path.is_file() or store_of(path) is not None
    except OSError:
        return False


def _lies_in(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder; links inside of the folder are its owner's and may lead anywhere."""
    as_written = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))  # noqa: PTH100  keeps links
    return as_written or path.resolve().is_relative_to(folder.resolve())


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        # In place, as os.walk asks; sorted, so that messages name files in the same order everywhere.
        folders[:] = sorted(name for name in folders if name not in _SIDE_FOLDERS and not name.startswith("."))
        zarrs = [name for name in folders if name.lower().endswith(".zarr")]
        yield from (Path(root, name) for name in zarrs if is_store(Path(root, name)))
        folders[:] = [name for name in folders if name not in zarrs]  # thousands of chunks, none of them a feature file
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(root, name)
