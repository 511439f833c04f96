"""Git's ignore patterns, matched byte for byte as git matches them: gitignore(5) and git's wildmatch."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import NamedTuple

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GLOB_SPECIAL = re.compile(rb"[*?[\\]")
_SLASH = ord("/")
# POSIX character classes of ASCII, as git defines them: its white space has no form feed and no vertical tab.
_SPACE = frozenset(b" \t\n\r")
_PRINTABLE = frozenset(range(0x20, 0x7F))
_CHARACTER_CLASSES: dict[bytes, frozenset[int]] = {
    b"alnum": frozenset((string.ascii_letters + string.digits).encode()),
    b"alpha": frozenset(string.ascii_letters.encode()),
    b"blank": frozenset(b" \t"),
    b"cntrl": frozenset((*range(0x20), 0x7F)),
    b"digit": frozenset(string.digits.encode()),
    b"graph": _PRINTABLE - _SPACE,
    b"lower": frozenset(string.ascii_lowercase.encode()),
    b"print": _PRINTABLE,
    b"punct": frozenset(string.punctuation.encode()),
    b"space": _SPACE,
    b"upper": frozenset(string.ascii_uppercase.encode()),
    b"xdigit": frozenset(string.hexdigits.encode()),
}


class PatternMatch(NamedTuple):
    """The last pattern that matches a path. excluded: False for a pattern with `!`.
    is_literal: the pattern has no wildcard, so it names the path itself. line: its number in the file."""

    excluded: bool
    is_literal: bool
    line: int


class _Pattern(NamedTuple):
    number: int
    only_folders: bool
    result: PatternMatch


class _WildcardPattern(NamedTuple):
    """regex: matches the whole name, or the whole path if the pattern has a slash."""

    pattern: _Pattern
    matches_name: bool
    regex: re.Pattern[bytes]


class GitIgnore:
    """The patterns of one ignore file. `data` is the content of the file, in any encoding.

    Paths are bytes, relative to the folder of the file. A pattern that git cannot match (an open bracket, a
    backslash at the end) matches nothing here either.
    """

    def __init__(self, data: bytes) -> None:
        self._by_name: dict[bytes, list[_Pattern]] = {}
        self._by_path: dict[bytes, list[_Pattern]] = {}
        self._wildcards: list[_WildcardPattern] = []  # the last one first
        for number, line in _lines(data):
            self._add(number, line)
        self._wildcards.reverse()

    def last_match(self, path: bytes, *, is_folder: bool) -> PatternMatch | None:
        """Returns the last pattern that matches the path, None if there is none."""
        name = path[path.rfind(b"/") + 1 :]
        last: _Pattern | None = None
        for literals in (self._by_name.get(name, ()), self._by_path.get(path, ())):
            for pattern in literals:
                if (is_folder or not pattern.only_folders) and (last is None or pattern.number > last.number):
                    last = pattern
        for pattern, matches_name, regex in self._wildcards:
            if last is not None and pattern.number < last.number:
                break
            if (is_folder or not pattern.only_folders) and regex.fullmatch(name if matches_name else path):
                last = pattern
                break
        return None if last is None else last.result

    def _add(self, number: int, line: bytes) -> None:
        negative = line.startswith(b"!")
        text = line[1:] if negative else line
        only_folders = text.endswith(b"/")
        if only_folders:
            text = text[:-1]
        matches_name = b"/" not in text
        special = _GLOB_SPECIAL.search(text)
        pattern = _Pattern(number, only_folders, PatternMatch(not negative, special is None, number))
        if not matches_name and text.startswith(b"/"):
            text = text[1:]
        if special is None:
            literals = self._by_name if matches_name else self._by_path
            literals.setdefault(text, []).append(pattern)
            return
        expression = _expression(text, is_path=not matches_name)
        if expression is not None:
            self._wildcards.append(_WildcardPattern(pattern, matches_name, re.compile(expression, re.DOTALL)))


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the patterns of a file with the numbers of their lines, without line ends, comments and trailing
    spaces."""
    for number, line in enumerate(data.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), start=1):
        text = line.removesuffix(b"\r").partition(b"\0")[0]  # git reads C strings
        if text and not text.startswith(b"#") and (text := _without_trailing_spaces(text)):
            yield number, text


def _without_trailing_spaces(text: bytes) -> bytes:
    """Returns the text without its trailing spaces. A backslash protects the character after it."""
    end = at = 0
    while at < len(text):
        if text[at] == ord("\\"):
            if at + 1 == len(text):
                return text
            at += 2
            end = at
            continue
        at += 1
        if text[at - 1] != ord(" "):
            end = at
    return text[:end]


