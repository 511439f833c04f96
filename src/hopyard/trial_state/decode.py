"""Decodes a state from its bytes.

As with unpickling, that runs code of the state's classes. Of another user's state only tensors, arrays and
plain values are built.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from hopyard.errors import IntegrityError, SpecError
from hopyard.sdk.safe_values import LIST_TYPES, MAPPING_TYPES, SafeValues, unsafe_value_error
from hopyard.trial_state import numpy_codec, state_format, torch_codec
from hopyard.trial_state.object_reduce import import_global, set_state


def decode(data: Any, *, untrusted: bool = False) -> Any:
    """Returns the state in `data`, a writable buffer of exactly one state that no other code uses: tensors
    and arrays are views of it from now on.

    untrusted: another user's study made it. Raises IntegrityError if it is incomplete. Raises SpecError if a
    class or function of it is not found here, or is not plain in an untrusted one.
    """
    view = memoryview(data).cast("B")
    if len(view) < state_format.START.size:
        raise IntegrityError(f"a state of {len(view)} bytes is incomplete")
    magic, payload_at, size = state_format.START.unpack(view[: state_format.START.size])
    if magic != state_format.MAGIC or size != len(view) or payload_at > size:
        raise IntegrityError(
            f"incomplete state: {len(view)} bytes that begin with {bytes(magic)!r} and declare {size}"
        )
    reader = StateReader(_align_view(view), payload_at, untrusted=untrusted)
    try:
        return reader.read_state()
    except (ImportError, AttributeError) as error:
        hint = (
            "the state was made by code that differs from this worker's; a study's code must not change "
            "while it runs"
        )
        raise SpecError(f"a state cannot be read here: {error}", hints=(hint,)) from error
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise IntegrityError(f"a state is damaged: {error!r}") from error
    except (SpecError, IntegrityError):
        raise
    except Exception as error:
        if not untrusted:  # the error comes from code that the state runs
            raise
        raise IntegrityError(f"a state is damaged: {error!r}") from error


def _align_view(view: memoryview) -> memoryview:
    """Returns an aligned view. Libraries may use other instructions, and add in another order, depending on
    the alignment of numbers."""
    if len(view) and ctypes.addressof(ctypes.c_char.from_buffer(view)) % state_format.ALIGN == 0:
        return view
    copy = memoryview(mmap.mmap(-1, len(view)))
    copy[:] = view
    return copy


class StateReader:
    """Reads values one after another, in the order of writing."""

    def __init__(self, view: memoryview, payload_at: int, *, untrusted: bool = False) -> None:
        self._view, self._payload_at = view, payload_at
        self._plain = SafeValues(len(view)) if untrusted else None
        self._position = state_format.START.size
        self._end = 0
        self._references: list[Any] = []  # by number, the values that references can name

    def read_state(self) -> Any:
        state = self.read()
        return state if self._plain is None else self._plain.check_value(state)

    def read(self) -> Any:
        tag = self._view[self._position]
        self._position += 1
        return _READERS[tag](self)

    # -- the reader interface of the codecs
    # ------------------------------------------------------------------------------------

    def add_reference(self, value: Any) -> int:
        self._references.append(value)
        return len(self._references) - 1

    def replace_reference(self, number: int, value: Any) -> None:
        self._references[number] = value

    def read_byte(self) -> int:
        self._position += 1
        return self._view[self._position - 1]

    def read_length(self) -> int:
        small = self.read_byte()
        if small < 255:
            return small
        self._position += 8
        return int(state_format.LENGTH.unpack(self._view[self._position - 8 : self._position])[0])

    def remaining_bytes(self) -> int:
        """Returns how many bytes remain. Every value takes at least one."""
        return len(self._view) - self._position

    def read_text(self) -> str:
        return str(self._read_raw(self.read_length()), "utf-8", "surrogatepass")

    def read_buffer(self, size: int) -> memoryview | bytearray:
        """Returns writable memory that no other value uses."""
        if size <= state_format.INLINE_BYTES:
            return bytearray(self._read_raw(size))  # a bytearray's address is aligned for any element
        start = self._payload_at + state_format.align_up(self._end)
        self._end = state_format.align_up(self._end) + size
        if start + size > len(self._view):
            raise IndexError("the payload is truncated")
        return self._view[start : start + size]

    def _read_raw(self, size: int) -> memoryview:
        start, self._position = self._position, self._position + size
        if self._position > len(self._view):
            raise IndexError("a value is truncated")
        return self._view[start : self._position]

    # -- values ----------------------------------------------------------------------------------------------

    def _int(self) -> int:
        return int.from_bytes(self._read_raw(self.read_length()), "little", signed=True)

    def _float(self) -> float:
        return float(state_format.FLOAT.unpack(self._read_raw(8))[0])

    def _complex(self) -> complex:
        return complex(*state_format.COMPLEX.unpack(self._read_raw(16)))

    def _bytes(self) -> bytes:
        return bytes(self.read_buffer(self.read_length()))

    def _bytearray(self) -> bytearray:
        number = self.add_reference(None)
        value = bytearray(self.read_buffer(self.read_length()))
        self.replace_reference(number, value)
        return value

    def _tuple(self) -> tuple[Any, ...]:
        return tuple([self.read() for _ in range(self.read_length())])

    def _ints(self) -> tuple[int, ...]:
        values = array("q", bytes(self.read_buffer(self.read_length() * 8)))
        if sys.byteorder == "big":
            values.byteswap()
        return tuple(values)

    def _list(self) -> list[Any]:
        result: list[Any] = []
        self.add_reference(result)
        result.extend(self.read() for _ in range(self.read_length()))  # elements may refer to `result`
        return result

    def _dict(self) -> dict[Any, Any]:
        return self._fill_mapping({})

    def _ordered_dict(self) -> dict[Any, Any]:
        return self._fill_mapping(OrderedDict())

    def _fill_mapping(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        self.add_reference(mapping)
        for _ in range(self.read_length()):
            key = self._hashable()
            mapping[key] = self.read()
        return mapping

    def _set(self) -> set[Any]:
        result: set[Any] = set()
        self.add_reference(result)
        result.update([self._hashable() for _ in range(self.read_length())])
        return result

    def _frozenset(self) -> frozenset[Any]:
        return frozenset([self._hashable() for _ in range(self.read_length())])

    def _reference(self) -> Any:
        return self._references[self.read_length()]

    def _array(self) -> Any:
        number = self.add_reference(None)
        array_value = numpy_codec.read_array(self)
        self.replace_reference(number, array_value)
        return array_value

    def _global(self) -> Any:
        module, name = self.read_text(), self.read_text()
        if not module or module.startswith("."):
            raise IntegrityError(f"a state is damaged: {module!r} is not a module name")
        return (
            import_global(module, name) if self._plain is None else self._plain.resolve_global(module, name)
        )

    def _object(self) -> Any:
        constructor, arguments = self.read(), self.read()
        if self._plain is not None:
            return self._plain_object(self._plain, constructor, arguments)
        if not callable(constructor) or not isinstance(arguments, tuple):
            raise IntegrityError(
                f"a state is damaged: {constructor!r} cannot build an object from {arguments!r}"
            )
        instance = constructor(*arguments)
        self.add_reference(instance)
        setter, state, elements = self.read(), self.read(), self._elements()
        pairs = self._pairs()
        if elements is not None:
            for element in elements:
                instance.append(element)
        for key, element in pairs or ():
            instance[key] = element
        if state is not None:
            set_state(instance, state, setter)
        return instance

    def _plain_object(self, plain: SafeValues, constructor: Any, arguments: Any) -> Any:
        instance = plain.call(constructor, arguments)
        number = self.add_reference(instance)
        setter, state, elements = self.read(), self.read(), self._elements()
        pairs = self._pairs()
        if setter is not None:
            raise unsafe_value_error(f"{type(instance).__qualname__} with a state setter")
        if (elements is not None and type(instance) not in LIST_TYPES) or (
            pairs is not None and type(instance) not in MAPPING_TYPES
        ):
            raise IntegrityError(f"a state is damaged: a `{type(instance).__qualname__}` has elements")
        if elements is not None:
            instance.extend(elements)
        for key, element in pairs or ():
            instance[plain.check_key(key)] = element
        if state is not None:
            instance = plain.set_state(instance, state)
            self.replace_reference(number, instance)
        return instance

    def _elements(self) -> list[Any] | None:
        if self.read_byte() == state_format.NONE[0]:
            return None
        return [self.read() for _ in range(self.read_length())]

    def _pairs(self) -> list[tuple[Any, Any]] | None:
        if self.read_byte() == state_format.NONE[0]:
            return None
        return [(self.read(), self.read()) for _ in range(self.read_length())]

    def _hashable(self) -> Any:
        """Reads a value that must be hashable."""
        value = self.read()
        if self._plain is not None:
            return self._plain.check_key(value)
        try:
            hash(value)
        except TypeError as error:
            raise IntegrityError(f"a state is damaged: {error}") from error
        return value


_READERS: dict[int, Callable[[StateReader], Any]] = {
    state_format.NONE[0]: lambda _: None,
    state_format.TRUE[0]: lambda _: True,
    state_format.FALSE[0]: lambda _: False,
    state_format.ELLIPSIS[0]: lambda _: Ellipsis,
    state_format.INT[0]: StateReader._int,
    state_format.FLOAT_TAG[0]: StateReader._float,
    state_format.COMPLEX_TAG[0]: StateReader._complex,
    state_format.STR[0]: StateReader.read_text,
    state_format.BYTES[0]: StateReader._bytes,
    state_format.BYTEARRAY[0]: StateReader._bytearray,
    state_format.TUPLE[0]: StateReader._tuple,
    state_format.INTS[0]: StateReader._ints,
    state_format.LIST[0]: StateReader._list,
    state_format.DICT[0]: StateReader._dict,
    state_format.ORDERED_DICT[0]: StateReader._ordered_dict,
    state_format.SET[0]: StateReader._set,
    state_format.FROZENSET[0]: StateReader._frozenset,
    state_format.SAME[0]: StateReader._reference,
    state_format.ARRAY[0]: StateReader._array,
    state_format.SCALAR[0]: numpy_codec.read_scalar,
    state_format.OBJECT_ARRAY[0]: numpy_codec.read_objects,
    state_format.TENSOR[0]: torch_codec.read_tensor,
    state_format.TORCH_WORD[0]: torch_codec.read_constant,
    state_format.GLOBAL[0]: StateReader._global,
    state_format.OBJECT[0]: StateReader._object,
}
