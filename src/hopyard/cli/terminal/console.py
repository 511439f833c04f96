"""Text for people: its stream, its colours, and the formats of amounts."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from hopyard.domain.byte_text import format_bytes as format_bytes
from hopyard.domain.duration_text import format_duration as format_duration
from hopyard.domain.json_text import format_json as format_json
from hopyard.domain.metric_values import decode_value
from hopyard.domain.text import escape, is_plain

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
PHASE_STYLE = {
    "running": "cyan",
    "paused": "yellow",
    "starting": "cyan",
    "stopping": "yellow",
    "queued": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
}


# What begins and ends a painted text until it is written: nobody outside this process can know it, so no text
# of other people is painted.
# characters that Unicode leaves to programs themselves
_KEY = "".join(chr(0xFDD0 + byte % 32) for byte in os.urandom(12))
_MARKS = {style: _KEY + chr(0xFDD0 + number) for number, style in enumerate(_STYLES)}
_END = _KEY + "\ufdef"
_MARK = re.compile(f"({_KEY}.)", re.S)
_SEQUENCES = {_END: "\x1b[0m"} | {_MARKS[style]: f"\x1b[{code}m" for style, code in _STYLES.items()}


def print_message(text: str = "") -> None:
    """Prints one message on stderr. Further lines, such as those of a program's error, are indented."""
    sys.stderr.write("\n  ".join(map(render_styles, text.split("\n"))) + "\n")
    sys.stderr.flush()


def print_line(text: str = "") -> None:
    """One line of data, on stdout."""
    sys.stdout.write(render_styles(text) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines of data on stdout. A line break within one is escaped."""
    sys.stdout.write("".join(f"{render_styles(line)}\n" for line in lines))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """CSV on stdout, the names of the columns first. On a terminal, texts show themselves only, as those of
    `out` do."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    plainly = is_terminal(sys.stdout)
    writer.writerows(
        [escape(cell) if plainly and isinstance(cell, str) else cell for cell in row] for row in rows
    )


def render_styles(text: str) -> str:
    """Returns one line for a terminal: with the colours of `paint`, and all other control characters escaped.

    Every output of a command passes through this, because metrics, messages and reasons come from other
    people.
    """
    if is_plain(text):
        return text
    return "".join(_SEQUENCES[part] if part in _SEQUENCES else escape(part) for part in _MARK.split(text))


def escape_controls(text: str) -> str:
    """Returns one line with its colours and all invisible characters escaped. It has the width of the result
    of `render_styles`."""
    if is_plain(text):
        return text
    return "".join(part if part in _SEQUENCES else escape(part) for part in _MARK.split(text))


def strip_styles(text: str) -> str:
    """As `cleaned`, no longer painted."""
    return (
        text
        if is_plain(text)
        else "".join(escape(part) for part in _MARK.split(text) if part not in _SEQUENCES)
    )


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    sys.stdout.write(format_json(value))


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def supports_cursor(stream: TextIO) -> bool:
    """Returns whether `stream` is a terminal that understands cursor movement."""
    return is_terminal(stream) and os.environ.get("TERM", "") not in ("", "dumb")


def supports_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"


def paint(text: str, style: str | None, stream: TextIO | None = None) -> str:
    """`text` in a style where `stream` (stdout by default) shows it and NO_COLOR is not set.
    Nothing depends on it."""
    if not style or os.environ.get("NO_COLOR") or not supports_cursor(stream or sys.stdout):
        return text
    return _MARKS[style] + text + _END


def paint_phase(phase: str, stream: TextIO | None = None) -> str:
    return paint(phase, PHASE_STYLE.get(phase), stream)


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), width: int | None = None
) -> list[str]:
    """Returns the lines of an aligned table. right: columns aligned to the right. width: the last column is
    cut to fit.

    A cell may be painted: only visible characters count for its width.
    """
    rows = [[escape_controls(cell) for cell in row] for row in rows]
    widths = [max([len(head[i]), *(display_width(row[i]) for row in rows)]) for i in range(len(head))]
    if width is not None and len(head) > 1:
        widths[-1] = max(8, min(widths[-1], width - sum(widths[:-1]) - 2 * (len(head) - 1)))
    lines = []
    for row in [list(head), *rows]:
        cells = []
        for i, given in enumerate(row):
            cell = truncate(given, widths[i])
            pad = " " * (widths[i] - display_width(cell))
            cells.append(pad + cell if i in right else cell + pad)
        lines.append("  ".join(cells).rstrip())
    if lines:
        lines[0] = paint(lines[0], "dim")
    return lines


def truncate(text: str, width: int) -> str:
    """Returns as much of the text as fits into the columns, with `…` if it is cut."""
    if display_width(text) <= width:
        return text
    text = strip_styles(text)
    end, columns_left = 0, width - 1
    while end < len(text) and (columns_left := columns_left - display_width(text[end])) >= 0:
        end += 1
    return text[:end] + "…"


def display_width(text: str) -> int:
    """Returns the columns of `text`, without its colours."""
    if text.isascii():
        return len(text)
    import unicodedata

    text = _MARK.sub("", text)
    return sum(
        0
        if unicodedata.combining(c) or c in _NO_WIDTH
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )


_NO_WIDTH = "\u200c\u200d\ufe0e\ufe0f"


def terminal_width(fallback: int = 100) -> int:
    import shutil

    return shutil.get_terminal_size((fallback, 24)).columns


def format_age(seconds: float) -> str:
    """A span in its largest unit alone: `42 s`, `3 min`, `2 h`, `5 d`; rounded to seconds first, as `span`
    is."""
    whole = round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= size:
            return f"{whole // size} {unit}"
    return f"{whole} s"


def format_number(value: float | str | None) -> str:
    """Returns four significant digits, without needless zeros; of larger numbers all digits before the point,
    as for counts. A text is a value of the API that is not finite: `NaN`, `inf` or `-inf` here."""
    number = decode_value(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return _format_finite(number)


def _format_finite(value: float) -> str:
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"


def seconds_since(moment: str | None, until: str | None = None) -> float:
    """Returns the seconds from an RFC 3339 time of the API to another (or now); 0 if it is unknown."""
    if not moment:
        return 0.0
    from datetime import UTC, datetime

    end = datetime.fromisoformat(until) if until else datetime.now(UTC)
    return max(0.0, (end - datetime.fromisoformat(moment)).total_seconds())
