"""Writing packs: in parallel, resumable, verified, and never larger than the feature files.

The plan deals the slides, in manifest order, into shards of about equal size. Every shard is written
through `atomic` and read back before it gets its name; a rerun keeps the shards whose bags, sources and
checksums are as planned and writes the others. The index comes last.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from pams_mil import atomic
from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag, BagInfo, all_finite
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.bags.layouts import read_bag
from pams_mil.data.bags.layouts.lazyslide import store_of
from pams_mil.data.bags.pack_reader import INDEX, BagNote, Pack, Shard, checksum_of, encode_index, encode_notes, is_pack
from pams_mil.data.bags.store import FeatureFolder
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.errors import BagError, ManifestError, OutputError, ParameterError, counted, listing

SHARD_BYTES = 1 << 26
SLACK_BYTES = 4096  # one disk block for the index
_SHARD = re.compile(r"shard-(\d{5,})\.safetensors")
_DTYPES = {"keep": None, "float16": np.dtype("<f2"), "float32": np.dtype("<f4")}


@dataclass(frozen=True)
class PackSource:
    """A slide to pack: its id, its feature file, and the file's size and fingerprint."""

    slide_id: str
    path: Path
    size: int
    fingerprint: int


@dataclass(frozen=True)
class Packed:
    """What packing did: slides, bytes before and after, and the shards kept from an earlier run."""

    slides: int
    source_bytes: int
    pack_bytes: int
    kept_shards: int
    shards: int


def write_pack(
    out: Path | str,
    manifest: Manifest,
    features: Path | str,
    *,
    dtype: str = "keep",
    workers: int = 4,
    allow_larger: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Packed:
    """Pack the bags of a manifest.

    Args:
        out: The pack's folder; an unfinished pack there is completed.
        manifest: The slides; each needs a feature file.
        features: The folder of feature files.
        dtype: "keep" stores bits as they are; "float16" or "float32" converts.
        workers: Shards written at the same time.
        allow_larger: Do not refuse a pack that is larger than its (compressed) feature files.
        progress: Called with the bytes of source files done and their total.
    """
    if dtype not in _DTYPES:
        raise ParameterError(f"dtype must be one of {listing(_DTYPES)}, found {dtype!r}.")
    out = Path(out)
    beside = manifest.source.parent if manifest.source is not None else None
    folder = FeatureFolder(features, manifest_folder=beside)
    sources = _sources(manifest, folder, dtype)
    plan = _plan(sources)
    _refuse_loss(out, {source.slide_id for source in sources}, folder)
    _prepare(out, len(plan))
    write = partial(_shard, dtype=_DTYPES[dtype], allow_larger=allow_larger)
    total = sum(source.size for source in sources)
    kept_shards = done = 0
    with ThreadPoolExecutor(max(1, workers)) as pool:
        jobs = {pool.submit(write, out / name, shard): shard for name, shard in plan.items()}
        try:
            # As they complete: an error ends the work at once instead of after the shards before it.
            for job in as_completed(jobs):
                kept_shards += job.result()
                done += sum(source.size for source in jobs[job])
                if progress is not None:
                    progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    shards = [Shard(out / name) for name in plan]
    atomic.write_json(out / INDEX, encode_index(dtype, shards))
    len(Pack(out))  # reads all headers back and refuses what does not fit
    size = sum(shard.size for shard in shards) + (out / INDEX).stat().st_size
    return Packed(len(sources), total, size, kept_shards, len(plan))


def _sources(manifest: Manifest, folder: FeatureFolder, dtype: str) -> list[PackSource]:
    sources, failures, seen = [], [], set()
    for record in manifest:
        if record.slide_id in seen:
            raise ManifestError(f"{manifest.where} has the slide {record.slide_id!r} twice.")
        seen.add(record.slide_id)
        try:
            path = folder.find(record)
        except BagError as error:
            failures.append(str(error))
            continue
        store = store_of(path)  # whose folder tells neither size nor time of its files
        stats = [file.stat() for file in store.rglob("*") if file.is_file()] if store is not None else [path.stat()]
        size, changed = sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)
        stamp = f"{dtype}:{path.absolute()}:{size}:{changed}".encode("utf-8", "surrogatepass")
        sources.append(PackSource(record.slide_id, path, size, zlib.crc32(stamp)))
    if failures:
        shown = "".join(f"\n- {failure}" for failure in failures[:8])
        raise BagError(f"{len(failures)} of {len(manifest)} slides cannot be packed:{shown}\nNothing was written.")
    if not sources:
        raise ManifestError(f"{manifest.where} has no slides to pack.")
    return sources


def _plan(sources: Sequence[PackSource]) -> dict[str, list[PackSource]]:
    """Shard name to slides, in order; each shard about `SHARD_BYTES` of feature files."""
    parts: list[list[PackSource]] = [[]]
    size = 0
    for source in sources:
        # A bag larger than a shard has one of its own; no bag is divided.
        if parts[-1] and size + source.size > SHARD_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(source)
        size += source.size
    return {f"shard-{number:05d}.safetensors": shard for number, shard in enumerate(parts)}


def _refuse_loss(out: Path, slides: set[str], folder: FeatureFolder) -> None:
    """Refuse to replace a finished pack that holds slides which are neither packed now nor in the feature folder."""
    lost: list[str] = []
    with suppress(BagError):  # a damaged pack is made whole
        for slide in set(Pack(out)) - slides if is_pack(out) else ():
            try:
                folder.find(SlideRecord(slide, slide, ""))
            except BagError:
                lost.append(slide)
    if lost:
        raise OutputError(
            f"{out} is a finished pack with {counted(len(lost), 'slide')} that are neither in the table nor in "
            f"{folder.folder} and would be lost: {listing(sorted(lost), most=3)}. Choose another folder with --out."
        )


