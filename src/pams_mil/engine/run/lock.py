"""One writer per run folder: a lock file, created exclusively, that says who holds it.

A lock whose process is provably dead (same machine, no such process, or another one under its number) is taken
over when a run is resumed, and that is reported. A lock of another machine is never taken: nobody here can tell
whether its owner still writes.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pams_mil.errors import RunError

LOCK = "run.lock"


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: machine, process, when that process started, since when, and on whose behalf."""

    host: str
    pid: int
    process_start: str
    since: str
    owner: str = ""

    @classmethod
    def here(cls, owner: str = "") -> Holder:
        """This process."""
        pid = os.getpid()
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        return cls(socket.gethostname(), pid, process_start(pid), since, owner)

    def is_dead(self) -> bool:
        """Whether the holder certainly no longer exists; False when that cannot be known."""
        if self.host != socket.gethostname() or os.name == "nt":
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        started = process_start(self.pid)
        return bool(self.process_start and started and started != self.process_start)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@contextmanager
def locked(folder: Path, *, take_over: bool = False, owner: str = "") -> Iterator[Holder | None]:
    """Hold the folder; yields the dead holder whose lock was taken over, or None.

    Args:
        folder: The run folder; created when missing.
        take_over: Replace the lock of a dead process, or one held on behalf of the same `owner`.
        owner: On whose behalf: attempts of one benchmark at one cell follow one another, never overlap.

    Raises:
        RunError: someone else holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, me = folder / LOCK, Holder.here(owner)
    before = None
    if not _create(path, me):
        before = _replace_dead(path, me, take_over=take_over)
    try:
        yield before
    finally:
        if read_lock(path) == me:
            path.unlink(missing_ok=True)


def read_lock(path: Path) -> Holder | None:
    """The holder named by a lock file; None when there is none, a nameless holder when it cannot be read."""
    try:
        return Holder(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return Holder("an unknown machine", 0, "", "an unknown time")


def process_start(pid: int) -> str:
    """When a process started, in the kernel's ticks since boot; empty where that cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""
    return f"{boot}:{stat.rpartition(')')[2].split()[19]}"


def _create(path: Path, me: Holder) -> bool:
    """Create the lock with its content in one step: written aside, then linked under its name."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
    aside.write_text(json.dumps(asdict(me)), "utf-8")
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: exclusive create, content a moment later
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(json.dumps(asdict(me)))
        except FileExistsError:
            return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def _replace_dead(path: Path, me: Holder, *, take_over: bool) -> Holder | None:
    with _guard(path):
        holder = read_lock(path)
        if holder is None:
            if _create(path, me):
                return None
            holder = read_lock(path)
        dead = holder is not None and (holder.is_dead() or (bool(me.owner) and holder.owner == me.owner))
        if take_over and dead:
            path.unlink(missing_ok=True)
            if _create(path, me):
                return holder
    raise RunError(_refusal(path, holder, dead=dead))


def _refusal(path: Path, holder: Holder | None, *, dead: bool) -> str:
    if dead:
        return (
            f"{path.parent} was left by {holder}, which is no longer running. "
            "Continue that run with --resume, or choose another folder."
        )
    return (
        f"{path.parent} is in use by {holder}; two runs in one folder would damage each other. Wait for it, or choose "
        f"another folder. If you are certain that it no longer runs, delete {path} and use --resume."
    )


@contextmanager
def _guard(path: Path) -> Iterator[None]:
    """Only one process at a time may decide about a lock that exists already."""
    guard = path.with_name(f".{path.name}.guard")
    with guard.open("a") as file:
        try:
            import fcntl  # noqa: PLC0415  POSIX only; elsewhere dead locks are never taken over
        except ImportError:
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
