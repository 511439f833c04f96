"""Blobs as they travel: for each one 32 bytes of its digest, its size as 8 bytes little-endian, its bytes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hopyard.domain.ids import Digest
from hopyard.server.answers import Malformed

MOST_FRAMES = 10_000  # of a pack
FRAMES = "for each blob: 32 bytes of its digest, its size as 8 bytes little-endian, its bytes"
_FRAME = struct.Struct("<32sQ")
# a blob of this size or more is handed to the socket as it is, not copied together with others
_ALONE_BYTES = 64 * 1024
_WRITE_BYTES = 256 * 1024
_MEDIA = "application/octet-stream"


def split_frames(body: bytes) -> list[tuple[Digest, bytes]]:
    """The blobs of a pack. Raises Malformed where a frame is cut off, or there are more than MOST_FRAMES."""
    blobs: list[tuple[Digest, bytes]] = []
    at, end = 0, len(body)
    while at < end:
        if end - at < _FRAME.size:
            raise Malformed("the pack ends within a frame")
        raw, size = _FRAME.unpack_from(body, at)
        at += _FRAME.size
        if size > end - at:
            raise Malformed("the pack ends within a blob")
        if len(blobs) == MOST_FRAMES:
            raise Malformed(
                f"the pack holds more than {MOST_FRAMES} blobs", hints=("send it in several packs",)
            )
        blobs.append((Digest(raw.hex()), body[at : at + size]))
        at += size
    if not blobs:
        raise Malformed("the pack holds no blob")
    return blobs


class FrameWriter:
    """Gathers frames into pieces that are worth a write."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self._small: list[bytes] = []
        self._small_bytes = 0

    def add(self, digest: Digest, data: bytes) -> None:
        head = _FRAME.pack(bytes.fromhex(digest), len(data))
        self.size += len(head) + len(data)
        self._small.append(head)
        if len(data) >= _ALONE_BYTES:
            self._join()
            self.pieces.append(data)
            return
        self._small.append(data)
        self._small_bytes += len(data)
        if self._small_bytes >= _WRITE_BYTES:
            self._join()

    def take(self) -> list[bytes]:
        """Everything gathered since the last call."""
        self._join()
        taken, self.pieces, self.size = self.pieces, [], 0
        return taken

    def _join(self) -> None:
        if self._small:
            self.pieces.append(b"".join(self._small))
            self._small, self._small_bytes = [], 0


class FramesResponse(Response):
    """Frames that are all here: their size is told, and nothing is copied."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        size = sum(map(len, pieces))
        super().__init__(headers={"content-length": str(size)}, media_type=_MEDIA)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream_frames(
    begun: FrameWriter, rest: AsyncIterator[tuple[Digest, bytes]]
) -> AsyncIterator[bytes]:
    """What was gathered, then the frames of the rest. An error in the middle breaks the connection off."""
    for piece in begun.take():
        yield piece
    async for digest, data in rest:
        begun.add(digest, data)
        if begun.size >= _WRITE_BYTES:
            for piece in begun.take():
                yield piece
    for piece in begun.take():
        yield piece
