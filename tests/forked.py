"""Work done in a forked process, which may kill itself."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any


def in_child(action: Callable[[], Any]) -> int:
    """Run something in a forked process that may kill itself; the wait status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about forking with threads
        child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os._exit(3)
        os._exit(0)
    return os.waitpid(child, 0)[1]
