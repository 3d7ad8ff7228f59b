"""One writer per folder: a lock file that says who holds it, and a lock of the system that says whether it lives.

`run.lock` is created exclusively and names its holder. Beside it the holder keeps `.run.lock.guard` locked for as
long as it lives; the kernel gives that back when a process dies, however it dies, and it works between containers of
one machine, which share neither process numbers nor host names. So:

* the guard is taken: the holder lives, and nobody else may write;
* the guard is free and the holder ran under this kernel: it is dead, and its lock may be taken over;
* the holder ran under another kernel: nobody here can tell. Its lock is never taken, unless that machine plainly was
  this one before it was started again, or the caller answers for it (`owner`).
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

from filelock import FileLock, Timeout

from pams_mil.atomic import is_alive, process_namespace
from pams_mil.errors import RunError

LOCK = "run.lock"
_WAIT_SECONDS = 15.0
"""How long to wait for the children of a dead holder, or for another attempt of the same owner, to let go."""
_OUTERMOST = "pid:[4026531836]"
"""The process numbers of the machine itself, as Linux calls them; containers have others."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: machine, process, when that process started, since when, and on whose behalf.

    `namespace` is whose process numbers `pid` is one of; it is empty in locks of version 0.1.0, whose holders keep no
    guard.
    """

    host: str
    pid: int
    process_start: str
    since: str
    owner: str = ""
    namespace: str = ""

    @classmethod
    def here(cls, owner: str = "") -> Holder:
        """This process."""
        pid = os.getpid()
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        return cls(socket.gethostname(), pid, process_start(pid), since, owner, process_namespace())

    def is_dead(self, *, guard_is_free: bool = False) -> bool:
        """Whether the holder certainly no longer exists; False when that cannot be known."""
        here = Holder.here()
        if self.namespace and self.boot and here.boot:
            # One kernel: it frees the guard of whoever dies, also in another container, where its number means nothing
            # here.
            if self.boot == here.boot:
                return guard_is_free or (self.namespace == here.namespace and self._process_is_gone())
            # Another kernel. A machine that was started again has its old name, and its processes are gone; a container
            # may be a new one of that name while the old one lives elsewhere.
            return self.host == here.host and self.namespace == here.namespace == _OUTERMOST
        # Locks of version 0.1.0, and systems without /proc: only the process number is left to ask.
        if self.host != here.host or os.name == "nt":
            return False
        return self._process_is_gone()

    @property
    def boot(self) -> str:
        """The start of the kernel that the holder ran under; empty where that cannot be told."""
        return self.process_start.partition(":")[0]

    def _process_is_gone(self) -> bool:
        """Whether no process has its number, or another one does; only right among the same process numbers."""
        if not is_alive(self.pid):
            return True
        # The number may have been given to another process since; that one started at another time.
        started = process_start(self.pid)
        return bool(self.process_start and started and started != self.process_start)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@contextmanager
def locked(folder: Path, *, take_over: bool = False, owner: str = "", name: str = LOCK) -> Iterator[Holder | None]:
    """Hold the folder; yields the dead holder whose lock was taken over, or None.

    Args:
        folder: The folder to write to; created when missing.
        take_over: Replace the lock of a dead process, or one of another machine held on behalf of the same `owner`.
        owner: On whose behalf: attempts of one benchmark at one cell follow one another, never overlap.
        name: The lock's file name.

    Raises:
        RunError: someone else holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, me = folder / name, Holder.here(owner)
    with _guarded(path, owner):
        before = None
        if not _create(path, me):
            before = _replace_dead(path, me, take_over=take_over)
        try:
            yield before
        finally:
            # Someone who was certain may have deleted the lock and taken the folder: that one is not to be removed.
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
    # Field 22 of stat(5). The name, field 2, may hold spaces and brackets, so fields are counted behind its last
    # bracket.
    return f"{boot}:{stat.rpartition(')')[2].split()[19]}"


@contextmanager
def _guarded(path: Path, owner: str) -> Iterator[None]:
    """Keep the guard while the block runs; whoever finds it taken knows that its holder lives."""
    # An open file that the kernel locks; forked children have it open too, and keep it locked until they end.
    guard = FileLock(path.with_name(f".{path.name}.guard"))
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            guard.acquire(timeout=0)
            break
        except Timeout:
            # A dead holder's children keep the guard until they notice; an attempt of the same owner is about to end.
            holder = read_lock(path)
            passing = holder is not None and (holder.is_dead() or (bool(owner) and holder.owner == owner))
            if not passing or time.monotonic() > deadline:
                raise RunError(_refusal(path, holder, dead=False)) from None
            time.sleep(0.02)
    try:
        yield
    finally:
        guard.release()


def _create(path: Path, me: Holder) -> bool:
    """Create the lock with its content in one step: written aside, then linked under its name."""
    # A link fails where the name exists, in one step; a rename would replace a lock, and a lock that is filled after it
    # was created could be read empty.
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
    """Decide about a lock that exists, with the guard held, so that nobody else does."""
    holder = read_lock(path)
    # Gone since `_create` failed, e.g. a holder of version 0.1.0, which keeps no guard, has just ended.
    if holder is None:
        if _create(path, me):
            return None
        holder = read_lock(path)
    dead = holder is not None and (holder.is_dead(guard_is_free=True) or _is_answered_for(holder, me))
    if take_over and dead:
        path.unlink(missing_ok=True)
        if _create(path, me):
            return holder
    raise RunError(_refusal(path, holder, dead=dead))


def _is_answered_for(holder: Holder, me: Holder) -> bool:
    """Whether the same owner started both, and the holder is where nobody here can look."""
    elsewhere = holder.boot != me.boot if holder.boot and me.boot else holder.host != me.host
    return elsewhere and bool(me.owner) and holder.owner == me.owner


def _refusal(path: Path, holder: Holder | None, *, dead: bool) -> str:
    if dead:
        return (
            f"{path.parent} was left by {holder}, which is no longer running. "
            "Continue that run with --resume, or choose another folder."
        )
    again = "use --resume" if path.name == LOCK else "start it again"
    return (
        f"{path.parent} is in use by {holder or 'a process that is just starting'}; two runs in one folder would "
        "damage each other. Wait for it, or choose another folder. If you are certain that it no longer runs, "
        f"delete {path} and {again}."
    )
