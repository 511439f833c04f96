"""A state as bytes: equal states, equal bytes.

Plain values (None, numbers, strings, bytes, tuples, lists, dicts, sets) are written as they are; arrays and
tensors as their numbers, of whatever device, with their order in memory; all else as `__reduce_ex__` gives
it, as pickle does, but without pickle's habit of giving other bytes for equal strings that happen to be one
object. The order of a dict belongs to it; that of a set does not.

`EncodedState` is a plan at first: its size is known before a byte is written, and the large leaves are copied
once, to where they have to go.
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
        "keep in the state only what training resumes from: weights, optimiser and schedule as "
        "`state_dict()`, counters"
    ),
    "build loaders, files, locks and lambdas anew in `train`",
)


class EncodedState:
    """What a state becomes. size: of the whole, in bytes.
    Its leaves still belong to the state, which must not change before `write_into`."""

    def __init__(self, head: bytes, buffers: list[Buffer]) -> None:
        self._head, self._buffers = head, buffers
        start = state_format.align_up(state_format.START.size + len(head))
        end = max([start, *(start + leaf.offset + leaf.size for leaf in buffers[-1:])])
        self._payload_at = start
        self.size = end

    def write_into(self, view: memoryview) -> None:
        """view: writable, at least `size` bytes; all of the first `size` are written."""
        whole = (ctypes.c_char * self.size).from_buffer(view)
        target = WriteTarget(view, ctypes.addressof(whole))
        at = state_format.START.size + len(self._head)
        view[:at] = state_format.START.pack(state_format.MAGIC, self._payload_at, self.size) + self._head
        for leaf in self._buffers:
            offset = self._payload_at + leaf.offset
            view[at:offset] = bytes(offset - at)
            leaf.write(target, offset)
            at = offset + leaf.size
        view[at : self.size] = bytes(self.size - at)
        del whole

    def to_bytes(self) -> bytes:
        data = bytearray(self.size)
        self.write_into(memoryview(data))
        return bytes(data)


def encode(state: Any, *, name: str = "state") -> EncodedState:
    """Raises SpecError naming the path inside the state of what cannot be kept.
    name: what the path begins with; "" its first key."""
    writer = StateWriter()
    try:
        writer.write(state)
    except NotSerializable as unkept:
        steps = [*reversed(unkept.path), ""]
        path = "".join([name or steps[0].strip("[']"), *(steps if name else steps[1:])])
        raise SpecError(f"{path}: {unkept.reason}", hints=_HINTS) from unkept
    except RecursionError as deep:
        raise SpecError(f"{name or 'state'} is nested too deep to be encoded", hints=_HINTS) from deep
    return EncodedState(bytes(writer.head), writer.buffers)
