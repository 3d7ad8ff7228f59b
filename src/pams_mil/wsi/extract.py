"""Slides in, bags out: one slide after the other, the next one prepared while this one is encoded.

A bag under its final name is complete. So a run can be killed at any time and started again, by any number of
processes on one folder: each slide is done once, by whoever holds its claim, and only missing ones are done at all.
A claim is a lock that the operating system gives back when its holder dies, so a kill leaves nothing to clean up.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pams_mil import atomic
from pams_mil.data.bags.bag import BagInfo
from pams_mil.data.bags.feature_origin import STATED, agrees
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.tables import read_table
from pams_mil.errors import BagError, ConfigError, SlideError, TableError, counted
from pams_mil.wsi.encoders.encoder import Encoder, EncoderOptions, create_encoder
from pams_mil.wsi.readers.dicom_series import dicom_slides
from pams_mil.wsi.readers.slide_kind import is_ome_zarr
from pams_mil.wsi.slide_sources import READABLE_SUFFIXES, SlideSource, file_fingerprint
from pams_mil.wsi.slide_to_bag import PreparedSlide, finish, prepare, read_record
from pams_mil.wsi.tile_grid import TileSettings, WorkSettings, hold_to

BAG_FOLDER = "h5_files"
_POLL_S = 0.2


OnProgress = Callable[[str, float], None]
"""Called with what is being done and the fraction of all slides done."""


@dataclass
class Outcome:
    """Ids of slides extracted in this run, extracted before, and problems by id (path, reason, message)."""

    extracted: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    failed: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    tiles: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every slide has its bag."""
        return not self.failed

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain values."""
        failed = {
            slide_id: {"path": path, "reason": reason, "message": message}
            for slide_id, (path, reason, message) in self.failed.items()
        }
        return {"extracted": self.extracted, "reused": self.reused, "failed": failed, "tiles": self.tiles}


def bag_path(out: Path, slide_id: str) -> Path:
    """Where a slide's bag lies: in CLAM's folder for features."""
    return out / BAG_FOLDER / f"{slide_id}.h5"


def extract(
    sources: Sequence[SlideSource],
    out: Path,
    encoder: Encoder,
    settings: TileSettings | None = None,
    work: WorkSettings | None = None,
    progress: OnProgress = lambda what, fraction: None,
    tell: Callable[[str], None] = lambda problem: None,
) -> Outcome:
    """Extract every slide whose bag is missing; failures are told of, collected and written to failures.csv."""
    settings, work = settings or TileSettings(), work or WorkSettings()
    (out / BAG_FOLDER).mkdir(parents=True, exist_ok=True)
    # Before any claim: bags of other settings must be refused while nothing has been done.
    hold_to(out, settings, encoder)
    run = _Run(out, encoder, settings, work, progress, tell)
    try:
        run.over(sources)
    finally:
        run.close()
    return run.outcome


@dataclass
class _Claimed:
    source: SlideSource
    lock: FileLock
    ready: Future[PreparedSlide]


@dataclass
class _Run:
    out: Path
    encoder: Encoder
    settings: TileSettings
    work: WorkSettings
    progress: OnProgress
    tell: Callable[[str], None]
    slides: int = 0
    outcome: Outcome = field(default_factory=Outcome)
    elsewhere: list[SlideSource] = field(default_factory=list)
    _held: list[_Claimed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(self.work.workers, thread_name_prefix="tiles")

    def over(self, sources: Sequence[SlideSource]) -> None:
        self.slides = len(sources)
        self._work_through(deque(sources))
        if self.elsewhere:
            self.tell(f"Waiting for {counted(len(self.elsewhere), 'slide')} in work elsewhere.")
        while self.elsewhere:
            waiting, self.elsewhere = self.elsewhere, []
            self._work_through(deque(waiting))
            if self.elsewhere:
                time.sleep(_POLL_S)

    def close(self) -> None:
        for claimed in self._held:
            # Interrupted: a slide that is being prepared is waited for, since its file is open in another thread.
            claimed.ready.cancel()
            if not claimed.ready.cancelled() and claimed.ready.exception() is None:
                claimed.ready.result().close()
            claimed.lock.release()
        # Failures are recorded last, whatever ended the run: what was found out is not lost.
        self.pool.shutdown(wait=True, cancel_futures=True)
        settle_failures(self.out, self.outcome)

    def _work_through(self, queue: deque[SlideSource]) -> None:
        current = self._next(queue)
        while current is not None:
            following = self._next(queue)  # prepared by the reader threads while the current one is encoded
            self._finish(current)
            current = following

    def _next(self, queue: deque[SlideSource]) -> _Claimed | None:
        """Claim the next slide that needs work and start preparing it."""
        while queue:
            source = queue.popleft()
            if self._is_settled(source):
                continue
            lock = claim(self.out, source.slide_id)
            if lock is None:
                self.elsewhere.append(source)
                continue
            if self._is_settled(source):  # its former holder may have finished in between
                _settle(lock)
                continue
            claimed = _Claimed(source, lock, self.pool.submit(prepare, source, self.settings, self.work, self.pool))
            self._held.append(claimed)
            return claimed
        return None

    def _is_settled(self, source: SlideSource) -> bool:
        path = bag_path(self.out, source.slide_id)
        try:
            if not path.exists():
                return False
            record = read_record(path)
        except BagError:
            # Writing is atomic, so nobody is still at work on it.
            return False  # damaged: make it again
        try:
            if record is None or record.slide_fingerprint != file_fingerprint(source.path):
                raise SlideError(
                    f"{path} exists but was not made from {source.path}. Remove it, or use another --out folder."
                )
            if source.mpp is not None and not agrees("mpp", source.mpp, record.mpp_of_slide):
                raise SlideError(
                    f"{path} was made with {record.mpp_of_slide:g} microns per pixel of the slide, now {source.mpp:g} "
                    "are stated. Remove it, or use another --out folder."
                )
            self.outcome.reused.append(source.slide_id)
            self._advance()
        except SlideError as error:
            self._fail(source, error)
        return True

    def _finish(self, claimed: _Claimed) -> None:
        source = claimed.source
        try:
            with contextlib.closing(claimed.ready.result()) as slide:
                planned, done = len(slide.plan.cells), 0

                def encoded(tiles: int) -> None:
                    nonlocal done
                    done += tiles
                    self._advance(done / planned)

                preview = self.out / "previews" / f"{source.slide_id}.png" if self.work.preview else None
                path = bag_path(self.out, source.slide_id)
                tiles = finish(slide, path, self.encoder, self.settings, self.work, encoded, preview)
            self.outcome.extracted.append(source.slide_id)
            self.outcome.tiles += tiles
            self._advance()
        except (SlideError, BagError) as error:
            self._fail(source, error)
        finally:
            self._held.remove(claimed)
            # The lock file of a failed slide stays: if it went, two processes could hold one each and do the same work.
            if source.slide_id in self.outcome.extracted:
                _settle(claimed.lock)
            else:
                claimed.lock.release()

    def _fail(self, source: SlideSource, error: SlideError | BagError) -> None:
        message = str(error)
        reason = getattr(error, "reason", "unreadable")
        self.outcome.failed[source.slide_id] = (str(source.path), reason, message)
        self._advance()
        self.tell(message)

    def _advance(self, share: float = 0.0) -> None:
        """Move on; `share` of the slide in work is done."""
        settled = len(self.outcome.extracted) + len(self.outcome.reused) + len(self.outcome.failed)
        self.progress("Extracting", min(1.0, (settled + share) / self.slides))


def is_slide(path: Path) -> bool:
    """Whether a path looks like a slide rather than a table or a run: by its name, or as the folder of a slide's files.

    >>> is_slide(Path("case 1.SVS")), is_slide(Path("cohort.csv"))
    (True, False)
    """
    if path.suffix.lower() in READABLE_SUFFIXES:
        return True
    return path.is_dir() and (is_ome_zarr(path) or bool(dicom_slides(path)))


def tile_side_px0(info: BagInfo, origin: Mapping[str, Any], mpp_of_slide: float) -> float | None:
    """The side of a bag's tiles in level-0 pixels: as its file says, or tile_px mpp / mpp of the slide; None: unknown.

    >>> tile_side_px0(BagInfo(), {"mpp": 0.5, "tile_px": 256}, 0.25)
    512.0
    """
    if info.tile_px0 is not None and info.tile_px0 > 0:
        return float(info.tile_px0)
    mpp, tile_px = info.mpp or origin.get("mpp"), info.tile_px or origin.get("tile_px")
    return None if mpp is None or tile_px is None else float(tile_px) * float(mpp) / mpp_of_slide


def bags_for_run(
    sources: Sequence[SlideSource],
    out: Path,
    origin: Mapping[str, Any],
    *,
    encoder: str | None = None,
    options: EncoderOptions | None = None,
    announce: Callable[[str], None] | None = None,
) -> tuple[Path, Path]:
    """The table of these slides and the folder of their bags below `out`, made as `origin` says.

    That is the encoder, mpp and tile_px of the training features. `encoder` names the encoder where the stored name
    does not lead to its file (`onnx:FILE`, your own class), or where there is none because the training features' files
    did not say. A slide that cannot be read is announced and stays in the table without a bag, so that whoever reads on
    misses it; it is an error if none can be read.
    """
    known = {**origin, "encoder": origin.get("encoder") or encoder}
    missing = [name for name in STATED if known.get(name) is None]
    if missing:
        options_for = " ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ConfigError(
            f"The run does not say how its training features were made ({', '.join(missing)} unknown), so slides "
            f"cannot be encoded the same way. State it: {options_for} here, data.<name> when training, or columns of "
            "the cohort table. Or extract the slides yourself and predict from the bags."
        )
    network = create_encoder(encoder or str(origin["encoder"]), options, announce=announce)
    if origin.get("encoder") not in (None, network.name):
        raise ConfigError(f"The run was trained on features of {origin['encoder']}, not of {network.name}.")
    settings = TileSettings(mpp=float(origin["mpp"]), tile_px=int(origin["tile_px"]))
    outcome = extract(sources, out, network, settings)
    if len(outcome.failed) == len(sources) and sources:
        raise SlideError("; ".join(message for _, _, message in outcome.failed.values()))
    if announce is not None:
        for _, _, message in outcome.failed.values():
            announce(message)
    manifest = out / "slides.csv"
    atomic.write_csv(manifest, ["slide_id"], [[source.slide_id] for source in sources])
    return manifest, out / BAG_FOLDER


_FOLDER = ".claims"
_FAILURE_COLUMNS = ("slide", "path", "reason", "message")


def claim(out: Path, slide_id: str) -> FileLock | None:
    """The slide's lock, held; None where another process holds it."""
    (out / _FOLDER).mkdir(parents=True, exist_ok=True)
    # a name that fits a file of its own may be too long for one with this suffix
    lock = FileLock(out / _FOLDER / f"{FileNames()[slide_id]}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _settle(lock: FileLock) -> None:
    """Give a finished slide's lock back for good.

    Its file may go although others might wait on it: whoever gets hold of it finds the bag and does nothing.
    """
    lock.release()
    with contextlib.suppress(OSError):  # Windows does not remove what another process has open
        Path(lock.lock_file).unlink(missing_ok=True)


def settle_failures(out: Path, outcome: Outcome) -> None:
    """Bring failures.csv up to date: rows of slides that are done go, those of this run replace older ones."""
    path = out / "failures.csv"
    # Read, change and write as one step: processes that share the folder all bring the one list up to date.
    with FileLock(out / ".failures.lock"):
        rows: dict[str, Sequence[str]] = {}
        # A header alone: every slide that had failed was done since. A file that was edited or truncated by someone
        # else is no reason to lose what this run has found.
        if path.is_file() and path.read_bytes().count(b"\n") > 1:
            with contextlib.suppress(TableError, KeyError):
                columns = read_table(path)
                rows = {
                    slide: cells for slide, *cells in zip(*(columns[name] for name in _FAILURE_COLUMNS), strict=True)
                }
        rows = {slide: cells for slide, cells in rows.items() if slide not in {*outcome.extracted, *outcome.reused}}
        rows |= outcome.failed
        if rows or path.exists():
            atomic.write_csv(path, _FAILURE_COLUMNS, [(slide, *rows[slide]) for slide in sorted(rows)])
