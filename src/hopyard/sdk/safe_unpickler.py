"""Another user's pickle: the values that `plain` makes, and nothing else.

Python's own unpickler in Python, with every operation decided here. The one in C calls and changes whatever a
pickle put on its stack.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import IO, Any

from hopyard.sdk.safe_values import LIST_TYPES, MAPPING_TYPES, NEWOBJ, SafeValues, corrupt_value_error


def load_safe(file: IO[bytes]) -> Any:
    """As `pickle.load`. Raises SpecError for what is not plain, IntegrityError or another error where it is
    damaged."""
    size = os.fstat(file.fileno()).st_size
    values = SafeValues(size)
    return values.check_value(_Unpickler(_BoundedFile(file, size), values).load())


class _BoundedFile:
    """A file that is never asked for more than it has: memory for it would be taken first."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._remaining = file, size
        self.readline = file.readline

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._remaining:
            raise corrupt_value_error("it ends in the middle of a value")
        return self._file.read(size)


class _Memo(dict[int, Any]):
    """Knows where values are that are made again as their state comes."""

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
            raise corrupt_value_error("an object is made with no tuple")
        self.stack[-1] = self._values.call(NEWOBJ, (self.stack[-1], *arguments))

    def _build(self) -> None:
        state, old = self.stack.pop(), self.stack[-1]
        self.stack[-1] = made = self._values.set_state(old, state)
        self.memo.replace(old, made)

    def _append(self) -> None:
        element = self.stack.pop()
        self._extend([element])

    def _appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, elements: list[Any]) -> None:
        if type(self.stack[-1]) not in LIST_TYPES:
            raise corrupt_value_error("elements are appended to no list")
        self.stack[-1].extend(elements)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_dict_items(self.stack[-1], [key, value])

    def _set_items(self) -> None:
        items = self.pop_mark()
        self._set_dict_items(self.stack[-1], items)

    def _dict(self) -> None:
        items = self.pop_mark()
        made: dict[Any, Any] = {}
        self._set_dict_items(made, items)
        self.append(made)

    def _set_dict_items(self, target: Any, items: list[Any]) -> None:
        if type(target) not in MAPPING_TYPES:
            raise corrupt_value_error("items are set in no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[self._values.check_key(key)] = value

    def _add_items(self) -> None:
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise corrupt_value_error("elements are added to no set")
        self.stack[-1].update([self._values.check_key(one) for one in items])

    def _frozenset(self) -> None:
        items = self.pop_mark()
        self.append(frozenset([self._values.check_key(one) for one in items]))

    def _bytearray(self) -> None:
        """Python's reserves memory of the stated size before it reads."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    def _reject(self) -> None:
        raise corrupt_value_error("it is no pickle of plain values")

    # they only make numbers, texts and empty or fixed containers, move what is on the stack, and look up
    # names
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
