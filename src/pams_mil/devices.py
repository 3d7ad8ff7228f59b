"""Where and how torch computes: a device by name, threads, and whether code written by hand may stand in for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pams_mil.errors import ConfigError, first_line


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one.

    >>> choose_device("cpu")
    device(type='cpu')
    >>> choose_device("cpo")
    Traceback (most recent call last):
    pams_mil.errors.ConfigError: The device 'cpo' cannot be used here: ...
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error).rstrip(".")
        raise ConfigError(f"The device {name!r} cannot be used here: {reason}. Choose auto or cpu.") from error
    return device


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Compute on so many threads inside, and on as many as before afterwards; None leaves their number alone."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plain_asked() -> bool:
    """Whether `PAMS_PLAIN_KERNELS` in the environment asks for operations of torch alone."""
    return os.environ.get("PAMS_PLAIN_KERNELS", "") not in ("", "0")
