"""Garbage collection by mark and sweep: removes unused blobs, then frees their space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hopyard.errors import IntegrityError, NotFound
from hopyard.stores.blobs.index import BlobRow
from hopyard.stores.blobs.pack_store import PackStore

GC_LOCK_FILE = "sweep.lock"  # as in `config.home`: `hopyard.backup` holds it while it copies blobs
_BATCH_SIZE = 2000  # blobs removed in one transaction; other calls run in between
_SMALL_PACK_BYTES = 4 * 1024 * 1024  # packs below this are merged …
_MAX_SMALL_PACKS = 32  # … once there are this many
_MAX_MERGED_BYTES = 32 * 1024 * 1024  # the approximate size of a rewritten pack


def collect_garbage(store: PackStore, in_use: Iterable[bytes], *, before: int) -> int:
    """Removes blobs that are not in `in_use` and were last seen before the time `before` (Unix seconds);
    returns the freed bytes."""
    store.index.mark_in_use(in_use)
    freed, after = 0, b""
    while True:
        last, size = store.index.remove_garbage(
            before, after, _BATCH_SIZE, lambda raw: store.large_path(raw).unlink(missing_ok=True)
        )
        freed += size
        if last is None:
            break
        after = last
    _remove_empty_packs(store)
    for group in _rewrite_groups(store):
        _rewrite(store, group)
    return freed


def _remove_empty_packs(store: PackStore) -> None:
    live = store.index.live_bytes()
    for pack in store.index.packs().keys() - live.keys():
        if not store.index.list_pack(pack):  # a pack was added after `live` was read
            store.index.remove_pack(pack)
            store.remove_pack_file(pack)


def _rewrite_groups(store: PackStore) -> Iterator[list[int]]:
    """Yields groups of packs to rewrite together: packs of mostly garbage, and small packs if there are
    many."""
    sizes, live = store.index.packs(), store.index.live_bytes()
    small_packs = [pack for pack, size in sizes.items() if size < _SMALL_PACK_BYTES]
    selected = {pack for pack, size in sizes.items() if live.get(pack, 0) * 2 < size}
    if len(small_packs) >= _MAX_SMALL_PACKS:
        selected.update(small_packs)
    group: list[int] = []
    size = 0
    for pack in sorted(selected):
        group.append(pack)
        size += live.get(pack, 0)
        if size >= _MAX_MERGED_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _rewrite(store: PackStore, packs: list[int]) -> None:
    """Copies the live blobs of `packs` into one new pack and removes the old ones. A crash at any point
    leaves one or the other."""
    rows: list[BlobRow] = []
    blobs: list[tuple[bytes, bytes]] = []
    for pack in packs:
        for row in store.index.list_pack(pack):
            try:
                blobs.append((row.digest, store.read(row.digest, row.location)))
                rows.append(row)
            except (IntegrityError, NotFound):
                continue  # the read set it aside: the next push stores it again
    if blobs:
        pack, offsets, size = store.write_pack(blobs)
        store.index.move_blobs(pack, size, zip(rows, offsets, strict=True), packs)
    else:
        for pack in packs:
            store.index.remove_pack(pack)
    for pack in packs:
        store.remove_pack_file(pack)
