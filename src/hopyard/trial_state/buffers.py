"""A run of bytes in an encoded state, and how it gets there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

_copy = ctypes.memmove  # lets other threads run meanwhile


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Where a state is written to: a view of the whole, and the address at which it begins."""

    view: memoryview
    address: int


class Buffer:
    """size: bytes. offset: from the begin of the payload, once it has a place.
    holder: keeps the memory alive."""

    __slots__ = ("_address", "_fill", "holder", "offset", "size")

    def __init__(
        self, size: int, holder: Any, *, address: int = 0, fill: Callable[[memoryview], None] | None = None
    ) -> None:
        """Its bytes lie at `address` in memory, or `fill` writes them."""
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
    """What a kind of leaf writes itself to; see `writer.Writer`."""

    head: bytearray

    def write(self, value: Any) -> None: ...

    def write_part(self, step: str, value: Any) -> None: ...

    def write_reference(self, value: Any, key: Any = None) -> bool: ...

    def write_length(self, number: int) -> None: ...

    def append_text(self, text: str) -> None: ...

    def write_buffer(self, buffer: Buffer) -> None: ...


class ValueReader(Protocol):
    """What it reads itself from; see `decode.Reader`."""

    def read(self) -> Any: ...

    def add_reference(self, value: Any) -> int: ...

    def replace_reference(self, number: int, value: Any) -> None: ...

    def remaining_bytes(self) -> int: ...

    def read_byte(self) -> int: ...

    def read_length(self) -> int: ...

    def read_text(self) -> str: ...

    def read_buffer(self, size: int) -> memoryview | bytearray: ...
