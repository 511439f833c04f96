"""Characters allowed in one line, and the escaped display of text of other users."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hopyard.domain.text import escape, escape_lines, is_line

HARMLESS = [
    "",
    "lr=0.1 ok",
    "größe 模型 مرحبا",
    "क्‍ष ශ්‍රී",
    "❤️‍🔥 ✈️ 1️⃣ 🧑🏽‍🚀 👁️‍🗨️",
    "Việt e\u0302\u0301\u0323",
    "👩‍👩‍👧 🏳️‍🌈",
    "می‌خواهم",
    "a\u3000b",
    "icon \ue0b0",
]
ACTIVE = [
    "\x1b]52;c;AAAA\x07",
    "a\nb",
    "a\r",
    "\x9b2J",
    "\x7f",
    "a\u202eb",
    "a\u2066b",
    "a\u2028b",
    "\u200f",
    "\x00",
    "\x1b[8m",
]
UNSEEN = [
    "a\u200db",
    "a\u200cb",
    "\u200d",
    "a\u200b",
    "soft\xadhyphen",
    "a\u2060b",
    "\ufeffa",
    "a\ufe0f",
    "a\u034fb",
    "\u3164",
    "👩\u200d",
    "👩\u200c👧",
    "👩\u200d\u200d👧",
]
UNSEEN += [
    "می\u200c\u200cخواهم",
    "\u200cمی",
    "🏴\U000e0067\U000e007f",
    "1\ufe0f",
    "葛\U000e0100",
    "\ufff9a",
    "a👩\u200da",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_text_of_all_scripts_is_unchanged(text: str) -> None:
    assert escape(text) == text
    assert is_line(text)


@pytest.mark.parametrize("text", ACTIVE)
def test_terminal_controls_are_escaped(text: str) -> None:
    assert not is_line(text)
    assert escape(text).isprintable()
    assert "\\" in escape(text)


@pytest.mark.parametrize("text", UNSEEN)
def test_invisible_characters_are_escaped(text: str) -> None:
    assert not is_line(text)
    assert "\\" in escape(text)


def test_stacked_combining_marks_are_limited() -> None:
    piled = "a" + "\u0301" * 1000
    assert escape(piled).count("\u0301") < 10
    assert escape(piled).count("\\u0301") > 990


@pytest.mark.parametrize(
    "text",
    ["👩" * 50_000 + "\u200d", "👩\u200d" * 50_000, "می\u200c" * 50_000, "1\ufe0f\u20e3" * 50_000 + "\ufe0f"],
)
def test_long_text_is_checked_in_one_pass(text: str) -> None:
    assert not is_line(text)  # a pattern that matches a text in several ways would take for ever
    assert escape(text).endswith(("\\u200d", "\\u200c", "\\ufe0f"))


EDGES = st.sampled_from("a1👩❤یक\u094d\u200c\u200d\ufe0f\u20e3\u200b\u0301\\")


@given(st.text(alphabet=st.characters(exclude_categories=())) | st.text(EDGES))
@example("\ufeff\ufdd0\U000e0041\ud800")
def test_escaped_text_has_no_terminal_controls(text: str) -> None:
    kinds = {unicodedata.category(c) for c in escape(text)} & {"Cc", "Zl", "Zp", "Cs", "Cn"}
    assert not kinds
    assert is_line(escape(text))
    assert escape(escape(text)) == escape(text)


def test_further_lines_of_a_message_are_indented() -> None:
    assert (
        escape_lines("one\r\nhint: run \x1b[2J\nroot/prod/7  succeeded")
        == "one\n  hint: run \\x1b[2J\n  root/prod/7  succeeded"
    )
