"""Writes the values of a state one after another; see `tags` for what each looks like."""

from __future__ import annotations

import sys
import types
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from hopyard.studies.states import arrays, tags, tensors
from hopyard.studies.states.leaf import Leaf
from hopyard.studies.states.objects import Unkept, global_name, reduced

_MANY_INTS = 16
_INT_LIMIT = 1 << 63


class Writer:
    def __init__(self) -> None:
        self.head = bytearray()
        self.leaves: list[Leaf] = []
        self._end = 0  # of the payload so far
        self._numbers: dict[Any, int] = {}  # of values that may occur again, by identity
        self._alive: list[Any] = []  # what has a number, so that no other object gets the same identity

    def write(self, value: Any) -> None:
        write = _PLAIN.get(type(value))
        if write is not None:
            write(self, value)
        elif not (tensors.write(self, value) or arrays.write(self, value)):
            self._object(value)

    # -- what leaves need
    # --------------------------------------------------------------------------------------

    def occurs_again(self, value: Any, key: Any = None) -> bool:
        """Whether it occurred before, and a reference was written; else it has a number now.
        key: in place of its identity."""
        key = id(value) if key is None else key
        number = self._numbers.get(key)
        if number is None:
            self._numbers[key] = len(self._numbers)
            self._alive.append(value)
            return False
        self.head += tags.SAME
        self.length(number)
        return True

    def length(self, number: int) -> None:
        """Small ones in a byte: most are."""
        if number < 255:
            self.head.append(number)
        else:
            self.head.append(255)
            self.head += tags.LENGTH.pack(number)

    def text(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self.length(len(data))
        self.head += data

    def leaf(self, leaf: Leaf) -> None:
        """In place where it is small, else in the payload.
        Its size is known to the reader from what stands before it."""
        if leaf.size <= tags.INLINE_BYTES:
            self.head += leaf.to_bytes()
            return
        leaf.offset = tags.aligned(self._end)
        self._end = leaf.offset + leaf.size
        self.leaves.append(leaf)

    def inside(self, step: str, value: Any) -> None:
        """Write a part of a value. step: how it is reached, for errors."""
        try:
            self.write(value)
        except Unkept as unkept:
            unkept.path.append(step)
            raise

    # -- plain values
    # ---------------------------------------------------------------------------------------------

    def _none(self, _: None) -> None:
        self.head += tags.NONE

    def _ellipsis(self, _: Any) -> None:
        self.head += tags.ELLIPSIS

    def _bool(self, value: bool) -> None:
        self.head += tags.TRUE if value else tags.FALSE

    def _int(self, value: int) -> None:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        self.head += tags.INT
        self.length(len(data))
        self.head += data

    def _float(self, value: float) -> None:
        self.head += tags.FLOAT_TAG + tags.FLOAT.pack(value)

    def _complex(self, value: complex) -> None:
        self.head += tags.COMPLEX_TAG + tags.COMPLEX.pack(value.real, value.imag)

    def _str(self, value: str) -> None:
        self.head += tags.STR
        self.text(value)

    def _bytes(self, value: bytes) -> None:
        self.head += tags.BYTES
        self.length(len(value))
        self.leaf(Leaf.of_bytes(value))

    def _bytearray(self, value: bytearray) -> None:
        if self.occurs_again(value):
            return
        self.head += tags.BYTEARRAY
        self.length(len(value))
        self.leaf(Leaf.of_bytes(value))

    def _tuple(self, value: tuple[Any, ...]) -> None:
        if (
            len(value) >= _MANY_INTS
            and set(map(type, value)) == {int}
            and all(-_INT_LIMIT <= one < _INT_LIMIT for one in value)
        ):
            self.head += tags.INTS
            self.length(len(value))
            self.leaf(Leaf.of_bytes(_little(array("q", value))))
            return
        self.head += tags.TUPLE
        self._elements(value)

    def _list(self, value: list[Any]) -> None:
        if self.occurs_again(value):
            return
        self.head += tags.LIST
        self._elements(value)

    def _elements(self, value: Any) -> None:
        self.length(len(value))
        for at, one in enumerate(value):
            try:
                self.write(one)
            except Unkept as unkept:
                unkept.path.append(f"[{at}]")
                raise

    def _dict(self, value: dict[Any, Any]) -> None:
        if self.occurs_again(value):
            return
        self.head += tags.DICT
        self.pairs(len(value), value.items())

    def _ordered_dict(self, value: OrderedDict[Any, Any]) -> None:
        """Modules have a dozen each; with attributes, as a `state_dict()` has them, it is an object like any
        other."""
        if value.__dict__:
            self._object(value)
        elif not self.occurs_again(value):
            self.head += tags.ORDERED_DICT
            self.pairs(len(value), value.items())

    def pairs(self, count: int, pairs: Any) -> None:
        self.length(count)
        for key, one in pairs:
            try:
                self.write(key)
                self.write(one)
            except Unkept as unkept:
                unkept.path.append(f"[{_shown(key)}]")
                raise

    def _set(self, value: set[Any]) -> None:
        if not self.occurs_again(value):
            self.head += tags.SET
            self._sorted(value)

    def _frozenset(self, value: frozenset[Any]) -> None:
        self.head += tags.FROZENSET
        self._sorted(value)

    def _sorted(self, value: set[Any] | frozenset[Any]) -> None:
        """In the order of their bytes: that of a set of strings is another in every process."""
        elements = list(value)
        if all(map(_is_plain, elements)):
            elements.sort(key=_bytes_of)
        self.length(len(elements))
        for one in elements:
            self.inside(".{…}", one)

    # -- everything else
    # ---------------------------------------------------------------------------------------------

    def _global(self, value: Any) -> None:
        module, name = global_name(value)
        self.head += tags.GLOBAL
        self.text(module)
        self.text(name)

    def _object(self, value: Any) -> None:
        known = id(value) in self._numbers
        if known:
            self.occurs_again(value)
            return
        if isinstance(value, type):
            self._global(value)
            return
        reduction = reduced(value)
        if isinstance(reduction, str):
            module, name = global_name(value, reduction)
            self.head += tags.GLOBAL
            self.text(module)
            self.text(name)
            return
        self.head += tags.OBJECT
        self.inside("", reduction.make)
        self.inside("", reduction.arguments)
        self._alive.append(reduction)
        self.occurs_again(value)  # from here on it can be referred to, also from its own parts
        self.inside("", reduction.setter)
        self._state(reduction.state)
        if reduction.elements is None:
            self.head += tags.NONE
        else:
            self.head += tags.LIST
            self._elements(reduction.elements)
        if reduction.pairs is None:
            self.head += tags.NONE
        else:
            self.head += tags.DICT
            self.pairs(len(reduction.pairs), reduction.pairs)

    def _state(self, state: Any) -> None:
        """Attributes are named as such in errors."""
        if type(state) is dict and all(type(key) is str for key in state) and id(state) not in self._numbers:
            self.occurs_again(state)
            self.head += tags.DICT
            self.length(len(state))
            for key, one in state.items():
                self.write(key)
                self.inside(f".{key}", one)
        else:
            self.inside("", state)


def _little(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _is_plain(value: Any) -> bool:
    return type(value) in _FIXED or (type(value) in (tuple, frozenset) and all(map(_is_plain, value)))


def _bytes_of(value: Any) -> bytes:
    alone = Writer()
    alone.write(value)
    return bytes(alone.head) + b"".join(leaf.to_bytes() for leaf in alone.leaves)


def _shown(key: Any) -> str:
    return repr(key)[:60] if type(key) in _FIXED else f"<{type(key).__name__}>"


_FIXED = frozenset({str, int, float, bool, bytes, type(None), complex})
_PLAIN: dict[type, Callable[[Writer, Any], None]] = {
    type(None): Writer._none,
    type(Ellipsis): Writer._ellipsis,
    bool: Writer._bool,
    int: Writer._int,
    float: Writer._float,
    complex: Writer._complex,
    str: Writer._str,
    bytes: Writer._bytes,
    bytearray: Writer._bytearray,
    tuple: Writer._tuple,
    list: Writer._list,
    dict: Writer._dict,
    OrderedDict: Writer._ordered_dict,
    set: Writer._set,
    frozenset: Writer._frozenset,
    type: Writer._global,
    types.FunctionType: Writer._global,
    types.BuiltinFunctionType: Writer._object,
}
