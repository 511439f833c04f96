"""How a `hop.loop` was left: by `break` or `return`, or by an exception."""

from __future__ import annotations

import sys
from opcode import opmap
from types import CodeType, FrameType

# `break` and `return` drop the iterator of a `for` loop with one of these instructions. An exception drops it
# at the instruction that raises, which is never one of them.
_DROPS_ITERATOR = frozenset(opmap[name] for name in ("POP_TOP", "POP_ITER") if name in opmap)
# A generator around the loop (`tqdm(hop.loop(…))`) is closed at its own `yield`.
_SUSPENDED = frozenset(opmap[name] for name in ("YIELD_VALUE", "RESUME", "SEND") if name in opmap)


# A variable that holds the iterator (`steps = enumerate(hop.loop(…))`) receives another value or is deleted.
_REBINDS = frozenset(
    opmap[name]
    for name in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL")
    if name in opmap
)
_CALLS = frozenset(
    opmap[name] for name in ("PRECALL", "CALL", "CALL_KW", "CALL_FUNCTION_EX") if name in opmap
)
_CACHE = opmap.get("CACHE", -1)
_RETURNS = frozenset(opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in opmap)


def is_left_by_break(frame: FrameType | None, consumer: CodeType | None = None) -> bool:
    """Returns whether `frame`, which closes the generator of a loop, left its `for` loop by `break` or
    `return`. False for an exception, and where that is not certain.

    consumer: the code of the `for` loop. A local variable of it that holds the iterator is dropped in the
    caller, after the return. After an exception it is not: the traceback still refers to it.
    """
    while frame is not None and frame.f_lasti >= 0:
        instruction = _instruction(frame)
        if instruction in _DROPS_ITERATOR:
            return True
        if consumer is not None and instruction in (_REBINDS if frame.f_code is consumer else _CALLS):
            return True
        if instruction not in _SUSPENDED:
            return False
        frame = frame.f_back
    return False


def calling_frame() -> FrameType | None:
    """Returns the frame of the function that called the caller. None for a generator that is closed because
    the last exception of the script is dropped."""
    try:
        return sys._getframe(2)
    except ValueError:
        return None


def is_at_end(main: FrameType) -> bool:
    """Returns whether the script with this frame ran to its last line: not after an exception or
    `sys.exit`."""
    return main.f_lasti >= 0 and _instruction(main) in _RETURNS


def is_behind_loop(main: FrameType, consumer: CodeType | None, line: int) -> bool:
    """Returns whether the script with this frame ended by `sys.exit` after its `for` loop at `line`, and not
    within the loop. False for an exception, and where that is not certain.

    consumer: the code of the loop.
    """
    import ast

    if main.f_code is not consumer or getattr(sys, "last_type", None) is not None:
        return False
    try:
        with open(main.f_code.co_filename, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return False
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and node.lineno <= line <= (node.iter.end_lineno or node.lineno)
    ]
    if not loops or any(main.f_lineno <= (loop.body[-1].end_lineno or sys.maxsize) for loop in loops):
        return False
    # from within a loop, `sys.exit` passes through the `except` and `finally` of the `try` around it
    return not any(
        isinstance(node, ast.Try)
        and node.lineno <= line <= (node.body[-1].end_lineno or sys.maxsize) < main.f_lineno
        and main.f_lineno <= (node.end_lineno or sys.maxsize)
        for node in ast.walk(tree)
    )


def _instruction(frame: FrameType) -> int:
    """Returns the newest instruction of a frame. A frame in a call is at the cache entries behind it."""
    code, position = frame.f_code.co_code, frame.f_lasti
    while position > 0 and code[position] == _CACHE:
        position -= 2
    return code[position]
