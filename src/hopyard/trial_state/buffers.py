"""A run of bytes in an encoded state, and how it is written there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

_copy = ctypes.memmove  # releases the GIL


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The memory to which a state is written: a view of the whole, and its start address."""

    view: memoryview
    address: int


class Buffer:
    """size: in bytes. offset: from the start of the payload, once it is assigned. holder: keeps the memory
    alive."""

    __slots__ = ("_address", "_fill", "holder", "offset", "size")

    def __init__(
        self, size: int, holder: Any, *, address: int = 0, fill: Callable[[memoryview], None] | None = None
    ) -> None:
        """Its bytes are at `address` in memory, or `fill` writes them."""
        self.size, self.holder, self.offset = size, holder, 0
        self._address, self._fill = address, fill

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Buffer:
        def fill(view: memoryview) -> None:
            view[:] = data

        return cls(len(data), data, fill=fill)

    def write(self, target: WriteTarget, offset: int) -> None:
        if self._fill is None:
            _copy(target.address + offset, self._address, self.size)
        else:
            self._fill(target.view[offset : offset + self.size])

    def to_bytes(self) -> bytes:
        if self._fill is None:
            return ctypes.string_at(self._address, self.size)
        data = bytearray(self.size)
        self._fill(memoryview(data))
        return bytes(data)


class ValueWriter(Protocol):
    """The interface to which the codecs write; see `writer.StateWriter`."""

    head: bytearray

    def write(self, value: Any) -> None: ...

    def write_part(self, step: str, value: Any) -> None: ...

    def write_reference(self, value: Any, key: Any = None) -> bool: ...

    def write_length(self, number: int) -> None: ...

    def append_text(self, text: str) -> None: ...

    def write_buffer(self, buffer: Buffer) -> None: ...


class ValueReader(Protocol):
    """The interface from which the codecs read; see `decode.StateReader`."""

    def read(self) -> Any: ...

    def add_reference(self, value: Any) -> int: ...

    def replace_reference(self, number: int, value: Any) -> None: ...

    def remaining_bytes(self) -> int: ...

    def read_byte(self) -> int: ...

    def read_length(self) -> int: ...

    def read_text(self) -> str: ...

    def read_buffer(self, size: int) -> memoryview | bytearray: ...
