"""The interface between transfer and a carrier of blobs, such as `hopyard.api_client.client.Client`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol


class BlobSource(Protocol):
    """A source of blobs. Safe to use from several threads at once. Raises errors of `hopyard.errors`."""

    def fetch(self, manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yields the requested blobs in order, unchecked. `manifest`: the tree that they belong to, or itself
        requested."""
        ...

    def verify(self, digest: str) -> bool:
        """Makes the server read and check a blob. Returns False if it was damaged and set aside, or is
        missing."""
        ...

    def close(self) -> None:
        """Closes the calling thread's connection."""


class BlobTransport(BlobSource, Protocol):
    """A source that also accepts blobs."""

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Returns the digests that the server lacks."""
        ...

    def put_blob(self, digest: str, data: bytes) -> None:
        """Stores a blob, durable on return. Raises IntegrityError if the bytes have another digest."""

    def put_pack(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        """Stores many small blobs, all or none."""


Fetch = Callable[[str, Sequence[str]], Iterator[tuple[str, bytes]]]  # `BlobSource.fetch` alone


class FetchSource:
    """A source that consists of its `fetch` alone: it cannot make the server check a blob."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch

    def verify(self, digest: str) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:
        """Does nothing: the connection belongs to the owner of `fetch`."""
