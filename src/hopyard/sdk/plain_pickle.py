"""Another user's pickle: the values that `plain` makes, and nothing else.

Python's own unpickler in Python, with every operation decided here. The one in C calls and changes whatever a
pickle put on its stack.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import IO, Any

from hopyard.sdk.plain import LISTS, MAPPINGS, NEW, PlainValues, damaged


def load_plain(file: IO[bytes]) -> Any:
    """As `pickle.load`. Raises SpecError for what is not plain, IntegrityError or another error where it is
    damaged."""
    size = os.fstat(file.fileno()).st_size
    values = PlainValues(size)
    return values.checked(_Unpickler(_Within(file, size), values).load())


class _Within:
    """A file that is never asked for more than it has: memory for it would be taken first."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size
        self.readline = file.readline

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._left:
            raise damaged("it ends in the middle of a value")
        return self._file.read(size)


class _Memo(dict[int, Any]):
    """Knows where values are that are made again as their state comes."""

    def __init__(self, values: PlainValues) -> None:
        self._values = values
        self._places: dict[int, list[int]] = {}

    def __setitem__(self, number: int, value: Any) -> None:
        super().__setitem__(number, value)
        if self._values.is_replaced(value):
            self._places.setdefault(id(value), []).append(number)

    def replace(self, old: Any, new: Any) -> None:
        for number in self._places.pop(id(old), ()):
            if self[number] is old:
                self[number] = new


_Python: Any = pickle._Unpickler


class _Unpickler(_Python):  # type: ignore[misc]
    def __init__(self, file: _Within, values: PlainValues) -> None:
        super().__init__(file)
        self._values = values
        self.memo = _Memo(values)

    def find_class(self, module: str, name: str) -> Any:
        return self._values.named(module, name)

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self._values.call(self.stack[-1], arguments)

    def _new(self) -> None:
        arguments = self.stack.pop()
        if type(arguments) is not tuple:
            raise damaged("an object is made with no tuple")
        self.stack[-1] = self._values.call(NEW, (self.stack[-1], *arguments))

    def _build(self) -> None:
        state, old = self.stack.pop(), self.stack[-1]
        self.stack[-1] = made = self._values.build(old, state)
        self.memo.replace(old, made)

    def _append(self) -> None:
        element = self.stack.pop()
        self._extend([element])

    def _appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, elements: list[Any]) -> None:
        if type(self.stack[-1]) not in LISTS:
            raise damaged("elements are appended to no list")
        self.stack[-1].extend(elements)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill(self.stack[-1], [key, value])

    def _set_items(self) -> None:
        items = self.pop_mark()
        self._fill(self.stack[-1], items)

    def _dict(self) -> None:
        items = self.pop_mark()
        made: dict[Any, Any] = {}
        self._fill(made, items)
        self.append(made)

    def _fill(self, made: Any, items: list[Any]) -> None:
        if type(made) not in MAPPINGS:
            raise damaged("items are set in no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            made[self._values.key(key)] = value

    def _add_items(self) -> None:
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise damaged("elements are added to no set")
        self.stack[-1].update([self._values.key(one) for one in items])

    def _frozenset(self) -> None:
        items = self.pop_mark()
        self.append(frozenset([self._values.key(one) for one in items]))

    def _bytearray(self) -> None:
        """Python's reserves memory of the stated size before it reads."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    def _refuse(self) -> None:
        raise damaged("it is no pickle of plain values")

    # they only make numbers, texts and empty or fixed containers, move what is on the stack, and look up
    # names
    _AS_EVER = (
        "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG "
        "LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 "
        "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST "
        "LIST EMPTY_DICT EMPTY_SET GLOBAL STACK_GLOBAL GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT "
        "MEMOIZE"
    )
    dispatch: dict[int, Callable[[Any], None]] = {  # noqa: RUF012
        **dict.fromkeys(range(256), _refuse),  # as PERSID, EXT1, INST, OBJ, NEWOBJ_EX and NEXT_BUFFER
        **{code: _Python.dispatch[code] for code in [getattr(pickle, name)[0] for name in _AS_EVER.split()]},
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _new,
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
