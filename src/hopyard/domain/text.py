"""Text from other people: the characters of a single line, and the escaping of text.

Escaped text cannot act on a terminal. An escape sequence can write the reader's clipboard, hide rows or forge
new ones. A mark of direction can show text in another order than it is read. Two names that differ in an
invisible character look the same. All of these are rejected in names and labels, and escaped as `\\x1b` and
`\\u202e` in any other text. Joiners are allowed where a script or an emoji uses them.
"""

from __future__ import annotations

import re
import unicodedata

from hopyard.errors import SpecError

# Characters that act on a terminal or on the order of the text: C0, DEL, C1, line and paragraph separators,
# marks of direction.
CONTROLS = "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069"
# Invisible characters, which make two different texts look the same: soft hyphens, zero-width spaces,
# fillers, selectors, tags.
_INVISIBLE = (
    "\\xad\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b\\u2060-\\u2065\\u206a-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0"
    "\\ufff0-\\ufffb\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)
_JOINERS = "\\u200c\\u200d"
# Scripts in which a joiner between two characters changes their form: Arabic to Mandaic, Indic, Myanmar,
# Khmer, Mongolian.
_JOINED_SCRIPTS = (
    "\\u0620-\\u065f\\u066e-\\u06ff\\u0710-\\u085f\\u08a0-\\u0dff"
    "\\u1000-\\u109f\\u1780-\\u17b3\\u17b6-\\u17d3\\u1820-\\u18aa"
)
_EMOJI = (  # and symbols that have an emoji form
    "\\xa9\\xae\\u203c\\u2049\\u2122\\u2139\\u2190-\\u21ff\\u2300-\\u23ff\\u24c2\\u25a0-\\u27bf\\u2900-\\u297f\\u2b00-\\u2bff"
    "\\u3030\\u303d\\u3297\\u3299\\U0001f000-\\U0001faff"
)
# Allowed joiners and selectors: between characters that use them, after an emoji, and in the emoji of a key
# (`1` in a box). Each text matches in only one way, so the match time is linear.
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
_MAX_COMBINING_MARKS = 8  # stacked over one letter; more overlap the lines above and below
# visible formatting characters
_ARABIC_SIGNS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def is_line(text: str) -> bool:
    """Returns whether `text` is one line of visible characters, as labels, keys and metric names are."""
    return (text.isascii() and text.isprintable()) or _LINE.fullmatch(text) is not None


def check_line(text: str, *, subject: str) -> str:
    """Returns `text` if it is such a line; else raises SpecError."""
    if not is_line(text):
        raise SpecError(
            f"{subject}: `{escape(text[:200])}` contains characters that are not visible",
            hints=(f"write {LINE_RULE}",),
        )
    return text


def is_plain(text: str) -> bool:
    """Returns whether `escape(text)` surely is `text`; a fast check that may be False for some such texts."""
    # `isprintable` rejects all of Cc, Cf, Cs, Co, Cn, Zl, Zp and unusual spaces.
    return text.isprintable() and (
        text.isascii() or (_INVISIBLE_PATTERN.search(text) is None and not _has_stacked_marks(text))
    )


def escape(text: str) -> str:
    """Returns `text` as one safe line: escapes invisible characters (`\\x1b`, `\\n`)."""
    if is_plain(text):
        return text
    parts = _ALLOWED_SEQUENCE.split(text)  # allowed sequences are at the odd indices
    return _escape_stacked_marks(
        "".join(
            part
            if index % 2
            else "".join(
                character if _is_visible(character) else _escape_character(character) for character in part
            )
            for index, part in enumerate(parts)
        )
    )


def escape_lines(text: str) -> str:
    """Escapes text of several lines: lines after the first are indented, so that none looks like a separate
    line."""
    return "\n  ".join(escape(line) for line in text.replace("\r\n", "\n").split("\n"))


def _is_visible(character: str) -> bool:
    if _HIDDEN_PATTERN.fullmatch(character):
        return False
    if character.isprintable() or character in _ARABIC_SIGNS:
        return True
    # spaces of all widths, and icons of private fonts
    return unicodedata.category(character) in ("Zs", "Co")


def _has_stacked_marks(text: str) -> bool:
    """Returns whether more marks are stacked than any language uses."""
    return _escape_stacked_marks(text) != text


def _escape_stacked_marks(text: str) -> str:
    """Returns `text` with stacked marks escaped after the first few over one letter."""
    if len(text) <= _MAX_COMBINING_MARKS or max(text) < "\u0300":
        return text
    escaped, stacked = [], 0
    for character in text:
        stacked = stacked + 1 if unicodedata.combining(character) else 0
        escaped.append(character if stacked <= _MAX_COMBINING_MARKS else _escape_character(character))
    return "".join(escaped)


def _escape_character(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return _SHORT_ESCAPES.get(character, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def shorten(text: str, limit: int = 120) -> str:
    """Returns the text with `…` in place of its middle if it has more characters than the limit."""
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def first_line(text: str) -> str:
    """Returns the first line, with `…` where more lines follow."""
    line, *more = text.strip().splitlines() or [""]
    return line + (" …" if more else "")
