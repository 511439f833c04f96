"""The cursor of an answer with series: how many points of each series the client has, and their checksum. A
client that sends it gets only later points; a series that has changed otherwise is sent again in full."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping

import msgspec

from hopyard.domain.ids import RunId
from hopyard.errors import SpecError

_MAX_DECODED_BYTES = 8 * 1024 * 1024
SeriesId = tuple[RunId, int | None, str]  # the rank is None if none was requested


class SeriesMark(msgspec.Struct, array_like=True, frozen=True):
    """The first `length` points of a series, with their checksum."""

    length: int
    checksum: int


_decoder = msgspec.json.Decoder(list[tuple[RunId, int | None, dict[str, SeriesMark]]])


def encode_cursor(marks: Mapping[SeriesId, SeriesMark]) -> str:
    """Returns the cursor as a word for an address."""
    by_replica: dict[tuple[RunId, int | None], dict[str, SeriesMark]] = {}
    for (run, rank, name), mark in marks.items():
        by_replica.setdefault((run, rank), {})[name] = mark
    rows = [(run, rank, names) for (run, rank), names in by_replica.items()]
    return base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(rows), 1)).decode().rstrip("=")


def decode_cursor(text: str) -> dict[SeriesId, SeriesMark]:
    """Raises SpecError for a text that `encode_cursor` did not return."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        decompressor = zlib.decompressobj()
        decoded = decompressor.decompress(data, _MAX_DECODED_BYTES)
        if not decompressor.eof:
            raise ValueError("truncated, or too long")
        rows = _decoder.decode(decoded)
    except (ValueError, binascii.Error, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise SpecError(
            "since: this is not a cursor of an earlier answer",
            hints=("pass `cursor` of the last answer, or leave `since` out to read all points",),
        ) from error
    return {(run, rank, name): mark for run, rank, names in rows for name, mark in names.items()}
