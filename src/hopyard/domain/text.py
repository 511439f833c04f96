"""Text from other people: what may be in a single line, and how text is shown so that it cannot act on a
terminal.

An escape sequence can write the reader's clipboard, hide rows or forge new ones. A mark of direction can show
a text in another order than it is read. Two names that differ in a character that shows nothing look the
same. All of these are refused in names and labels, and shown as `\\x1b` and `\\u202e` wherever they come
from. Joiners are taken where a script or an emoji uses them.
"""

from __future__ import annotations

import re
import unicodedata

from hopyard.errors import SpecError

# Characters that act on a terminal or on the order of the text: C0, DEL, C1, line and paragraph separators,
# marks of direction.
CONTROLS = "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069"
# Characters that show nothing, so that two texts look the same: soft hyphens, spaces without a width,
# fillers, selectors, tags.
_INVISIBLE = (
    "\\xad\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b\\u2060-\\u2065\\u206a-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0"
    "\\ufff0-\\ufffb\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)
_JOINERS = "\\u200c\\u200d"
# Scripts in which a joiner between two characters changes how they are written: Arabic to Mandaic, Indic,
# Myanmar, Khmer, Mongolian.
_JOINED_SCRIPTS = (
    "\\u0620-\\u065f\\u066e-\\u06ff\\u0710-\\u085f\\u08a0-\\u0dff"
    "\\u1000-\\u109f\\u1780-\\u17b3\\u17b6-\\u17d3\\u1820-\\u18aa"
)
_EMOJI = (  # and symbols that have a form as emoji
    "\\xa9\\xae\\u203c\\u2049\\u2122\\u2139\\u2190-\\u21ff\\u2300-\\u23ff\\u24c2\\u25a0-\\u27bf\\u2900-\\u297f\\u2b00-\\u2bff"
    "\\u3030\\u303d\\u3297\\u3299\\U0001f000-\\U0001faff"
)
# What may stand there of joiners and selectors: between characters that use them, after an emoji, and in the
# emoji of a key (`1` in a box). Each text matches in one way only, so that no text takes long.
_JOINED_SEQUENCE = (
    f"[{_JOINED_SCRIPTS}](?:[{_JOINERS}][{_JOINED_SCRIPTS}])+"
    f"|[{_EMOJI}][\\ufe0e\\ufe0f]?(?:\\u200d[{_EMOJI}]\\ufe0f?)+|[{_EMOJI}][\\ufe0e\\ufe0f]|[0-9#*]\\ufe0f\\u20e3"
)
LINE_PATTERN = f"(?:[^{CONTROLS}{_INVISIBLE}{_JOINERS}]|{_JOINED_SEQUENCE})*"
LINE_RULE = "one line, without control characters, marks of direction and characters that are not visible"

_LINE = re.compile(LINE_PATTERN)
_ALLOWED_SEQUENCE = re.compile(f"({_JOINED_SEQUENCE})")
_INVISIBLE_PATTERN = re.compile(f"[{_INVISIBLE}]")
_HIDDEN_PATTERN = re.compile(f"[{_INVISIBLE}{_JOINERS}]")
_MAX_COMBINING_MARKS = 8  # one upon another over one letter; more run into the lines above and below
# formatting characters that are visible
_ARABIC_SIGNS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def is_line(text: str) -> bool:
    """Whether `text` is one line of characters that are visible, as labels, keys and metric names are."""
    return (text.isascii() and text.isprintable()) or _LINE.fullmatch(text) is not None


def check_line(text: str, *, subject: str) -> str:
    """Return `text` if it is such a line; else raise SpecError."""
    if not is_line(text):
        raise SpecError(
            f"{subject}: `{escape(text[:200])}` holds characters that are not visible",
            hints=(f"write {LINE_RULE}",),
        )
    return text


def is_plain(text: str) -> bool:
    """Whether `shown(text)` is `text`, in one look. False also for some texts of which it is."""
    # The first refuses all of Cc, Cf, Cs, Co, Cn, Zl, Zp and strange spaces.
    return text.isprintable() and (
        text.isascii() or (_INVISIBLE_PATTERN.search(text) is None and not _has_stacked_marks(text))
    )


def escape(text: str) -> str:
    """`text` as one line that only shows itself: each character that is not visible stands as its escape
    (`\\x1b`, `\\n`)."""
    if is_plain(text):
        return text
    parts = _ALLOWED_SEQUENCE.split(text)  # what stands together is at the odd places
    return _escape_stacked_marks(
        "".join(
            part if at % 2 else "".join(c if _is_visible(c) else _escape_character(c) for c in part)
            for at, part in enumerate(parts)
        )
    )


def escape_lines(text: str) -> str:
    """As `shown`, for text of several lines: those after the first are indented, so that none looks like a
    line of its own."""
    return "\n  ".join(escape(line) for line in text.replace("\r\n", "\n").split("\n"))


def _is_visible(character: str) -> bool:
    if _HIDDEN_PATTERN.fullmatch(character):
        return False
    if character.isprintable() or character in _ARABIC_SIGNS:
        return True
    # spaces of all widths, and the icons of private fonts
    return unicodedata.category(character) in ("Zs", "Co")


def _has_stacked_marks(text: str) -> bool:
    """Whether more marks stand one upon another than any language writes."""
    return _escape_stacked_marks(text) != text


def _escape_stacked_marks(text: str) -> str:
    """`text` with the marks escaped that come after the first few over one letter."""
    if len(text) <= _MAX_COMBINING_MARKS or max(text) < "\u0300":
        return text
    made, above = [], 0
    for c in text:
        above = above + 1 if unicodedata.combining(c) else 0
        made.append(c if above <= _MAX_COMBINING_MARKS else _escape_character(c))
    return "".join(made)


def _escape_character(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return _SHORT_ESCAPES.get(character, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