def _prepare(out: Path, shards: int) -> None:
    """Withdraw the index of an earlier pack, so that a folder being rewritten never looks finished."""
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file; a pack is a folder. Choose another name.")
    if out.is_dir():
        names = [path.name for path in out.iterdir()]
        if foreign := [
            name for name in names if not (name == INDEX or _SHARD.fullmatch(name) or name.endswith(".part"))
        ]:
            raise OutputError(f"{out} holds other files ({listing(foreign)}); give the pack a folder of its own.")
        # First of all: from here until the index is written again this is not a pack, however the work ends.
        (out / INDEX).unlink(missing_ok=True)
        for name in names:
            if (number := _SHARD.fullmatch(name)) and int(number[1]) >= shards:
                (out / name).unlink()
    out.mkdir(parents=True, exist_ok=True)


def _shard(path: Path, sources: Sequence[PackSource], *, dtype: np.dtype[Any] | None, allow_larger: bool) -> bool:
    """Write one shard, unless it is there already; says whether it was kept."""
    if path.exists() and _is_as_planned(path, sources):
        return True
    names = FileNames(source.slide_id for source in sources)
    tensors: dict[str, AnyArray] = {}
    notes: list[BagNote] = []
    infos: dict[BagInfo, int] = {}
    for source in sources:
        # Mapped: the file's own pages serve as the bag's memory until the shard is written.
        bag = _converted(read_bag(source.path, mapped=True), source, dtype)
        name, features = names[source.slide_id], _little(bag.features)
        arrays, unit = {f"{name}.features": features}, next(iter(bag.coords()), "")
        if unit:
            arrays[f"{name}.coords"] = _little(bag.coords()[unit])
        info, checksum = infos.setdefault(bag.info, len(infos)), checksum_of(arrays.values())
        stated = (source.slide_id, name, features.shape, features.dtype.str)
        notes.append(BagNote(*stated, unit, info, checksum, source.fingerprint))
        tensors.update(arrays)
    with atomic.replacing(path, verify=partial(_compare, notes=notes)) as temporary:
        temporary.write_bytes(save(tensors, encode_notes(notes, list(infos))))
        size, before = temporary.stat().st_size, sum(source.size for source in sources)
        if size > before + SLACK_BYTES and not allow_larger:
            raise OutputError(
                f"Packed, {len(sources)} bags from {sources[0].slide_id!r} on would take {size:,} bytes instead of "
                f"{before:,}; the feature files are probably compressed. Halve them with --dtype float16, or accept a "
                "larger pack with --allow-larger."
            )
    return False


def _little(values: AnyArray) -> AnyArray:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))


def _converted(bag: Bag, source: PackSource, dtype: np.dtype[Any] | None) -> Bag:
    if dtype is None or bag.features.dtype == dtype:
        return bag
    # An overflow becomes infinity, which is refused below with the file's name.
    with np.errstate(over="ignore"):
        features = bag.features.astype(dtype)
    if not all_finite(features):
        raise BagError(f"{source.path} has values beyond the range of {dtype.name}; pack it with --dtype keep.")
    return replace(bag, features=features)


def _compare(temporary: Path, notes: Sequence[BagNote]) -> None:
    """Read a shard back and compare every bag with what was meant."""
    shard = Shard(temporary)
    for note in notes:
        if shard.notes.get(note.slide_id) != note or not shard.is_sound(note.slide_id):
            raise OutputError(f"{temporary} read back differently from what was written for slide {note.slide_id!r}.")


def _is_as_planned(path: Path, sources: Sequence[PackSource]) -> bool:
    """Whether a shard of an earlier run holds these slides, packed from the same files, undamaged."""
    try:
        shard = Shard(path)
        # In the planned order and from the same files; a changed dtype changes the fingerprint.
        packed = [(note.slide_id, note.source) for note in shard.notes.values()]
        planned = [(source.slide_id, source.fingerprint) for source in sources]
        return packed == planned and all(map(shard.is_sound, shard.notes))
    except BagError:
        return False


def _holds(file: Path, bag: Bag) -> bool:
    """Whether a feature file has the features of a bag, as an unpacking that was stopped leaves them."""
    try:
        return read_bag(file).feature_digest == bag.feature_digest
    except BagError:
        return False


def unpack(pack: Path | str, out: Path | str, *, progress: Callable[[int, int], None] | None = None) -> int:
    """Write every bag of a pack as a feature file in CLAM's layout; returns how many.

    `paths.csv`, written last, says which file holds which slide, for ids that cannot be file names. Damaged bags are
    refused by name once all others are written; then there is no `paths.csv`.
    """
    opened, out = Pack(pack), Path(out)
    names = FileNames(opened)
    damaged: list[str] = []
    for number, slide_id in enumerate(opened, 1):
        try:
            bag = opened.read(slide_id)
        except BagError as error:
            damaged.append(str(error))
            continue
        file = out / "h5_files" / f"{names[slide_id]}.h5"
        if file.exists() and not _holds(file, bag):
            raise OutputError(
                f"{file} holds other features of the slide {slide_id!r}. Choose another folder with --out."
            )
        write_bag(file, bag)
        if progress is not None:
            progress(number, len(opened))
    if damaged:
        shown = "".join(f"\n- {message}" for message in damaged[:8])
        raise BagError(f"{len(damaged)} of {len(opened)} slides could not be unpacked, the others were:{shown}")
    rows = ([slide_id, f"h5_files/{names[slide_id]}.h5"] for slide_id in opened)
    atomic.write_csv(out / "paths.csv", ["slide_id", "path"], rows)
    return len(opened)
