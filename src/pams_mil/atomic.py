"""The only code that creates output files: a file under its final name is always complete.

A writer fills `.<name>.<host>-<pid>-<token>.part` beside the target; the part is flushed to disk, optionally verified
by reading it back, and renamed over the target in one step. A kill at any moment leaves the old file or the new one,
never half of either. A part whose writer died is swept by the next process that writes in the folder. Every file gets
the permissions that the user's umask (or the folder) gives new files, whichever library wrote it; journals and private
files are their owner's alone.
"""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import re
import secrets
import socket
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from pams_mil.errors import OutputError

_PART = re.compile(r"^\..+\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}\.part$", re.DOTALL)
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-](inf|nan)")
_NAME_BYTES = 255  # what common file systems allow for one name


@contextmanager
def replacing(
    path: Path | str, *, verify: Callable[[Path], None] | None = None, private: bool = False
) -> Iterator[Path]:
    """Give a temporary path to write to; on success it becomes `path`, on failure it vanishes.

    `verify` reads the part back before it becomes visible and raises if it is not what was meant. A `private` file is
    its owner's alone from the first byte on, unless the writing library replaces the part.
    """
    target = Path(path)
    temporary = target.with_name(_part_name(target.name))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Parts of dead writers go first: on a full disk they may be what fills it.
        _sweep_once(target.parent.absolute(), os.getpid())
        permissions = 0o600 if private else _usual_permissions(temporary)
        if private:
            temporary.touch(permissions)
        yield temporary
        # Content first, then the name: renamed before it is flushed, a file could be empty after a power cut.
        temporary.chmod(permissions)
        _flush(temporary)
        if verify is not None:
            verify(temporary)
        temporary.replace(target)
        # The folder holds the name; until it is flushed too, a power cut may bring the old file back.
        _flush_folder(target.parent)
    except OSError as error:
        _discard(temporary)
        raise OutputError(
            f"Could not write {target}: {explain(error)} Any earlier file of that name is untouched."
        ) from error
    except BaseException:
        _discard(temporary)
        raise


