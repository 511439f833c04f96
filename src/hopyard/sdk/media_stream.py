"""The streams `media` and `media_data` of one process. A failure causes one warning, never an exception."""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from hopyard.domain.byte_text import format_bytes
from hopyard.domain.media import (
    MAX_CAPTION_LENGTH,
    MAX_INDEX_BYTES,
    MAX_ITEM_BYTES,
    MAX_LINE_BYTES,
    MAX_MEDIA_BYTES,
    MAX_PANEL_ITEMS,
    EncodedMedia,
    MediaRecord,
    encode_record,
)
from hopyard.domain.metric_records import MAX_NAME_BYTES
from hopyard.errors import HopyardError, SpecError
from hopyard.sdk.media import Media
from hopyard.sdk.streams import StreamFile
from hopyard.sdk.warn_once import warn_once

LIMIT_VARIABLE = "HOPYARD_MAX_MEDIA"
_MAX_KNOWN_DIGESTS = 10_000


class MediaStream:
    """folder: of the replica, or of the recording. on_dropped: called with a sentence when media are dropped,
    at the first time and at the end of the process."""

    def __init__(self, folder: str, environ: Mapping[str, str], on_dropped: Callable[[str], object]) -> None:
        self._streams, self._on_dropped = os.path.join(folder, "streams"), on_dropped
        limit = environ.get(LIMIT_VARIABLE, "")
        self._limit_bytes = int(limit) if limit.isdecimal() else MAX_MEDIA_BYTES
        self._lock = threading.Lock()
        self._files: tuple[StreamFile, StreamFile] | None = None
        self._offsets: dict[str, int] = {}  # of stored content, by digest
        self._dropped = 0

    def write(self, step: int, name: object, values: Sequence[Media]) -> None:
        """Appends the items of the values, and reports a failure once per name."""
        try:
            if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_NAME_BYTES:
                raise SpecError(f"a name is a text of 1 to {MAX_NAME_BYTES} bytes")
            items = [(value, encoded) for value in values for encoded in value.encode()]
            if len(items) > MAX_PANEL_ITEMS:
                warn_once(
                    f"hop.log: `{name}` has {len(items)} items; the first {MAX_PANEL_ITEMS} are kept",
                    kind=f"panel-{name!r:.80}",
                )
            with self._lock:
                self._append(step, name, items[:MAX_PANEL_ITEMS])
        except HopyardError as error:
            hint = f" ({error.hints[0]})" if error.hints else ""
            self._warn_skipped(name, f"{error.message}{hint}")
        except Exception as error:  # of any array library: a training must not end for a picture
            self._warn_skipped(name, f"{type(error).__name__}: {str(error)[:300]}")

    def reset(self) -> None:
        """Forgets the open files. After a fork each process needs file positions of its own."""
        self._lock = threading.Lock()
        self._files, self._dropped = None, 0

    def _warn_skipped(self, name: object, reason: str) -> None:
        text = reason.encode("utf-8", "backslashreplace").decode().replace("\n", " ")
        warn_once(f"hop.log: `{name!s:.80}`: {text}; it is skipped", kind=f"media-{name!r:.80}")

    def _append(self, step: int, name: str, items: Sequence[tuple[Media, EncodedMedia]]) -> None:
        if self._files is None:
            self._files = (
                StreamFile(os.path.join(self._streams, "media")),
                # A partial write stays: no line refers to it, and the server may have its beginning.
                StreamFile(os.path.join(self._streams, "media_data"), complete_bytes=len),
            )
        index, content = self._files
        if index.descriptor < 0 or content.descriptor < 0:
            return  # a warning was printed
        lines: list[bytes] = []
        index_bytes = os.fstat(index.descriptor).st_size
        for position, (value, encoded) in enumerate(items):
            if len(encoded.data) > MAX_ITEM_BYTES:
                raise SpecError(f"it has {len(encoded.data):,} bytes, more than {MAX_ITEM_BYTES:,}")
            digest = hashlib.blake2b(encoded.data, digest_size=16).hexdigest()
            offset = self._offsets.get(digest)
            known_bytes = 0 if offset is not None else len(encoded.data)
            if self._exceeds_limit(content, index_bytes, known_bytes):
                self._drop(len(items) - position)
                break
            if offset is None:
                if not content.append(encoded.data):
                    break
                offset = os.lseek(content.descriptor, 0, os.SEEK_CUR) - len(encoded.data)
                if len(self._offsets) < _MAX_KNOWN_DIGESTS:
                    self._offsets[digest] = offset
            lines.append(
                encode_record(
                    MediaRecord(
                        name,
                        value.kind,
                        encoded.type,
                        step,
                        position,
                        offset,
                        len(encoded.data),
                        digest,
                        time.time(),
                        value.caption[:MAX_CAPTION_LENGTH],
                        encoded.details,
                    )
                )
            )
            index_bytes += len(lines[-1])
        if lines:
            index.append(b"".join(line for line in lines if len(line) <= MAX_LINE_BYTES))

    def _exceeds_limit(self, content: StreamFile, index_bytes: int, added: int) -> bool:
        if index_bytes > MAX_INDEX_BYTES:
            return True
        size = os.fstat(content.descriptor).st_size
        return bool(self._limit_bytes) and size + added + index_bytes > self._limit_bytes

    def _drop(self, count: int) -> None:
        self._dropped += count
        if self._dropped == count:
            text = (
                f"images and other media after the limit of {format_bytes(self._limit_bytes)} are left out "
                "(`runs: {max_media: …}` in config.yaml)"
            )
            warn_once(f"hop.log: {text}", kind="media-limit")
            self._on_dropped(text)
            atexit.register(self._report_dropped, os.getpid())

    def _report_dropped(self, pid: int) -> None:
        if pid == os.getpid() and self._dropped > 1:
            self._on_dropped(f"{self._dropped} images and other media are left out: over the limit")
