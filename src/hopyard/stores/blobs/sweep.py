"""Mark and sweep: remove what nobody uses, then give its space back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hopyard.errors import IntegrityError, NotFound
from hopyard.stores.blobs.index import Row
from hopyard.stores.blobs.shelf import Shelf

SWEEP_LOCK = "sweep.lock"  # as in `config.home`: `hopyard.backup` holds it while it copies blobs
_AT_ONCE = 2000  # blobs removed in one transaction; other calls go on in between
_SMALL_BYTES = 4 * 1024 * 1024  # packs below this are joined …
_SMALL_PACKS = 32  # … once there are this many
_JOINED_BYTES = 32 * 1024 * 1024  # about how large a rewritten pack becomes


def sweep(shelf: Shelf, in_use: Iterable[bytes], *, before: int) -> int:
    """Remove blobs that are not in `in_use` and were last seen before the time `before` (unix seconds); their
    bytes."""
    shelf.index.mark(in_use)
    freed, after = 0, b""
    while True:
        last, size = shelf.index.remove_garbage(
            before, after, _AT_ONCE, lambda raw: shelf.large_path(raw).unlink(missing_ok=True)
        )
        freed += size
        if last is None:
            break
        after = last
    _remove_empty(shelf)
    for group in _groups(shelf):
        _rewrite(shelf, group)
    return freed


def _remove_empty(shelf: Shelf) -> None:
    live = shelf.index.live_bytes()
    for pack in shelf.index.packs().keys() - live.keys():
        if not shelf.index.in_pack(pack):  # a pack entered since `live` was taken
            shelf.index.remove_pack(pack)
            shelf.remove_pack_file(pack)


def _groups(shelf: Shelf) -> Iterator[list[int]]:
    """Packs to write anew together: those that are mostly garbage, and small ones if there are many of
    them."""
    sizes, live = shelf.index.packs(), shelf.index.live_bytes()
    small = [pack for pack, size in sizes.items() if size < _SMALL_BYTES]
    chosen = {pack for pack, size in sizes.items() if live.get(pack, 0) * 2 < size}
    if len(small) >= _SMALL_PACKS:
        chosen.update(small)
    group: list[int] = []
    size = 0
    for pack in sorted(chosen):
        group.append(pack)
        size += live.get(pack, 0)
        if size >= _JOINED_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _rewrite(shelf: Shelf, packs: list[int]) -> None:
    """Copy what is good in `packs` into one new pack and drop them. A crash at any point leaves either."""
    rows: list[Row] = []
    blobs: list[tuple[bytes, bytes]] = []
    for pack in packs:
        for row in shelf.index.in_pack(pack):
            try:
                blobs.append((row.digest, shelf.read(row.digest, row.place)))
                rows.append(row)
            except (IntegrityError, NotFound):
                continue  # set aside by the read: the next push brings it again
    if blobs:
        pack, offsets, size = shelf.write_pack(blobs)
        shelf.index.move(pack, size, zip(rows, offsets, strict=True), packs)
    else:
        for pack in packs:
            shelf.index.remove_pack(pack)
    for pack in packs:
        shelf.remove_pack_file(pack)
