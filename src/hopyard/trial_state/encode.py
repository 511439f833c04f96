"""Encodes a state as bytes: equal states become equal bytes.

Plain values (None, numbers, strings, bytes, tuples, lists, dicts, sets) are written directly. Arrays and
tensors are written as their numbers, from any device, in their memory order. All other objects are written as
`__reduce_ex__` returns them, as in pickle. Unlike in pickle, the bytes do not depend on whether equal strings
are one object. The order of a dict is part of its value; that of a set is not.

`EncodedState` is a plan first: its size is known before any byte is written, and large leaves are copied only
once, to their final place.
"""

from __future__ import annotations

import ctypes
from typing import Any

from hopyard.errors import SpecError
from hopyard.trial_state import state_format
from hopyard.trial_state.buffers import Buffer, WriteTarget
from hopyard.trial_state.object_reduce import NotSerializable
from hopyard.trial_state.writer import StateWriter

_HINTS = (
    (
        "keep in the state only the data to resume training: weights, optimiser and schedule as "
        "`state_dict()`, counters"
    ),
    "create loaders, files, locks and lambdas again in `train`",
)


class EncodedState:
    """The encoded form of a state. size: in bytes, in total. Its leaves still belong to the state, which must
    not change before `write_into`."""

    def __init__(self, head: bytes, buffers: list[Buffer]) -> None:
        self._head, self._buffers = head, buffers
        start = state_format.align_up(state_format.START.size + len(head))
        end = max([start, *(start + leaf.offset + leaf.size for leaf in buffers[-1:])])
        self._payload_at = start
        self.size = end

    def write_into(self, view: memoryview) -> None:
        """view: writable, at least `size` bytes; exactly the first `size` bytes are written."""
        buffer = (ctypes.c_char * self.size).from_buffer(view)
        target = WriteTarget(view, ctypes.addressof(buffer))
        position = state_format.START.size + len(self._head)
        view[:position] = (
            state_format.START.pack(state_format.MAGIC, self._payload_at, self.size) + self._head
        )
        for leaf in self._buffers:
            offset = self._payload_at + leaf.offset
            view[position:offset] = bytes(offset - position)
            leaf.write(target, offset)
            position = offset + leaf.size
        view[position : self.size] = bytes(self.size - position)
        del buffer

    def to_bytes(self) -> bytes:
        data = bytearray(self.size)
        self.write_into(memoryview(data))
        return bytes(data)


def encode(state: Any, *, name: str = "state") -> EncodedState:
    """Encodes a state. Raises SpecError with the path of a part that cannot be serialized. name: the
    beginning of the path; "" for its first key."""
    writer = StateWriter()
    try:
        writer.write(state)
    except NotSerializable as error:
        steps = [*reversed(error.path), ""]
        path = "".join([name or steps[0].strip("[']"), *(steps if name else steps[1:])])
        raise SpecError(f"{path}: {error.reason}", hints=_HINTS) from error
    except RecursionError as error:
        raise SpecError(f"{name or 'state'} is nested too deep to be encoded", hints=_HINTS) from error
    return EncodedState(bytes(writer.head), writer.buffers)
