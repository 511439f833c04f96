"""The wire format of several blobs: per blob 32 bytes of digest, 8 bytes of size (little-endian), the
bytes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hopyard.domain.ids import Digest
from hopyard.server.responses import MalformedRequest

MAX_FRAMES = 10_000  # per pack
FRAMES_DESCRIPTION = "for each blob: 32 bytes of its digest, its size as 8 bytes little-endian, its bytes"
_FRAME = struct.Struct("<32sQ")
# a blob of this size or more is written to the socket directly, not copied together with others
_MIN_OWN_PIECE_BYTES = 64 * 1024
_WRITE_BYTES = 256 * 1024
_MEDIA_TYPE = "application/octet-stream"


def split_frames(body: bytes) -> list[tuple[Digest, bytes]]:
    """Returns the blobs of a pack. Raises MalformedRequest if a frame is cut off, or there are more than
    MAX_FRAMES."""
    blobs: list[tuple[Digest, bytes]] = []
    offset, end = 0, len(body)
    while offset < end:
        if end - offset < _FRAME.size:
            raise MalformedRequest("the pack ends within a frame")
        raw, size = _FRAME.unpack_from(body, offset)
        offset += _FRAME.size
        if size > end - offset:
            raise MalformedRequest("the pack ends within a blob")
        if len(blobs) == MAX_FRAMES:
            raise MalformedRequest(
                f"the pack contains more than {MAX_FRAMES} blobs", hints=("send it in several packs",)
            )
        blobs.append((Digest(raw.hex()), body[offset : offset + size]))
        offset += size
    if not blobs:
        raise MalformedRequest("the pack contains no blob")
    return blobs


class FrameWriter:
    """Joins small frames into pieces that are large enough for a write."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0

    def add(self, digest: Digest, data: bytes) -> None:
        head = _FRAME.pack(bytes.fromhex(digest), len(data))
        self.size += len(head) + len(data)
        self._buffered.append(head)
        if len(data) >= _MIN_OWN_PIECE_BYTES:
            self._flush_buffered()
            self.pieces.append(data)
            return
        self._buffered.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes >= _WRITE_BYTES:
            self._flush_buffered()

    def take_pieces(self) -> list[bytes]:
        """Returns and clears all pieces since the last call."""
        self._flush_buffered()
        pieces, self.pieces, self.size = self.pieces, [], 0
        return pieces

    def _flush_buffered(self) -> None:
        if self._buffered:
            self.pieces.append(b"".join(self._buffered))
            self._buffered, self._buffered_bytes = [], 0


class FramesResponse(Response):
    """A response of frames that are in memory: its size is declared, and nothing is copied."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        size = sum(map(len, pieces))
        super().__init__(headers={"content-length": str(size)}, media_type=_MEDIA_TYPE)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream_frames(
    writer: FrameWriter, remaining: AsyncIterator[tuple[Digest, bytes]]
) -> AsyncIterator[bytes]:
    """Yields the pieces of the writer, then the remaining frames. An error in between aborts the
    connection."""
    for piece in writer.take_pieces():
        yield piece
    async for digest, data in remaining:
        writer.add(digest, data)
        if writer.size >= _WRITE_BYTES:
            for piece in writer.take_pieces():
                yield piece
    for piece in writer.take_pieces():
        yield piece
