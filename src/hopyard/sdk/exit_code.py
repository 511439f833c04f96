"""With which code a script left by `raise SystemExit(3)`: Python tells neither `sys.exit` nor
`sys.excepthook` of that one.

At exit only the frame of the main module is left. Where it stopped at such a statement, the statement is read
again.
"""

from __future__ import annotations

import sys
from types import FrameType


def main_frame() -> FrameType | None:
    """The frame of the script that this process was started with, None where the caller was not called by
    it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (
        frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    ):
        frame = frame.f_back
    return frame


def system_exit_code(main_frame_object: FrameType) -> int:
    """The exit code of the `raise SystemExit(…)` that `main_frame_object` ended at; 0 where it ended in
    another way, or where the code came out of a call and is known no more."""
    import ast
    import dis

    if (
        main_frame_object.f_lasti < 0
        or main_frame_object.f_code.co_code[main_frame_object.f_lasti] != dis.opmap["RAISE_VARARGS"]
    ):
        return 0
    try:
        with open(main_frame_object.f_code.co_filename, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.lineno <= main_frame_object.f_lineno <= (
            node.end_lineno or node.lineno
        ):
            return _exit_code_from(node.exc, main_frame_object)
    return 0


def _exit_code_from(error: object, main: FrameType) -> int:
    import ast

    if not (
        isinstance(error, ast.Call)
        and isinstance(error.func, ast.Name)
        and error.func.id == "SystemExit"
        and len(error.args) == 1
    ):
        return 0
    given = error.args[0]
    if isinstance(given, ast.JoinedStr):
        return 1  # words: Python prints them and leaves with 1
    value = (
        given.value
        if isinstance(given, ast.Constant)
        else main.f_globals.get(given.id)
        if isinstance(given, ast.Name)
        else None
    )
    return value if isinstance(value, int) else 0 if value is None else 1
