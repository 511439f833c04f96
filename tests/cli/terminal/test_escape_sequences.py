"""Text of other people never acts on a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.cli import errors
from hopyard.cli.terminal import console
from hopyard.cli.terminal.escape_sequences import EscapeFilter, filter_escapes

TITLE, CLIPBOARD, FORGED = "\x1b]0;PWN\x07", "\x1b]52;c;QUJD\x07", "x\nroot/prod/7  default  succeeded"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replaces the streams by a terminal.

    Not a fixture: the captured streams are restored between a fixture and its test.
    """
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    created = Terminal()
    monkeypatch.setattr(sys, "stdout", created)
    monkeypatch.setattr(sys, "stderr", created)
    return created


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=4))
def test_table_has_one_line_per_row_for_any_content(rows: list[list[str]]) -> None:
    lines = console.format_table(["A", "B", "C"], rows, right=(1,), width=60)
    assert len(lines) == len(rows) + 1
    assert not {"\n", "\r", "\x1b", "\x9b"} & set("".join(lines))


def test_only_own_styles_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    rows = [
        [console.paint_phase("failed"), TITLE + CLIPBOARD, "\x1b[8mhidden"],
        ["ok", FORGED, "\ufdd0\ufdd1"],
    ]
    console.print_lines(console.format_table(["PHASE", "NOTE", "LAST"], rows))
    console.print_line(FORGED)
    console.print_message(FORGED + TITLE)
    errors.print_error(FORGED, [CLIPBOARD])
    written = terminal.getvalue()
    assert "\x1b[31mfailed\x1b[0m" in written
    for sequence in ("\x1b[31m", "\x1b[2m", "\x1b[0m"):
        written = written.replace(sequence, "")
    assert "\x1b" not in written and "\x07" not in written
    assert not any(line.startswith("root/prod") for line in written.splitlines())
    assert "\\x1b]52;c;QUJD\\x07" in written


def test_json_has_no_terminal_controls_and_round_trips(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    value = {"label": "\x1b[2J\x9b2J\u202e\U000e0041", "fine": "größe 👩\u200d👧"}
    console.print_json(value)
    output = capsys.readouterr().out
    assert json.loads(output) == value
    assert "größe 👩\u200d👧" in output
    assert not {"\x1b", "\x9b", "\u202e", "\U000e0041"} & set(output)


def test_coloured_cell_is_truncated_by_display_width(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    assert console.display_width(console.paint("abcdef", "red")) == 6
    assert console.truncate(console.paint("abcdef", "red"), 4) == "abc…"
    assert console.truncate(console.paint("abcd", "red"), 4) == console.paint("abcd", "red")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x1b[31mred\x1b[0m \x1b[38;2;1;2;3mx", b"\x1b[31mred\x1b[0m \x1b[38;2;1;2;3mx"),
        (
            b"\r 50%|###\x1b[A\x1b[K\x1b[?25l\x1b[2K\tok\x07\n",
            b"\r 50%|###\x1b[A\x1b[K\x1b[?25l\x1b[2K\tok^G\n",
        ),
        (b"\x1b]52;c;QUJD\x07", b"^[]52;c;QUJD^G"),
        ("a\u202eb\u2066c\u2028d\u061c".encode(), b"a\\u202eb\\u2066c\\u2028d\\u061c"),
        (b"raw \x9b2J \xff\x84", b"raw \\x9b2J \xff\\x84"),
        (b"\x1b[2J\x1b[H", b"^[[2J^[[H"),
        (b"\x1b[?1049h\x1bc\x1bP1$r\x1b\\", b"^[[?1049h^[c^[P1$r^[\\"),
        (b"\x1b[6n\x1b[c\x05\x0e", b"^[[6n^[[c^E^N"),
        ("\x9b2J größe".encode(), b"\\x9b2J " + "größe".encode()),
        ("plain 👩\u200d👧 \xa0".encode(), "plain 👩\u200d👧 \xa0".encode()),
    ],
)
def test_filter_keeps_colours_and_progress_and_escapes_the_rest(data: bytes, shown: bytes) -> None:
    assert filter_escapes(data) == shown
    for cut in range(len(data) + 1):
        guard = EscapeFilter()
        assert guard.feed(data[:cut]) + guard.feed(data[cut:]) + guard.flush() == shown, cut


def test_unfinished_sequence_does_not_delay_output() -> None:
    guard = EscapeFilter()
    assert guard.feed(b"\x1b[" + b"1;" * 500).startswith(b"^[[1;1;")
    assert guard.feed(b"\n") == b"\n"
