"""The keys that end a connection."""

from __future__ import annotations

import pytest

from hopyard.client.terminal_mode import EscapeKeys


@pytest.mark.parametrize(
    ("typed", "passed", "ends"),
    [
        ([b"~."], b"", True),
        ([b"~", b"."], b"", True),
        ([b"ls\r", b"~", b".", b"more"], b"ls\r", True),
        ([b"a~."], b"a~.", False),
        ([b"~~."], b"~.", False),
        ([b"~ls\r"], b"~ls\r", False),
    ],
)
def test_tilde_and_dot_at_the_start_of_a_line_end_it(typed: list[bytes], passed: bytes, ends: bool) -> None:
    keys, got, ended = EscapeKeys(), b"", False
    for part in typed:
        if not ended:
            data, ended = keys.feed(part)
            got += data
    assert (got, ended) == (passed, ends)
