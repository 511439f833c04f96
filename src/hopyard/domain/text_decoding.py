"""Decodes text files of users: UTF-8, or what their byte order mark names."""

from __future__ import annotations

import codecs
import io
import tokenize

from hopyard.errors import SpecError

# the marks of UTF-32 begin with those of UTF-16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def escape_bytes(text: str) -> str:
    """Returns a word of a command line or a file name with `\\xff` for each byte that is not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a pair of UTF-16
        return text.encode("utf-8", "backslashreplace").decode()


def decode_text(data: bytes, name: str) -> str:
    """Returns the text without its byte order mark. Raises SpecError with the file `name` and the line of a
    byte that its encoding does not allow."""
    mark, encoding = next(((m, e) for m, e in _MARKS if data.startswith(m)), (b"", "utf-8"))
    body = data[len(mark) :]
    try:
        return body.decode(encoding)
    except UnicodeDecodeError as error:
        before = body[: error.start].decode(encoding, errors="replace")
        label = encoding.removesuffix("-le").removesuffix("-be").upper()
        raise SpecError(
            f"{name}: line {before.count(chr(10)) + 1}: not {label}: byte 0x{body[error.start]:02x}",
            hints=("save the file as UTF-8 (its encoding may be Latin-1)",),
        ) from None


def decode_source(data: bytes) -> str:
    """Returns the text of a file of the code, in the encoding that its first two lines declare, as Python
    does; else in UTF-8. A byte that this does not allow becomes U+FFFD."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding, errors="replace")
    except (SyntaxError, LookupError, ValueError):  # no such encoding, or one that is none of texts
        return data.decode(errors="replace")
