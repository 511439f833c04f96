"""Messages of consoles, in any division of their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameError, FrameReader

messages = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), max_size=6)


@given(messages, st.integers(1, 30))
def test_messages_arrive_whole_and_in_order(sent: list[tuple[int, bytes]], size: int) -> None:
    data = b"".join(frames.frame(kind, payload) for kind, payload in sent)
    reader, received = FrameReader(), []
    for start in range(0, len(data), size):
        received += reader.feed(data[start : start + size])
    assert received == sent


def test_bytes_that_are_no_messages_are_refused() -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(b"GET / HTTP/1.1\r\n"))
    for payload in (b"[]", b"{", b"\xff"):
        with pytest.raises(FrameError):
            frames.fields_of(payload)
