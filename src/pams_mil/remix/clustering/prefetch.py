"""Ask for memory before it is needed, from compiled code; Numba itself cannot.

A processor guesses what will be read next, but not well when several rows are read side by side. Told in time, it reads
from main memory while it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LINE = 16
"""Values that are read from memory at once: 64 bytes, float32."""
_TO_READ, _KEEP_NEAR, _IS_DATA = 0, 3, 1


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = context.make_array(signature.args[0])(context, builder, args[0])
        place: Any = cast(Any, cgutils).get_item_pointer(context, builder, signature.args[0], found, [args[1]])
        place = builder.bitcast(place, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        hints = [ir.Constant(number, hint) for hint in (_TO_READ, _KEEP_NEAR, _IS_DATA)]
        builder.call(instruction, [place, *hints])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch = cast(Callable[[Any, int], None], intrinsic(_prefetch))
"""Start reading the line of memory with array[index]."""
