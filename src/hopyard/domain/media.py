"""The media of a run: images, audio, video, histograms, tables, texts and figures that its script logged.

The stream `media` has one JSON line for each item, the stream `media_data` the bytes. Equal content is stored
once per process. A line gives the place of the content in `media_data`. Standard library only: users'
processes import this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from hopyard.backports import StrEnum, dataclass

MAX_MEDIA_BYTES = 2**30  # default limit of a replica
MAX_ITEM_BYTES = 64 * 2**20
MAX_INDEX_BYTES = 48 * 2**20  # of all lines of a replica
MAX_LINE_BYTES = 16 * 1024
MAX_CAPTION_LENGTH = 1000
MAX_PANEL_ITEMS = 256  # in one call of `hop.log`
JSON_TYPE, TEXT_TYPE = "application/json", "text/plain"
# the suffix of a file, by media type; other types are not accepted
SUFFIXES: Mapping[str, str] = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/apng": "apng",
    "audio/wav": "wav",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/mpeg": "mp3",
    "video/mp4": "mp4",
    "video/webm": "webm",
    JSON_TYPE: "json",
    TEXT_TYPE: "txt",
}


class MediaKind(StrEnum):
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    HISTOGRAM = "histogram"
    TABLE = "table"
    TEXT = "text"
    FIGURE = "figure"


@dataclass(frozen=True, slots=True)
class EncodedMedia:
    """Content as it is stored. type: its media type. details: as in `MediaRecord`."""

    type: str
    data: bytes
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MediaRecord:
    """One logged item. index: its position in the list that was logged. offset, size_bytes: the place of its
    content in `media_data`. digest: BLAKE2b of the content, 32 hexadecimal digits. time: unix seconds.
    details: numbers such as width, height, sample_rate, duration_s, rows."""

    name: str
    kind: MediaKind
    type: str
    step: int
    index: int
    offset: int
    size_bytes: int
    digest: str
    time: float
    caption: str = ""
    details: Mapping[str, float] = field(default_factory=dict)


def encode_record(record: MediaRecord) -> bytes:
    """Returns the line of a record, with its line feed."""
    fields: dict[str, object] = {
        "name": record.name,
        "kind": record.kind.value,
        "type": record.type,
        "step": record.step,
        "index": record.index,
        "offset": record.offset,
        "size": record.size_bytes,
        "digest": record.digest,
        "t": round(record.time, 6),
    }
    if record.caption:
        fields["caption"] = record.caption
    if record.details:
        fields["details"] = dict(record.details)
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_record(fields: Mapping[str, object]) -> MediaRecord | None:
    """Returns the record of a line's JSON object; None for a damaged one. A script may write anything."""
    name, type_, digest = fields.get("name"), fields.get("type"), fields.get("digest")
    step, index = fields.get("step"), fields.get("index")
    offset, size, time = fields.get("offset"), fields.get("size"), fields.get("t")
    if not (isinstance(name, str) and name and isinstance(type_, str) and type_ in SUFFIXES):
        return None
    if not (isinstance(digest, str) and len(digest) == 32 and digest.isalnum() and digest.isascii()):
        return None
    if not (_is_whole(step, -(2**63)) and _is_whole(index, 0) and _is_whole(offset, 0)):
        return None
    if not (_is_whole(size, 0) and isinstance(time, (int, float)) and 0 <= time < 1e11):
        return None
    try:
        kind = MediaKind(str(fields.get("kind")))
    except ValueError:
        return None
    caption, details = fields.get("caption"), fields.get("details")
    return MediaRecord(
        name,
        kind,
        type_,
        int(step),  # type: ignore[call-overload]  # checked above
        int(index),  # type: ignore[call-overload]
        int(offset),  # type: ignore[call-overload]
        int(size),  # type: ignore[call-overload]
        digest,
        float(time),
        caption[:MAX_CAPTION_LENGTH] if isinstance(caption, str) else "",
        {
            key: float(value)
            for key, value in details.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53
        }
        if isinstance(details, dict)
        else {},
    )


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63
