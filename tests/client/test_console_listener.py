"""The output of a followed run in a script or notebook."""

from __future__ import annotations

import pytest

from hopyard.client.console_listener import ConsoleListener


def test_incomplete_character_at_the_end_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    listener = ConsoleListener()
    listener.write(0, "stdout", b"abc\xc3")
    listener.flush()
    assert capsys.readouterr().out == "abc\ufffd"
