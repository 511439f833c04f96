"""What transfer asks of whatever carries blobs; `hopyard.api_client.client.Client` is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol


class BlobSource(Protocol):
    """Where blobs come from. Safe to use from several threads at once. Raises errors of `hopyard.errors`."""

    def fetch(self, manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """The blobs in the order asked for, unchecked.
        `manifest` is the tree that they belong to (or is asked for itself)."""
        ...

    def verify(self, digest: str) -> bool:
        """Have the other side read and check a blob. False: it had to be set aside, or is not there."""
        ...

    def close(self) -> None:
        """Close the calling thread's connection."""


class BlobTransport(BlobSource, Protocol):
    """A source that also takes blobs."""

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Those that the other side lacks."""
        ...

    def put_blob(self, digest: str, data: bytes) -> None:
        """Durable over there when this returns; IntegrityError when the bytes have another digest."""

    def put_pack(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        """Many small blobs, all or none."""


Fetch = Callable[[str, Sequence[str]], Iterator[tuple[str, bytes]]]  # `BlobSource.fetch` alone


class FetchSource:
    """A source made of its `fetch` alone: one that cannot have the other side check itself."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch

    def verify(self, digest: str) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:
        """Nothing: the connection is whose `fetch` it is."""
