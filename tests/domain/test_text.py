"""What may be in one line, and how text of other people is shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hopyard.domain.text import is_line, shown, shown_lines

HARMLESS = ["", "lr=0.1 ok", "größe 模型 مرحبا", "👩‍👩‍👧 🏳️‍🌈", "می‌خواهم", "a\u3000b", "icon \ue0b0"]
ACTIVE = ["\x1b]52;c;AAAA\x07", "a\nb", "a\r", "\x9b2J", "\x7f", "a\u202eb", "a\u2066b", "a\u2028b", "\u200f", "\x00", "\x1b[8m"]


@pytest.mark.parametrize("text", HARMLESS)
def test_text_of_all_scripts_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == text
    assert is_line(text)


@pytest.mark.parametrize("text", ACTIVE)
def test_text_that_acts_is_no_line_and_shown_as_escapes(text: str) -> None:
    assert not is_line(text)
    assert shown(text).isprintable()
    assert "\\" in shown(text)


@given(st.text(alphabet=st.characters(exclude_categories=())))
@example("\ufeff\ufdd0\U000e0041\ud800")
def test_what_is_shown_never_acts_on_a_terminal(text: str) -> None:
    kinds = {unicodedata.category(c) for c in shown(text)} & {"Cc", "Zl", "Zp", "Cs", "Cn"}
    assert not kinds
    assert is_line(shown(text))
    assert shown(shown(text)) == shown(text)


def test_further_lines_of_a_message_are_indented() -> None:
    assert shown_lines("one\r\nhint: run \x1b[2J\nroot/prod/7  succeeded") == "one\n  hint: run \\x1b[2J\n  root/prod/7  succeeded"
