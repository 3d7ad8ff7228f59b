"""One writer per folder: a lock of the system that says whether its holder lives, and a note that says who it is.

The holder keeps `.run.lock.guard` locked for as long as it lives; the kernel gives that back when a process dies,
however it dies, and it works between containers of one machine. `run.lock` names the holder. So:

* the guard is taken: the holder lives, and nobody else may write;
* the guard is free and the holder ran under this kernel: it is dead, and its lock may be taken over;
* the holder ran under another kernel: nobody here can tell. Its lock is never taken, unless that machine plainly was
  this one before it was started again, or the caller vouches for it (`owner`).
"""

from __future__ import annotations

import json
import os
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
    """Who holds a lock: machine, process, since when, on whose behalf, and under which start of which kernel."""

    host: str
    pid: int
    since: str
    owner: str = ""
    boot: str = ""
    namespace: str = ""

    @classmethod
    def here(cls, owner: str = "") -> Holder:
        """This process."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        return cls(socket.gethostname(), os.getpid(), since, owner, _boot(), process_namespace())

    def is_dead(self) -> bool:
        """Whether the holder, whose guard is free, certainly no longer exists."""
        here = Holder.here()
        if self.boot == here.boot:
            # One kernel frees the guard of whoever dies, also in another container; without /proc the name must do.
            return bool(self.boot) or self.host == here.host
        # A machine that was started again has its old name, and its processes are gone; a container may be a new one
        # of that name while the old one lives elsewhere.
        return self.host == here.host and self.namespace == here.namespace == _OUTERMOST

    def is_about_to_let_go(self, owner: str) -> bool:
        """Whether a taken guard is kept by children of a process that is gone, or by an attempt of the same owner."""
        here = Holder.here()
        neighbor = (self.host, self.boot, self.namespace) == (here.host, here.boot, here.namespace)
        return (neighbor and not is_alive(self.pid)) or (bool(owner) and self.owner == owner)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@contextmanager
def locked(folder: Path, *, take_over: bool = False, owner: str = "", name: str = LOCK) -> Iterator[Holder | None]:
    """Hold the folder, which is created when missing; yields the dead holder whose lock was taken over, or None.

    With `take_over`, the lock of a dead process is replaced, or one of another machine held on behalf of the same
    `owner`: attempts of one benchmark at one cell follow one another, never overlap.

    Raises:
        RunError: someone else holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, me = folder / name, Holder.here(owner)
    # An open file that the kernel locks; forked children have it open too, and keep it locked until they end.
    guard = FileLock(path.with_name(f".{name}.guard"))
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            guard.acquire(timeout=0)
            break
        except Timeout:
            holder = read_lock(path)
            if holder is None or not holder.is_about_to_let_go(owner) or time.monotonic() > deadline:
                raise RunError(_refusal(path, holder)) from None
            time.sleep(0.02)
    try:
        before = read_lock(path)
        if before is not None:
            if not (before.is_dead() or (owner and before.owner == owner)):
                raise RunError(_refusal(path, before))
            if not take_over:
                raise RunError(
                    f"{folder} was left by {before}, which is no longer running. "
                    "Continue that run with --resume, or choose another folder."
                )
            path.unlink(missing_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:  # exclusive, where a file system does not share the guard
                file.write(json.dumps(asdict(me)))
        except FileExistsError:
            raise RunError(_refusal(path, read_lock(path))) from None
        try:
            yield before
        finally:
            # Someone who was certain may have deleted the lock and taken the folder: that one is not to be removed.
            if read_lock(path) == me:
                path.unlink(missing_ok=True)
    finally:
        guard.release()


def read_lock(path: Path) -> Holder | None:
    """The holder named by a lock file; None when there is none, a nameless holder when it cannot be read."""
    try:
        return Holder(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return Holder("an unknown machine", 0, "an unknown time")


def _boot() -> str:
    """This start of the kernel; empty where it has no name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""


def _refusal(path: Path, holder: Holder | None) -> str:
    again = "use --resume" if path.name == LOCK else "start it again"
    return (
        f"{path.parent} is in use by {holder or 'a process that is just starting'}; two runs in one folder would "
        "damage each other. Wait for it, or choose another folder. If you are certain that it no longer runs, "
        f"delete {path} and {again}."
    )
