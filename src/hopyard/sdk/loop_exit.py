"""How a `hop.loop` was left: by `break` or `return`, or by an exception."""

from __future__ import annotations

from opcode import opmap
from types import FrameType

# `break` and `return` drop the iterator of a `for` loop with one of these instructions. An exception drops it
# at the instruction that raises, which is never one of them.
_DROPS_ITERATOR = frozenset(opmap[name] for name in ("POP_TOP", "POP_ITER") if name in opmap)
# A generator around the loop (`tqdm(hop.loop(…))`) is closed at its own `yield`.
_SUSPENDED = frozenset(opmap[name] for name in ("YIELD_VALUE", "RESUME", "SEND") if name in opmap)


def is_left_by_break(frame: FrameType | None) -> bool:
    """Returns whether `frame`, which closes the generator of a loop, left its `for` loop by `break` or
    `return`. False for an exception, and where that is not certain."""
    while frame is not None and frame.f_lasti >= 0:
        instruction = frame.f_code.co_code[frame.f_lasti]
        if instruction in _DROPS_ITERATOR:
            return True
        if instruction not in _SUSPENDED:
            return False
        frame = frame.f_back
    return False
