"""Decoding manifests without holding up whoever else the event loop serves, and without letting a strange one
fill memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Struct

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, LinkEntry, Manifest, referred_blobs
from hopyard.errors import IntegrityError

MOST_ENTRIES = 3_000_000  # files, links and folders of one tree
_AT_ONCE_BYTES = 64 * 1024  # a millisecond; a million files take seconds
_LARGE_BYTES = 4 * 1024 * 1024  # of these, one at a time


class _File(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    path: str
    size: int
    executable: Annotated[int, Meta(ge=0, le=1)]
    chunks: tuple[Digest, ...]


class _Link(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    path: str
    target: str


class _Body(Struct, frozen=True, forbid_unknown_fields=True):
    """In the order of the canonical form."""

    files: tuple[_File, ...]
    folders: tuple[str, ...]
    links: tuple[_Link, ...]
    v: int


@dataclass(frozen=True, slots=True)
class Tree:
    """What a manifest amounts to. blob_sizes: of the blobs of its files, as of `Manifest.blob_sizes`."""

    size_bytes: int
    files: int
    blob_sizes: Mapping[Digest, int]


class Decoder:
    """Of the manifests that a server is sent: large ones one at a time, in another thread."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(1)

    async def tree(self, data: bytes) -> Tree:
        """Raises IntegrityError for what `Manifest.decode` refuses, and for a tree of too many entries."""
        if len(data) <= _AT_ONCE_BYTES:
            return read_tree(data)
        if len(data) <= _LARGE_BYTES:
            return await asyncio.to_thread(read_tree, data)
        async with self._large:
            return await asyncio.to_thread(read_tree, data)


def read_tree(data: bytes) -> Tree:
    """As `Manifest.decode`, in a tenth of the time and a third of the memory: what has another shape is
    refused where it begins to differ."""
    try:
        body = msgspec.json.decode(data, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as bad:
        raise IntegrityError(f"not a manifest: {bad}") from bad
    if body.v != 1:
        raise IntegrityError(
            f"manifest of version {body.v!r}, this program knows version 1", hints=("upgrade hopyard",)
        )
    if len(body.files) + len(body.links) + len(body.folders) > MOST_ENTRIES:
        raise IntegrityError(
            f"manifest of more than {MOST_ENTRIES:,} files and folders",
            hints=("put them into archives, or into several datasets",),
        )
    # They have the fields of the domain's entries, which would take three times the memory.
    found = Manifest(
        cast("tuple[FileEntry, ...]", body.files), cast("tuple[LinkEntry, ...]", body.links), body.folders
    )
    found.check()
    if msgspec.json.encode(body) != data:
        raise IntegrityError("not a manifest in its canonical form")
    return Tree(found.size_bytes, len(body.files), found.blob_sizes())


async def decode_manifest(data: bytes) -> Manifest:
    """As `Manifest.decode`, of a tree that was accepted before. Raises IntegrityError."""
    return (
        Manifest.decode(data)
        if len(data) <= _AT_ONCE_BYTES
        else await asyncio.to_thread(Manifest.decode, data)
    )


async def blobs_of(data: bytes) -> set[Digest]:
    """As `referred_blobs`. Raises IntegrityError."""
    return (
        referred_blobs(data) if len(data) <= _AT_ONCE_BYTES else await asyncio.to_thread(referred_blobs, data)
    )
