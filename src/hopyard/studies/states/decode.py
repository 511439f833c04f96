"""A state from its bytes. Runs what the state's own classes ask for, as unpickling does, unless it is another
user's: of that only tensors, arrays and plain values are made."""

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
from hopyard.sdk.plain import LISTS, MAPPINGS, PlainValues, not_plain
from hopyard.studies.states import arrays, tags, tensors
from hopyard.studies.states.objects import found_global, set_state


def decode(data: Any, *, foreign: bool = False) -> Any:
    """foreign: another user's study made it. data: a writable buffer that holds one whole state, and nothing
    else uses: tensors and arrays lie in it from now on.

    Raises IntegrityError where it is no whole state, SpecError where a class or function that it needs is not
    found here, or is not plain in a foreign one.
    """
    view = memoryview(data).cast("B")
    if len(view) < tags.START.size:
        raise IntegrityError(f"a state of {len(view)} bytes is no whole one")
    magic, payload_at, size = tags.START.unpack(view[: tags.START.size])
    if magic != tags.MAGIC or size != len(view) or payload_at > size:
        raise IntegrityError(
            f"no whole state: {len(view)} bytes that begin with {bytes(magic)!r} and say that they are {size}"
        )
    reader = Reader(_aligned(view), payload_at, foreign=foreign)
    try:
        return reader.whole()
    except (ImportError, AttributeError) as missing:
        hint = (
            "the state was made by other code than this worker has; a study's code must not change "
            "while it runs"
        )
        raise SpecError(f"a state cannot be read here: {missing}", hints=(hint,)) from missing
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, OverflowError, RecursionError) as bad:
        raise IntegrityError(f"a state is damaged: {bad!r}") from bad
    except (SpecError, IntegrityError):
        raise
    except Exception as bad:
        if not foreign:  # it is the error of code that the state runs
            raise
        raise IntegrityError(f"a state is damaged: {bad!r}") from bad


def _aligned(view: memoryview) -> memoryview:
    """Where libraries may use other instructions, and so add in another order, depending on where numbers
    lie, they always lie alike."""
    if len(view) and ctypes.addressof(ctypes.c_char.from_buffer(view)) % tags.ALIGN == 0:
        return view
    copy = memoryview(mmap.mmap(-1, len(view)))
    copy[:] = view
    return copy


