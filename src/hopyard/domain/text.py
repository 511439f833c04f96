"""Text from other people: what may be in a single line, and how text is shown so that it cannot act on a terminal.

An escape sequence can write the reader's clipboard, hide rows or forge new ones. A mark of direction can show a text in another
order than it is read. Both are refused in names and labels, and shown as `\\x1b` and `\\u202e` wherever they come from.
"""

from __future__ import annotations

import re
import unicodedata

from hopyard.errors import SpecError

# Characters that act on a terminal or on the order of the text: C0, DEL, C1, line and paragraph separators, marks of direction.
CONTROLS = "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069"
LINE_PATTERN = f"[^{CONTROLS}]*"
LINE_RULE = "one line, without control characters and marks of direction"

_LINE = re.compile(LINE_PATTERN)
_JOINERS = "\u200c\u200d"  # of emoji such as families, and of Persian and Indic words: they act on their neighbours only
_ARABIC_SIGNS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"  # formatting characters that are visible
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def is_line(text: str) -> bool:
    """Whether `text` is one line without control characters and marks of direction, as labels, keys and metric names are."""
    return _LINE.fullmatch(text) is not None


def check_line(text: str, *, what: str) -> str:
    """Return `text` if it is such a line; else raise SpecError."""
    if not is_line(text):
        raise SpecError(f"{what}: `{shown(text[:200])}` holds characters that are not visible", hints=(f"write {LINE_RULE}",))
    return text


def shown(text: str) -> str:
    """`text` as one line that only shows itself: each character that is not visible stands as its escape (`\\x1b`, `\\n`)."""
    if text.isprintable():  # of most texts, in one look; it refuses all of Cc, Cf, Cs, Co, Cn, Zl, Zp and strange spaces
        return text
    return "".join(c if _is_visible(c) else _escaped(c) for c in text)


def shown_lines(text: str) -> str:
    """As `shown`, for text of several lines: those after the first are indented, so that none looks like a line of its own."""
    return "\n  ".join(shown(line) for line in text.replace("\r\n", "\n").split("\n"))


def _is_visible(character: str) -> bool:
    if character.isprintable() or character in _JOINERS or character in _ARABIC_SIGNS:
        return True
    return unicodedata.category(character) in ("Zs", "Co")  # spaces of all widths, and the icons of private fonts


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return _SHORT.get(character, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
