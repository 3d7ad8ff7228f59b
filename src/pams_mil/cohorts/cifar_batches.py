"""CIFAR's python batches, read without running anything in them.

The batches are serialized Python objects, and the usual loader would run whatever a forged file asks for. This
reader walks through the opcodes with the standard library's disassembler and builds only dictionaries,
lists, numbers and byte strings; anything else stays an inert `_Opaque` or is refused.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.data.bags.bag import Array
from pams_mil.errors import BagError

IMAGE_BYTES = 3072
_MARK = object()
_VALUES = {
    "SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
    "BININT", "BININT1", "BININT2",
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Opaque:
    """Stands for a class or call that is not carried out; keeps the state it would have been given."""

    state: Any = None


def read_batch(path: Path) -> tuple[Array, list[int]]:
    """Pixels [n, 3072] uint8 and labels [n] of one batch."""
    try:
        content = _walk(path.read_bytes())
        data, labels = _entry(content, "data"), _entry(content, "labels")
        # Python 2 wrote bytes as text; latin-1 gives every byte back as it was.
        raw = data.state[-1] if isinstance(data, _Opaque) else data
        pixels = np.frombuffer(raw if isinstance(raw, bytes) else raw.encode("latin-1"), np.uint8)
        numbers = [int(label) for label in labels]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OSError) as error:
        raise BagError(f"{path} is not one of CIFAR-10's python batches: {error}.") from error
    if not numbers or pixels.size != len(numbers) * IMAGE_BYTES:
        raise BagError(
            f"{path} has {pixels.size:,} pixel bytes for {len(numbers)} labels; expected {IMAGE_BYTES} each."
        )
    return pixels.reshape(-1, IMAGE_BYTES), numbers


def _entry(content: Any, name: str) -> Any:
    return content[name] if name in content else content[name.encode()]


def _walk(data: bytes) -> Any:
    stack: list[Any] = []
    memory: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name == "STOP":
            return stack.pop()
        if name in ("BINPUT", "LONG_BINPUT"):
            memory[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memory[argument])
        else:
            _apply(name, argument, stack)
    raise ValueError("the file ends early")


def _apply(name: str, argument: Any, stack: list[Any]) -> None:
    """Carry out one opcode on the stack, as far as it only builds plain data."""
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "MARK":
        stack.append(_MARK)
    elif name in ("EMPTY_DICT", "EMPTY_LIST"):
        stack.append({} if name == "EMPTY_DICT" else [])
    elif name in _TUPLES or name == "TUPLE":
        items = _until_mark(stack) if name == "TUPLE" else [stack.pop() for _ in range(_TUPLES[name])][::-1]
        stack.append(tuple(items))
    elif name in ("APPENDS", "APPEND"):
        items = _until_mark(stack) if name == "APPENDS" else [stack.pop()]
        stack[-1].extend(items)
    elif name in ("SETITEMS", "SETITEM"):
        items = _until_mark(stack) if name == "SETITEMS" else [stack.pop() for _ in range(2)][::-1]
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    # Here a loader would import, call and fill an object: numpy's array, in a sound file. Nothing is imported or
    # called; only the state is kept, whose last part are the bytes of the array.
    elif name == "GLOBAL":
        stack.append(_Opaque())
    elif name == "REDUCE":
        stack[-2:] = [_Opaque()]
    elif name == "BUILD":
        state = stack.pop()
        stack[-1].state = state
    elif name not in ("PROTO", "FRAME"):
        raise ValueError(f"it holds objects of an unexpected kind ({name})")


def _until_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]
