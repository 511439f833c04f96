"""The exit code of a script that ended with `raise SystemExit(3)`, which neither `sys.exit` nor
`sys.excepthook` sees.

At exit only the frame of the main module remains. If it stopped at such a statement, the statement is parsed
again.
"""

from __future__ import annotations

import sys
from types import FrameType


def main_frame() -> FrameType | None:
    """Returns the frame of the script that this process was started with, or None if the caller was not
    called by it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (
        frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    ):
        frame = frame.f_back
    return frame


def system_exit_code(main_frame_object: FrameType) -> int:
    """Returns the exit code of the `raise SystemExit(…)` at which `main_frame_object` ended. Returns 0 if it
    ended in another way, or if the code was the result of a call and is not available any more."""
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
    argument = error.args[0]
    if isinstance(argument, ast.JoinedStr):
        return 1  # text: Python prints it and exits with 1
    value = (
        argument.value
        if isinstance(argument, ast.Constant)
        else main.f_globals.get(argument.id)
        if isinstance(argument, ast.Name)
        else None
    )
    return value if isinstance(value, int) else 0 if value is None else 1
