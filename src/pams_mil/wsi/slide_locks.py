"""Who works on which slide: a lock per slide that the operating system gives back when its holder dies.

Because a lock never outlives its process, a kill at any moment leaves nothing to clean up by hand, and processes that
share a folder need not know of each other.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from filelock import FileLock, Timeout

from pams_mil import atomic
from pams_mil.data.bags.filenames import FileNames
from pams_mil.errors import TableError
from pams_mil.tables import read_table

_FOLDER = ".claims"
_FAILURE_COLUMNS = ("slide", "path", "reason", "message")


class Claims:
    """The locks of one output folder."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._folder = out / _FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)

    def take(self, slide_id: str) -> FileLock | None:
        """The slide's lock, held; None where another process holds it."""
        # a name that fits a file of its own may be too long for one with this suffix
        lock = FileLock(self._folder / f"{FileNames()[slide_id]}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def settle(self, lock: FileLock) -> None:
        """Give a finished slide's lock back for good.

        Its file may go although others might wait on it: whoever gets hold of it finds the bag and does nothing.
        """
        lock.release()
        with contextlib.suppress(OSError):  # Windows does not remove what another process has open
            Path(lock.lock_file).unlink(missing_ok=True)

    def record(self, failed: dict[str, tuple[str, str, str]], done: set[str]) -> None:
        """Bring failures.csv up to date: rows of slides that are done go, those of this run replace older ones."""
        path = self._out / "failures.csv"
        # Read, change and write as one step: processes that share the folder all bring the one list up to date.
        with FileLock(self._out / ".failures.lock"):
            rows = {slide: row for slide, row in _earlier(path).items() if slide not in done}
            rows.update(failed)
            if rows or path.exists():
                atomic.write_csv(path, _FAILURE_COLUMNS, [(slide, *rows[slide]) for slide in sorted(rows)])


def _earlier(path: Path) -> dict[str, tuple[str, str, str]]:
    # A header alone: every slide that had failed was done since.
    if not path.is_file() or path.read_bytes().count(b"\n") < 2:
        return {}
    try:
        columns = read_table(path)
        cells = zip(*(columns[name] for name in _FAILURE_COLUMNS), strict=True)
    except (TableError, KeyError):  # edited or torn by someone else: no reason to lose what this run has found
        return {}
    return {slide: (file, reason, message) for slide, file, reason, message in cells}