def _expression(pattern: bytes, *, is_path: bool) -> bytes | None:
    """Returns a regular expression for the whole pattern, None for a pattern that matches nothing.

    is_path: a wildcard matches no slash, except for `**` between slashes. Git compares the part before the
    first wildcard literally, so that `**` after it counts as the start of a path (`a**/b` matches `a/x/b`).
    """
    special = _GLOB_SPECIAL.search(pattern)
    start = special.start() if special else len(pattern)
    expression, at = _GlobPattern(is_path=is_path), start
    expression.add(re.escape(pattern[:start]))
    any_byte = b"[^/]" if is_path else b"."
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"*":
            end = at
            while pattern[end : end + 1] == b"*":
                end += 1
            is_any_folder = (
                is_path
                and end - at > 1
                and (at == start or pattern[at - 1] == _SLASH)
                and (end == len(pattern) or pattern[end] == _SLASH or pattern[end : end + 2] == b"\\/")
            )
            if is_any_folder and pattern[end : end + 1] == b"/":
                expression.add_folders(b"(?:.*?/)??")
                end += 1
            elif is_any_folder:
                expression.add_folders(b".*?")
            else:
                expression.add_star()
            at = end
        elif byte == b"?":
            expression.add(any_byte)
            at += 1
        elif byte == b"[":
            bracket = _parse_bracket(pattern, at + 1)
            if bracket is None:
                return None
            allowed, at = bracket
            expression.add(_class_expression(allowed - {_SLASH} if is_path else allowed))
        elif byte == b"\\":
            if at + 1 == len(pattern):
                return None
            expression.add(re.escape(pattern[at + 1 : at + 2]))
            at += 2
        else:
            expression.add(re.escape(byte))
            at += 1
    return expression.finish()


class _GlobPattern:
    """Builds a regular expression that takes polynomial time, however many stars it has.

    The part after a star is found once, at its first place: each later star can pass over the rest. With a
    slash, the part up to the next star has at most one place. The part up to the next `**` ends with a slash,
    so its first place ends first. Only the last star of each kind may try further places.
    """

    def __init__(self, *, is_path: bool) -> None:
        self._star = b"[^/]*?" if is_path else b".*?"
        self._folders: bytes | None = None  # the last `**`
        self._done: list[bytes] = []  # up to the last `**`
        self._part: list[bytes] = []  # after it, up to the last star
        self._run: list[bytes] = []  # after the last star
        self._has_star = False

    def add(self, expression: bytes) -> None:
        """Adds an expression of a fixed length."""
        self._run.append(expression)

    def add_star(self) -> None:
        """Adds a star that matches any part of a name."""
        self._close_run()
        self._has_star = True

    def add_folders(self, expression: bytes) -> None:
        """Adds an expression for any number of folders."""
        self._close_run()
        self._close_part()
        self._folders = expression

    def finish(self) -> bytes:
        """Returns the whole expression."""
        star = self._star if self._has_star else b""
        return b"".join((*self._done, self._folders or b"", *self._part, star, *self._run))

    def _close_run(self) -> None:
        run = b"".join(self._run)
        self._part.append(b"(?>" + self._star + run + b")" if self._has_star else run)
        self._run, self._has_star = [], False

    def _close_part(self) -> None:
        part = b"".join(self._part)
        self._done.append(part if self._folders is None else b"(?>" + self._folders + part + b")")
        self._part = []


def _parse_bracket(pattern: bytes, at: int) -> tuple[frozenset[int], int] | None:
    """Returns the bytes that a bracket expression allows, and the position after it. Returns None for an
    expression without an end or with an unknown class. at: the position after `[`."""
    negative = pattern[at : at + 1] in (b"!", b"^")
    at += negative
    allowed: set[int] = set()
    previous, is_first = 0, True
    while is_first or pattern[at : at + 1] != b"]":
        is_first = False
        if at >= len(pattern):
            return None
        byte = pattern[at]
        if byte == ord("\\"):
            at += 1
            if at >= len(pattern):
                return None
            byte = pattern[at]
            allowed.add(byte)
        elif byte == ord("-") and previous and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            if pattern[at] == ord("\\"):
                at += 1
                if at >= len(pattern):
                    return None
            allowed.update(range(previous, pattern[at] + 1))
            byte = 0
        elif pattern[at : at + 2] == b"[:":
            end = pattern.find(b"]", at + 2)
            if end < 0:
                return None
            if end == at + 2 or pattern[end - 1] != ord(":"):
                allowed.add(byte)
            else:
                members = _CHARACTER_CLASSES.get(pattern[at + 2 : end - 1])
                if members is None:
                    return None
                allowed |= members
                byte, at = 0, end
        else:
            allowed.add(byte)
        previous = byte
        at += 1
    return frozenset(range(1, 256)) - allowed if negative else frozenset(allowed), at + 1


def _class_expression(allowed: frozenset[int]) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(allowed)) + b"]" if allowed else b"(?!)"
