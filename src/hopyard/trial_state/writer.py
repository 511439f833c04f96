"""Writes the values of a state one after another; see `state_format` for the layout."""

from __future__ import annotations

import sys
import types
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from hopyard.trial_state import numpy_codec, state_format, torch_codec
from hopyard.trial_state.buffers import Buffer
from hopyard.trial_state.object_reduce import NotSerializable, global_name, reduce_object

_MIN_PACKED_INTS = 16
_INT_LIMIT = 1 << 63


class StateWriter:
    def __init__(self) -> None:
        self.head = bytearray()
        self.buffers: list[Buffer] = []
        self._end = 0  # end of the payload so far
        self._reference_numbers: dict[Any, int] = {}  # of values that may occur again, by identity
        self._referenced_values: list[
            Any
        ] = []  # keeps numbered values alive, so that no other object gets the same id

    def write(self, value: Any) -> None:
        write = _PLAIN.get(type(value))
        if write is not None:
            write(self, value)
        elif not (torch_codec.write_torch(self, value) or numpy_codec.write_numpy(self, value)):
            self._object(value)

    # -- the writer interface of the codecs
    # ------------------------------------------------------------------------------------

    def write_reference(self, value: Any, key: Any = None) -> bool:
        """Writes a reference and returns True if the value occurred before; otherwise numbers it. key: used
        in place of its id."""
        key = id(value) if key is None else key
        number = self._reference_numbers.get(key)
        if number is None:
            self._reference_numbers[key] = len(self._reference_numbers)
            self._referenced_values.append(value)
            return False
        self.head += state_format.SAME
        self.write_length(number)
        return True

    def write_length(self, number: int) -> None:
        """Writes a length; small ones, which are most, take one byte."""
        if number < 255:
            self.head.append(number)
        else:
            self.head.append(255)
            self.head += state_format.LENGTH.pack(number)

    def append_text(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self.write_length(len(data))
        self.head += data

    def write_buffer(self, buffer: Buffer) -> None:
        """Writes a small buffer in place, a large one to the payload. The reader derives its size from the
        values before it."""
        if buffer.size <= state_format.INLINE_BYTES:
            self.head += buffer.to_bytes()
            return
        buffer.offset = state_format.align_up(self._end)
        self._end = buffer.offset + buffer.size
        self.buffers.append(buffer)

    def write_part(self, step: str, value: Any) -> None:
        """Writes a part of a value. step: its path from the value, for errors."""
        try:
            self.write(value)
        except NotSerializable as error:
            error.path.append(step)
            raise

    # -- plain values ----------------------------------------------------------------------------------------

    def _none(self, _: None) -> None:
        self.head += state_format.NONE

    def _ellipsis(self, _: Any) -> None:
        self.head += state_format.ELLIPSIS

    def _bool(self, value: bool) -> None:
        self.head += state_format.TRUE if value else state_format.FALSE

    def _int(self, value: int) -> None:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        self.head += state_format.INT
        self.write_length(len(data))
        self.head += data

    def _float(self, value: float) -> None:
        self.head += state_format.FLOAT_TAG + state_format.FLOAT.pack(value)

    def _complex(self, value: complex) -> None:
        self.head += state_format.COMPLEX_TAG + state_format.COMPLEX.pack(value.real, value.imag)

    def _str(self, value: str) -> None:
        self.head += state_format.STR
        self.append_text(value)

    def _bytes(self, value: bytes) -> None:
        self.head += state_format.BYTES
        self.write_length(len(value))
        self.write_buffer(Buffer.from_bytes(value))

    def _bytearray(self, value: bytearray) -> None:
        if self.write_reference(value):
            return
        self.head += state_format.BYTEARRAY
        self.write_length(len(value))
        self.write_buffer(Buffer.from_bytes(value))

    def _tuple(self, value: tuple[Any, ...]) -> None:
        if (
            len(value) >= _MIN_PACKED_INTS
            and set(map(type, value)) == {int}
            and all(-_INT_LIMIT <= number < _INT_LIMIT for number in value)
        ):
            self.head += state_format.INTS
            self.write_length(len(value))
            self.write_buffer(Buffer.from_bytes(_little_endian(array("q", value))))
            return
        self.head += state_format.TUPLE
        self._elements(value)

    def _list(self, value: list[Any]) -> None:
        if self.write_reference(value):
            return
        self.head += state_format.LIST
        self._elements(value)

    def _elements(self, value: Any) -> None:
        self.write_length(len(value))
        for index, element in enumerate(value):
            try:
                self.write(element)
            except NotSerializable as error:
                error.path.append(f"[{index}]")
                raise

    def _dict(self, value: dict[Any, Any]) -> None:
        if self.write_reference(value):
            return
        self.head += state_format.DICT
        self.write_pairs(len(value), value.items())

    def _ordered_dict(self, value: OrderedDict[Any, Any]) -> None:
        """Writes a plain one compactly, since modules have a dozen each. One with attributes, such as a
        `state_dict()`, is written as an object."""
        if value.__dict__:
            self._object(value)
        elif not self.write_reference(value):
            self.head += state_format.ORDERED_DICT
            self.write_pairs(len(value), value.items())

    def write_pairs(self, count: int, pairs: Any) -> None:
        self.write_length(count)
        for key, value in pairs:
            try:
                self.write(key)
                self.write(value)
            except NotSerializable as error:
                error.path.append(f"[{_describe_key(key)}]")
                raise

    def _set(self, value: set[Any]) -> None:
        if not self.write_reference(value):
            self.head += state_format.SET
            self._sorted(value)

    def _frozenset(self, value: frozenset[Any]) -> None:
        self.head += state_format.FROZENSET
        self._sorted(value)

    def _sorted(self, value: set[Any] | frozenset[Any]) -> None:
        """Writes the elements in the order of their bytes: the order of a set of strings differs between
        processes."""
        elements = list(value)
        if all(map(_is_plain, elements)):
            elements.sort(key=_bytes_of)
        self.write_length(len(elements))
        for element in elements:
            self.write_part(".{…}", element)

    # -- everything else -------------------------------------------------------------------------------------

    def _global(self, value: Any) -> None:
        module, name = global_name(value)
        self.head += state_format.GLOBAL
        self.append_text(module)
        self.append_text(name)

    def _object(self, value: Any) -> None:
        is_numbered = id(value) in self._reference_numbers
        if is_numbered:
            self.write_reference(value)
            return
        if isinstance(value, type):
            self._global(value)
            return
        reduction = reduce_object(value)
        if isinstance(reduction, str):
            module, name = global_name(value, reduction)
            self.head += state_format.GLOBAL
            self.append_text(module)
            self.append_text(name)
            return
        self.head += state_format.OBJECT
        self.write_part("", reduction.make)
        self.write_part("", reduction.arguments)
        self._referenced_values.append(reduction)
        self.write_reference(value)  # from here on it can be referenced, also from its own parts
        self.write_part("", reduction.setter)
        self._state(reduction.state)
        if reduction.elements is None:
            self.head += state_format.NONE
        else:
            self.head += state_format.LIST
            self._elements(reduction.elements)
        if reduction.pairs is None:
            self.head += state_format.NONE
        else:
            self.head += state_format.DICT
            self.write_pairs(len(reduction.pairs), reduction.pairs)

    def _state(self, state: Any) -> None:
        """Writes the state of an object; attributes get their names in errors."""
        if (
            type(state) is dict
            and all(type(key) is str for key in state)
            and id(state) not in self._reference_numbers
        ):
            self.write_reference(state)
            self.head += state_format.DICT
            self.write_length(len(state))
            for key, attribute in state.items():
                self.write(key)
                self.write_part(f".{key}", attribute)
        else:
            self.write_part("", state)


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _is_plain(value: Any) -> bool:
    return type(value) in _FIXED or (type(value) in (tuple, frozenset) and all(map(_is_plain, value)))


def _bytes_of(value: Any) -> bytes:
    writer = StateWriter()
    writer.write(value)
    return bytes(writer.head) + b"".join(leaf.to_bytes() for leaf in writer.buffers)


def _describe_key(key: Any) -> str:
    return repr(key)[:60] if type(key) in _FIXED else f"<{type(key).__name__}>"


_FIXED = frozenset({str, int, float, bool, bytes, type(None), complex})
_PLAIN: dict[type, Callable[[StateWriter, Any], None]] = {
    type(None): StateWriter._none,
    type(Ellipsis): StateWriter._ellipsis,
    bool: StateWriter._bool,
    int: StateWriter._int,
    float: StateWriter._float,
    complex: StateWriter._complex,
    str: StateWriter._str,
    bytes: StateWriter._bytes,
    bytearray: StateWriter._bytearray,
    tuple: StateWriter._tuple,
    list: StateWriter._list,
    dict: StateWriter._dict,
    OrderedDict: StateWriter._ordered_dict,
    set: StateWriter._set,
    frozenset: StateWriter._frozenset,
    type: StateWriter._global,
    types.FunctionType: StateWriter._global,
    types.BuiltinFunctionType: StateWriter._object,
}