def require_folder(path: Path | str) -> Path:
    """The path, refused where no folder of that name could take files; nothing is created, so a refusal leaves nothing.

    Called before long work, so that hours of it do not end in a folder that cannot be written.
    """
    folder = Path(path)
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise OutputError(f"{existing} is a file, not a folder, so nothing can be written into {folder}.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputError(f"The folder {existing} is read-only for you. Choose another place for {folder}.")
    return folder


def explain(error: OSError) -> str:
    """What the system's refusal means, as a sentence.

    >>> explain(OSError(errno.ENOSPC, "No space left on device"))
    'the disk is full.'
    >>> explain(OSError(errno.EIO, "Input/output error"))
    'Input/output error (errno 5).'
    """
    if error.errno == errno.ENOSPC:
        return "the disk is full."
    if error.errno in (errno.EDQUOT, errno.EFBIG):
        return "your quota or limit leaves no room for it."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "permission denied, or the place is read-only. Choose another, or change its permissions."
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "a folder of that path is a file. Choose another place."
    if error.errno == errno.EISDIR:
        return "there is a folder of that name. Choose another name."
    return f"{error.strerror or error} (errno {error.errno})."


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(data)


def write_text(path: Path | str, text: str, *, private: bool = False) -> None:
    """Write UTF-8 `text` to `path` atomically; `private` as in `replacing`."""
    with replacing(path, private=private) as temporary, temporary.open("wb") as file:
        file.write(text.encode("utf-8"))


def strict_json(value: Any) -> str:
    """JSON that every parser accepts: non-finite numbers become null, keys keep their order.

    >>> print(strict_json({"asmc": float("inf"), "acc": 0.5}))
    {
      "asmc": null,
      "acc": 0.5
    }
    """
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Results as values that JSON has: what has `to_json` says it itself, other dataclasses are their fields.

    >>> plain({"curve": (1, float("nan"))})
    {'curve': [1, nan]}
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` as strict JSON to `path` atomically."""
    write_text(path, strict_json(value) + "\n")


def write_csv(
    path: Path | str, header: Sequence[str], rows: Iterable[Sequence[object]], *, private: bool = False
) -> None:
    """Write a CSV atomically; text that a spreadsheet would run as a formula is escaped."""
    with replacing(path, private=private) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        plain = csv.writer(file, lineterminator="\n")
        quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in chain([header], rows):
            cells = [escape_formula(cell) for cell in row]
            # before Python 3.13 a lone carriage return is not quoted and would end the row for every reader
            multiline = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            (quoted if multiline else plain).writerow(cells)


def append_line(path: Path | str, line: str) -> None:
    """Add one line to a journal durably: when this returns, a power cut no longer loses it.

    A kill in between leaves at most an unfinished last line. The next call ends it first, so that it spoils no other;
    whoever reads the journal skips it. One writer at a time, which is for the caller to see to.
    """
    path = Path(path)
    if "\n" in line:
        raise OutputError(f"A line of {path.name} must not hold line breaks.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            truncated = (
                size > 0 and os.lseek(descriptor, size - 1, os.SEEK_SET) >= 0 and os.read(descriptor, 1) != b"\n"
            )
            data = (b"\n" if truncated else b"") + line.encode("utf-8") + b"\n"
            # One call, so that the line is in the file as a whole or, on a full disk, as a beginning that the next call
            # ends.
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OutputError(
            f"Could not add to {path}: {error.strerror or error} (errno {error.errno}). "
            "What was in it before is untouched. Is the disk full or the folder read-only?"
        ) from error
    _flush_folder(path.parent)


def escape_formula(cell: object) -> object:
    """Text that starts like a spreadsheet formula gets a leading apostrophe; everything else is kept.

    `unescape_formula` undoes it, so labels and ids survive a round trip through our own files.

    >>> escape_formula("=cmd()"), escape_formula("-HSIL"), escape_formula(-1.5), escape_formula("-1.5")
    ("'=cmd()", "'-HSIL", -1.5, '-1.5')
    """
    if not isinstance(cell, str) or not _FORMULA.match(cell) or _NUMBER.fullmatch(cell):
        return cell
    return "'" + cell


def unescape_formula(cell: str) -> str:
    """The text that `escape_formula` was given.

    >>> [unescape_formula(str(escape_formula(text))) for text in ("=cmd()", "'=cmd()", "N", "-1.5")]
    ['=cmd()', "'=cmd()", 'N', '-1.5']
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


@lru_cache(maxsize=1024)
def _sweep_once(folder: Path, _process: int) -> None:
    """Sweep a folder before the first write of this process in it: listing it for every file would be quadratic."""
    sweep(folder)


def sweep(folder: Path) -> None:
    """Remove parts in `folder` that were left by writers on this host which are no longer alive.

    What cannot be listed or removed (someone else's part in a shared folder) stays; sweeping is never a reason to fail.
    """
    with suppress(OSError):
        for entry in folder.iterdir():
            match = _PART.match(entry.name)
            if match and match["host"] == _host() and not is_alive(int(match["pid"])):
                _discard(entry)


def _part_name(name: str) -> str:
    # Host and process tell a later sweep whether the writer lives; the token tells writers of one process apart.
    suffix = f".{_host()}-{os.getpid()}-{secrets.token_hex(4)}.part"
    room = _NAME_BYTES - len(suffix) - 1
    return "." + os.fsencode(name)[:room].decode("utf-8", "ignore") + suffix


def _usual_permissions(temporary: Path) -> int:
    """What a new file gets here: some libraries make files that only their owner may read."""
    # The umask can only be read by setting it, which other threads would feel for a moment; a new file just has it.
    temporary.touch()
    permissions = stat.S_IMODE(temporary.stat().st_mode)
    temporary.unlink()
    return permissions


def _discard(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def process_namespace() -> str:
    """Whose process numbers this process sees; a word where the system has no such thing."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "the machine's"


@cache
def _host() -> str:
    """This machine and its process numbers: containers may share a host name but not their process ids."""
    return f"{zlib.crc32(f'{socket.gethostname()} {process_namespace()}'.encode()):08x}"


def is_alive(pid: int) -> bool:
    """Whether a process has this number, among those that this process sees; True where that is unknown."""
    if os.name == "nt":  # signal 0 would interrupt the process there instead of asking after it
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # nobody, or a number that no process can have
        return False
    except OSError:
        return True
    return True


def _flush_folder(folder: Path) -> None:
    """Make the rename durable where the platform can; the file itself is already complete and in place."""
    with suppress(OSError):  # Windows cannot open a folder, some network file systems cannot flush one
        _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    # After float: numpy's float64 is one, and needs no detour. Arrays, tensors and other scalars become plain here.
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return value
