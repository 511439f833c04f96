"""Reads another user's pickle: only the values that `SafeValues` builds.

This is Python's own unpickler in Python, with every operation decided here. The one in C calls and changes
any object that a pickle puts on its stack.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import IO, Any

from hopyard.backports import zip
from hopyard.sdk.safe_values import LIST_TYPES, MAPPING_TYPES, NEWOBJ, SafeValues, corrupt_value_error


def load_safe(file: IO[bytes]) -> Any:
    """Reads a pickle as `pickle.load` does. Raises SpecError for a value that is not plain, and
    IntegrityError or another error for damaged data."""
    size = os.fstat(file.fileno()).st_size
    values = SafeValues(size)
    return values.check_value(_Unpickler(_BoundedFile(file, size), values).load())


class _BoundedFile:
    """A file that is never read beyond its end, since the memory for a read is allocated first."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._remaining = file, size
        self.readline = file.readline

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._remaining:
            raise corrupt_value_error("it ends in the middle of a value")
        return self._file.read(size)


class _Memo(dict[int, Any]):
    """Tracks the positions of values that are rebuilt when their state is set."""

    def __init__(self, values: SafeValues) -> None:
        self._values = values
        self._memo_keys: dict[int, list[int]] = {}

    def __setitem__(self, key: int, value: Any) -> None:
        super().__setitem__(key, value)
        if self._values.is_rebuilt_by_state(value):
            self._memo_keys.setdefault(id(value), []).append(key)

    def replace(self, old: Any, new: Any) -> None:
        for number in self._memo_keys.pop(id(old), ()):
            if self[number] is old:
                self[number] = new


_PythonUnpickler: Any = pickle._Unpickler


class _Unpickler(_PythonUnpickler):  # type: ignore[misc]
    def __init__(self, file: _BoundedFile, values: SafeValues) -> None:
        super().__init__(file)
        self._values = values
        self.memo = _Memo(values)

    def find_class(self, module: str, name: str) -> Any:
        return self._values.resolve_global(module, name)

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self._values.call(self.stack[-1], arguments)

    def _newobj(self) -> None:
        arguments = self.stack.pop()
        if type(arguments) is not tuple:
            raise corrupt_value_error("the arguments of an object are not a tuple")
        self.stack[-1] = self._values.call(NEWOBJ, (self.stack[-1], *arguments))

    def _build(self) -> None:
        state, old = self.stack.pop(), self.stack[-1]
        self.stack[-1] = rebuilt = self._values.set_state(old, state)
        self.memo.replace(old, rebuilt)

    def _append(self) -> None:
        element = self.stack.pop()
        self._extend([element])

    def _appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, elements: list[Any]) -> None:
        if type(self.stack[-1]) not in LIST_TYPES:
            raise corrupt_value_error("elements are appended to a value that is not a list")
        self.stack[-1].extend(elements)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_dict_items(self.stack[-1], [key, value])

    def _set_items(self) -> None:
        items = self.pop_mark()
        self._set_dict_items(self.stack[-1], items)

    def _dict(self) -> None:
        items = self.pop_mark()
        result: dict[Any, Any] = {}
        self._set_dict_items(result, items)
        self.append(result)

    def _set_dict_items(self, target: Any, items: list[Any]) -> None:
        if type(target) not in MAPPING_TYPES:
            raise corrupt_value_error("items are set in a value that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[self._values.check_key(key)] = value

    def _add_items(self) -> None:
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise corrupt_value_error("elements are added to a value that is not a set")
        self.stack[-1].update([self._values.check_key(element) for element in items])

    def _frozenset(self) -> None:
        items = self.pop_mark()
        self.append(frozenset([self._values.check_key(element) for element in items]))

    def _bytearray(self) -> None:
        """Replaces Python's version, which allocates the stated size before it reads."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    def _reject(self) -> None:
        raise corrupt_value_error("it is not a pickle of plain values")

    # they only create numbers, text and empty or fixed containers, move stack entries, and look up names
    _INHERITED_OPCODES = (
        "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG "
        "LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 "
        "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST "
        "LIST EMPTY_DICT EMPTY_SET GLOBAL STACK_GLOBAL GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT "
        "MEMOIZE"
    )
    dispatch: dict[int, Callable[[Any], None]] = {  # noqa: RUF012
        **dict.fromkeys(range(256), _reject),  # as PERSID, EXT1, INST, OBJ, NEWOBJ_EX and NEXT_BUFFER
        **{
            code: _PythonUnpickler.dispatch[code]
            for code in [getattr(pickle, name)[0] for name in _INHERITED_OPCODES.split()]
        },
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _newobj,
        pickle.BUILD[0]: _build,
        pickle.APPEND[0]: _append,
        pickle.APPENDS[0]: _appends,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.DICT[0]: _dict,
        pickle.ADDITEMS[0]: _add_items,
        pickle.FROZENSET[0]: _frozenset,
        pickle.BYTEARRAY8[0]: _bytearray,
    }
