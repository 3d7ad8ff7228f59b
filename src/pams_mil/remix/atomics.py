"""Counters that several threads of compiled code change at once; Numba itself has none for processors.

All of them are one LLVM instruction, which changes a number and returns the one before. It is sequentially
consistent: whoever sees the new number also sees all that was written before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from numba.core import cgutils, types
from numba.extending import intrinsic


def _change(operation: str, context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The instruction for an array of int64, an index and, where given, a number."""
    found = context.make_array(signature.args[0])(context, builder, args[0])
    place: Any = cast(Any, cgutils).get_item_pointer(context, builder, signature.args[0], found, [args[1]])
    number = args[2] if len(args) > 2 else context.get_constant(types.int64, 0)
    return builder.atomic_rmw(operation, place, number, "seq_cst")


def _fetch_add(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    return types.int64(array, types.intp, types.int64), lambda *generation: _change("add", *generation)


def _fetch(_typing: Any, array: Any, index: Any) -> Any:
    return types.int64(array, types.intp), lambda *generation: _change("add", *generation)


def _store(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    return types.int64(array, types.intp, types.int64), lambda *generation: _change("xchg", *generation)


fetch_add = cast(Callable[[Any, int, int], int], intrinsic(_fetch_add))
"""Add a number to array[index]."""
fetch = cast(Callable[[Any, int], int], intrinsic(_fetch))
"""Read array[index]."""
step_aside = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())
"""Let another thread that waits for this core have it."""
store = cast(Callable[[Any, int, int], int], intrinsic(_store))
"""Write a number to array[index]."""