class Reader:
    """Reads values one after another, as they were written."""

    def __init__(self, view: memoryview, payload_at: int, *, foreign: bool = False) -> None:
        self._view, self._payload_at = view, payload_at
        self._plain = PlainValues(len(view)) if foreign else None
        self._at = tags.START.size
        self._end = 0
        self._known: list[Any] = []  # by number, what may be referred to

    def whole(self) -> Any:
        made = self.read()
        return made if self._plain is None else self._plain.checked(made)

    def read(self) -> Any:
        tag = self._view[self._at]
        self._at += 1
        return _READ[tag](self)

    # -- what leaves need
    # --------------------------------------------------------------------------------------

    def remember(self, value: Any) -> int:
        self._known.append(value)
        return len(self._known) - 1

    def replace(self, number: int, value: Any) -> None:
        self._known[number] = value

    def byte(self) -> int:
        self._at += 1
        return self._view[self._at - 1]

    def length(self) -> int:
        small = self.byte()
        if small < 255:
            return small
        self._at += 8
        return int(tags.LENGTH.unpack(self._view[self._at - 8 : self._at])[0])

    def rest(self) -> int:
        """How many bytes there still are. Every value takes one."""
        return len(self._view) - self._at

    def text(self) -> str:
        return str(self._take(self.length()), "utf-8", "surrogatepass")

    def leaf(self, size: int) -> memoryview | bytearray:
        """Writable, and nobody else's."""
        if size <= tags.INLINE_BYTES:
            return bytearray(self._take(size))  # at an address that fits any element
        begin = self._payload_at + tags.aligned(self._end)
        self._end = tags.aligned(self._end) + size
        if begin + size > len(self._view):
            raise IndexError("it ends before its payload does")
        return self._view[begin : begin + size]

    def _take(self, size: int) -> memoryview:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._view):
            raise IndexError("it ends in the middle of a value")
        return self._view[begin : self._at]

    # -- values
    # ---------------------------------------------------------------------------------------------------

    def _int(self) -> int:
        return int.from_bytes(self._take(self.length()), "little", signed=True)

    def _float(self) -> float:
        return float(tags.FLOAT.unpack(self._take(8))[0])

    def _complex(self) -> complex:
        return complex(*tags.COMPLEX.unpack(self._take(16)))

    def _bytes(self) -> bytes:
        return bytes(self.leaf(self.length()))

    def _bytearray(self) -> bytearray:
        number = self.remember(None)
        value = bytearray(self.leaf(self.length()))
        self.replace(number, value)
        return value

    def _tuple(self) -> tuple[Any, ...]:
        return tuple([self.read() for _ in range(self.length())])

    def _ints(self) -> tuple[int, ...]:
        values = array("q", bytes(self.leaf(self.length() * 8)))
        if sys.byteorder == "big":
            values.byteswap()
        return tuple(values)

    def _list(self) -> list[Any]:
        made: list[Any] = []
        self.remember(made)
        made.extend(self.read() for _ in range(self.length()))  # which may refer to `made` themselves
        return made

    def _dict(self) -> dict[Any, Any]:
        return self._fill({})

    def _ordered_dict(self) -> dict[Any, Any]:
        return self._fill(OrderedDict())

    def _fill(self, made: dict[Any, Any]) -> dict[Any, Any]:
        self.remember(made)
        for _ in range(self.length()):
            key = self._key()
            made[key] = self.read()
        return made

    def _set(self) -> set[Any]:
        made: set[Any] = set()
        self.remember(made)
        made.update([self._key() for _ in range(self.length())])
        return made

    def _frozenset(self) -> frozenset[Any]:
        return frozenset([self._key() for _ in range(self.length())])

    def _same(self) -> Any:
        return self._known[self.length()]

    def _array(self) -> Any:
        number = self.remember(None)
        made = arrays.read_array(self)
        self.replace(number, made)
        return made

    def _global(self) -> Any:
        module, name = self.text(), self.text()
        if not module or module.startswith("."):
            raise IntegrityError(f"a state is damaged: {module!r} is no module's name")
        return found_global(module, name) if self._plain is None else self._plain.named(module, name)

    def _object(self) -> Any:
        make, arguments = self.read(), self.read()
        if self._plain is not None:
            return self._plain_object(self._plain, make, arguments)
        if not callable(make) or not isinstance(arguments, tuple):
            raise IntegrityError(f"a state is damaged: no object is made by {make!r} from {arguments!r}")
        made = make(*arguments)
        self.remember(made)
        setter, state, elements = self.read(), self.read(), self._elements()
        pairs = self._pairs()
        if elements is not None:
            for one in elements:
                made.append(one)
        for key, one in pairs or ():
            made[key] = one
        if state is not None:
            set_state(made, state, setter)
        return made

    def _plain_object(self, plain: PlainValues, make: Any, arguments: Any) -> Any:
        made = plain.call(make, arguments)
        number = self.remember(made)
        setter, state, elements = self.read(), self.read(), self._elements()
        pairs = self._pairs()
        if setter is not None:
            raise not_plain(f"{type(made).__qualname__} with a function for its state")
        if (elements is not None and type(made) not in LISTS) or (
            pairs is not None and type(made) not in MAPPINGS
        ):
            raise IntegrityError(f"a state is damaged: a `{type(made).__qualname__}` has elements")
        if elements is not None:
            made.extend(elements)
        for key, one in pairs or ():
            made[plain.key(key)] = one
        if state is not None:
            made = plain.build(made, state)
            self.replace(number, made)
        return made

    def _elements(self) -> list[Any] | None:
        if self.byte() == tags.NONE[0]:
            return None
        return [self.read() for _ in range(self.length())]

    def _pairs(self) -> list[tuple[Any, Any]] | None:
        if self.byte() == tags.NONE[0]:
            return None
        return [(self.read(), self.read()) for _ in range(self.length())]

    def _key(self) -> Any:
        """What was written where only values with a hash can be."""
        value = self.read()
        if self._plain is not None:
            return self._plain.key(value)
        try:
            hash(value)
        except TypeError as bad:
            raise IntegrityError(f"a state is damaged: {bad}") from bad
        return value


_READ: dict[int, Callable[[Reader], Any]] = {
    tags.NONE[0]: lambda _: None,
    tags.TRUE[0]: lambda _: True,
    tags.FALSE[0]: lambda _: False,
    tags.ELLIPSIS[0]: lambda _: Ellipsis,
    tags.INT[0]: Reader._int,
    tags.FLOAT_TAG[0]: Reader._float,
    tags.COMPLEX_TAG[0]: Reader._complex,
    tags.STR[0]: Reader.text,
    tags.BYTES[0]: Reader._bytes,
    tags.BYTEARRAY[0]: Reader._bytearray,
    tags.TUPLE[0]: Reader._tuple,
    tags.INTS[0]: Reader._ints,
    tags.LIST[0]: Reader._list,
    tags.DICT[0]: Reader._dict,
    tags.ORDERED_DICT[0]: Reader._ordered_dict,
    tags.SET[0]: Reader._set,
    tags.FROZENSET[0]: Reader._frozenset,
    tags.SAME[0]: Reader._same,
    tags.ARRAY[0]: Reader._array,
    tags.SCALAR[0]: arrays.read_scalar,
    tags.OBJECT_ARRAY[0]: arrays.read_objects,
    tags.TENSOR[0]: tensors.read,
    tags.TORCH_WORD[0]: tensors.read_word,
    tags.GLOBAL[0]: Reader._global,
    tags.OBJECT[0]: Reader._object,
}
