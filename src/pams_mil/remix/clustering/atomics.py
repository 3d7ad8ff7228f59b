"""Counters that several threads of compiled code change at once; Numba itself has none for processors.

All of them are one LLVM instruction. They are sequentially consistent: whoever sees a new number also sees all that
was written before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from numba.core import cgutils, types
from numba.extending import intrinsic


def _place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Where array[index] is; the first two of `args` are the array and the index."""
    found = context.make_array(signature.args[0])(context, builder, args[0])
    return cast(Any, cgutils).get_item_pointer(context, builder, signature.args[0], found, [args[1]])


def _fetch_add(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _place(context, builder, signature, args), args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), generate


def _fetch(_typing: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature, args), "seq_cst", align=8)

    return types.int64(array, types.intp), generate


def _store(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _place(context, builder, signature, args), "seq_cst", align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


fetch_add = cast(Callable[[Any, int, int], int], intrinsic(_fetch_add))
"""Add a number to array[index]; returns the one before."""
fetch = cast(Callable[[Any, int], int], intrinsic(_fetch))
"""Read array[index]."""
step_aside = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())
"""Let another thread that waits for this core have it."""
store = cast(Callable[[Any, int, int], None], intrinsic(_store))
"""Write a number to array[index]."""
