"""The names that a prompt sees, and the evaluation of its statements among them."""

from __future__ import annotations

import ast
import builtins
import ctypes
import linecache
import rlcompleter
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_PACKAGE = __name__.partition(".")[0]


class _Namespace(dict[str, Any]):
    """The globals of statements in a function of the script, and of the functions that they define."""

    __slots__ = ("__weakref__",)


class PromptScope:
    """The scope of the script at its safe point: the locals and globals of the code with the loop.

    An assignment to a local variable of the script changes it. Other new names belong to the prompt, unless
    the loop is at the level of a module. names: returns names that are used where the scope has none.
    """

    def __init__(self, names: Callable[[], Mapping[str, Any]]) -> None:
        self._names = names
        self._own: dict[str, Any] = {}  # names of the prompt
        self._shared: Callable[[], _Namespace | None] = lambda: None
        self._count = 0

    def run(self, source: str, mode: str, write_error: Callable[[str], object]) -> bool:
        """Evaluates statements, and prints the results of expressions. Returns whether none failed.

        mode: "single" for one statement as in Python's own prompt, or "script". KeyboardInterrupt passes.
        """
        self._count += 1
        name = f"<hop repl {self._count}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        frame = _script_frame()
        try:
            if mode == "single":
                codes = [compile(source, name, "single")]
            else:
                body = ast.parse(source, name).body
                codes = [compile(ast.Interactive([statement]), name, "single") for statement in body]
        except (SyntaxError, ValueError, OverflowError, MemoryError) as error:
            write_error("".join(traceback.format_exception_only(type(error), error)))
            return False
        return all(self._execute(code, frame, write_error) for code in codes)

    def complete(self, text: str) -> list[str]:
        """Returns the names and attributes that begin with the text."""
        namespace = {**self._names(), **_globals_of(_script_frame()), **self._own}
        namespace.update(_locals_of(_script_frame()))
        completer, found = rlcompleter.Completer(namespace), list[str]()
        try:
            while (name := completer.complete(text, len(found))) is not None:
                found.append(name)
        except Exception:  # of an attribute that is read: a lazy module, for example, imports something
            return []
        return found

    def _execute(self, code: CodeType, frame: FrameType | None, write_error: Callable[[str], object]) -> bool:
        is_module = frame is not None and frame.f_locals is frame.f_globals
        scope = _globals_of(frame) if is_module else self._namespace(frame)
        fallbacks = {
            name: value
            for name, value in self._names().items()
            if name in _names_of(code) and name not in scope and not hasattr(builtins, name)
        }
        scope.update(fallbacks)
        before = dict(scope)
        earlier, sys.displayhook = sys.displayhook, _display
        try:
            exec(code, scope)
            return True
        except KeyboardInterrupt:
            raise
        except SystemExit:
            write_error("SystemExit: the script continues; leave the prompt with Ctrl-D\n")
            return False
        except BaseException as error:
            inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
            write_error("".join(traceback.format_exception(type(error), error, inner)))
            return False
        finally:
            sys.displayhook = earlier
            for name, value in fallbacks.items():
                if scope.get(name) is value:
                    del scope[name]
                    del before[name]
            if not is_module:
                self._keep_changes(scope, before, frame)

    def _namespace(self, frame: FrameType | None) -> _Namespace:
        """Returns all names. Functions of earlier statements see the present values, as they do in Python's
        own prompt: their globals are this object. Without such functions nothing keeps it alive between
        statements."""
        scope = self._shared()
        if scope is None:
            scope = _Namespace()
            self._shared = weakref.ref(scope)
        scope.clear()
        scope.update({**_globals_of(frame), **self._own, **_locals_of(frame)})
        return scope

    def _keep_changes(
        self, scope: Mapping[str, Any], before: Mapping[str, Any], frame: FrameType | None
    ) -> None:
        """Writes assigned local variables of the script back, and keeps the other names."""
        changed = {
            name: value
            for name, value in scope.items()
            if name != "__builtins__" and (name not in before or before[name] is not value)
        }
        code = None if frame is None else frame.f_code
        local = set() if code is None else {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        own = {name: value for name, value in changed.items() if name not in local}
        self._own.update(own)
        if frame is not None and len(own) < len(changed):
            variables = frame.f_locals
            variables.update({name: value for name, value in changed.items() if name in local})
            if sys.version_info < (3, 13):
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _script_frame() -> FrameType | None:
    """Returns the frame of the script that is at a safe point: the innermost one outside of this package and
    of installed libraries, such as a progress bar around the loop."""
    frame: FrameType | None = sys._getframe()
    outside: FrameType | None = None
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] != _PACKAGE:
            outside = outside or frame
            if not frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen")):
                return frame
        frame = frame.f_back
    return outside


def _globals_of(frame: FrameType | None) -> dict[str, Any]:
    return {} if frame is None else frame.f_globals


def _locals_of(frame: FrameType | None) -> dict[str, Any]:
    return {} if frame is None else dict(frame.f_locals)


def _names_of(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_of(constant)
    return names


def _display(value: object) -> None:
    if value is not None:
        print(repr(value))
