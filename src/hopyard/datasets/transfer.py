"""Push and pull: ask what is missing, send or fetch only that, check every byte.

Both can be broken off anywhere and begun again: what came over is not sent twice, and nothing counts before it is whole.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from blake3 import blake3

from hopyard.datasets.flight import fly
from hopyard.datasets.local import LARGE_BYTES, find_files, read_checked
from hopyard.datasets.pack import EXACT, pack
from hopyard.datasets.progress import SILENT, Progress
from hopyard.datasets.transport import BlobSource, BlobTransport
from hopyard.datasets.tree import PackedTree
from hopyard.datasets.unpack import TreeWriter, writing_below
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import Manifest
from hopyard.errors import HopyardError, IntegrityError, MissingBlobs, NotFound, ServerUnavailable, SpecError

THREADS = 3  # transfers in flight: enough to keep both ends busy on one machine, and few enough to bound memory
_ASK_DIGESTS = 20_000  # in one question
_PACK_BYTES, _PACK_BLOBS = 8 * 1024 * 1024, 1000
_TRIES = 3
_DAMAGED_HINT = "push the same data again: only what is damaged is sent"


class Pushed(NamedTuple):
    """What went over the wire; both 0 when the server had everything."""

    blobs: int
    size_bytes: int


def push(tree: PackedTree, transport: BlobTransport, progress: Progress = SILENT) -> Pushed:
    """Bring every blob of `tree`, its manifest included, to the other side; durable there when this returns.

    Raises SpecError when a file changed since it was packed, and what the transport raises.
    """
    blobs = tree.blobs()
    missing: list[Digest] = []
    for at in range(0, len(blobs), _ASK_DIGESTS):
        missing += [Digest(digest) for digest in transport.missing(blobs[at : at + _ASK_DIGESTS])]
    return send(tree, missing, transport, progress)


def send(tree: PackedTree, digests: Sequence[str], transport: BlobTransport, progress: Progress = SILENT) -> Pushed:
    """Send these blobs of `tree`, without asking first: what a `missing_blobs` error named. Raises as `push`, and
    IntegrityError for a digest that does not belong to the tree."""
    wanted = [Digest(digest) for digest in digests]
    strange = [digest for digest in wanted if digest != tree.digest and digest not in tree.sources]
    if strange:
        raise IntegrityError(f"the server asks for blob {strange[0][:12]}, which is not part of {tree.root}")
    total = tree.size_of(wanted)
    progress.begin("uploading", total)
    fly(list(_shipments(tree, wanted)), lambda shipment: _ship(tree, shipment, transport, progress), threads=THREADS, leave=transport.close)
    return Pushed(len(wanted), total)


def _shipments(tree: PackedTree, digests: Iterable[Digest]) -> Iterator[list[Digest]]:
    """Large blobs one by one, small ones together."""
    group: list[Digest] = []
    size = 0
    for digest in digests:
        more = tree.size_of([digest])
        if more >= LARGE_BYTES:
            yield [digest]
            continue
        if group and (size + more > _PACK_BYTES or len(group) >= _PACK_BLOBS):
            yield group
            group, size = [], 0
        group.append(digest)
        size += more
    if group:
        yield group


def _ship(tree: PackedTree, shipment: list[Digest], transport: BlobTransport, progress: Progress) -> None:
    blobs = [(digest, tree.read(digest)) for digest in shipment]
    if len(blobs) == 1:
        transport.put_blob(*blobs[0])
    else:
        transport.put_pack(blobs)
    progress.advance(sum(len(data) for _, data in blobs))


# -- pull ------------------------------------------------------------------------------------------------------------


def fetch_manifest(digest: Digest, transport: BlobSource) -> Manifest:
    """The manifest of this digest, checked. Raises IntegrityError, NotFound."""
    received: list[bytes] = []
    _fetch(digest, [digest], transport, lambda _, data: received.append(data), str(digest))
    return Manifest.decode(received[0])


def pull(manifest: Digest, dest: Path, transport: BlobSource, progress: Progress = SILENT, *, replace: bool = False) -> Manifest:
    """Put the tree at `dest`, whole or not at all; an interrupted pull goes on where it was.

    A `dest` that holds exactly this tree is left as it is; one that holds anything else is refused with SpecError, or
    replaced when `replace` is set. Raises IntegrityError when the server's copy is damaged, StorageFull.
    """
    dest = Path(os.path.abspath(dest))
    tree = fetch_manifest(manifest, transport)
    if _holds(dest, manifest, replace=replace):
        return tree
    with writing_below(str(dest.parent)):
        dest.parent.mkdir(parents=True, exist_ok=True)
    with _partial(dest, manifest) as partial:
        if partial is None:  # somebody else pulled the same meanwhile
            return pull(manifest, dest, transport, progress, replace=replace)
        download(manifest, partial, transport, progress, tree=tree)
        _put_in_place(partial, dest, replace=replace)
    return tree


def download(manifest: Digest, into: Path, transport: BlobSource, progress: Progress = SILENT, *, tree: Manifest | None = None) -> Manifest:
    """Fill the folder `into` with the tree. What is there already and right is kept, so a second try fetches only the rest.
    Not atomic: `pull` and `TreeCache` give it a folder that nobody looks at. Raises as `pull`."""
    tree = tree or fetch_manifest(manifest, transport)
    writer = TreeWriter(into, tree)
    wanted = writer.wanted()
    progress.begin("downloading", sum(size for _, size in wanted))

    def receive(digest: Digest, data: bytes | memoryview) -> None:
        writer.put(digest, data)
        progress.advance(len(data))

    files, sizes = find_files(transport, manifest, wanted), dict(wanted)

    def fetch(batch: list[Digest]) -> None:
        if len(batch) == 1 and batch[0] in files:
            near = read_checked(files[batch[0]], batch[0], sizes[batch[0]])
            if near is not None:
                receive(batch[0], near)
                return
        _fetch(manifest, batch, transport, receive, writer.path_of(batch[0]))

    fly(list(_batches(wanted)), fetch, threads=THREADS, leave=transport.close)
    writer.finish()
    return tree


def _batches(wanted: Sequence[tuple[Digest, int]]) -> Iterator[list[Digest]]:
    batch: list[Digest] = []
    size = 0
    for digest, more in wanted:
        if more >= LARGE_BYTES:
            yield [digest]
            continue
        if batch and (size + more > _PACK_BYTES or len(batch) >= _PACK_BLOBS):
            yield batch
            batch, size = [], 0
        batch.append(digest)
        size += more
    if batch:
        yield batch


class _Receive(Protocol):
    def __call__(self, digest: Digest, data: bytes, /) -> object: ...


def _fetch(manifest: Digest, digests: Sequence[Digest], transport: BlobSource, receive: _Receive, path: str) -> None:
    """Fetch and check; what did not come over rightly is asked for again, unless the server finds its own copy damaged."""
    done = 0
    for attempt in range(1, _TRIES + 1):
        try:
            while done < len(digests):
                for digest, data in transport.fetch(manifest, digests[done:]):
                    if digest != digests[done] or blake3(data).hexdigest() != digest:
                        raise _Garbled
                    receive(digests[done], data)
                    done += 1
            return
        except (IntegrityError, MissingBlobs, NotFound) as bad:
            raise IntegrityError(f"`{path}` cannot be pulled: {bad.message}", hints=(_DAMAGED_HINT,)) from bad
        except (_Garbled, ServerUnavailable) as bad:
            if done == len(digests):
                return  # it broke after the last byte
            if not transport.verify(digests[done]):
                raise IntegrityError(f"blob {digests[done][:12]} of `{path}` is damaged on the server", hints=(_DAMAGED_HINT,)) from bad
            if attempt == _TRIES:
                raise _broken(bad, digests[done], path) from bad


class _Garbled(Exception):
    """Bytes came over that do not match their digest."""


def _broken(bad: Exception, digest: Digest, path: str) -> HopyardError:
    if isinstance(bad, HopyardError):
        return bad
    return IntegrityError(f"blob {digest[:12]} of `{path}` came over damaged {_TRIES} times, though the server's copy is good", hints=("check the network",))


def _holds(dest: Path, manifest: Digest, *, replace: bool) -> bool:
    """Whether `dest` is exactly the tree. Raises SpecError when it is in the way."""
    if not os.path.lexists(dest):
        return False
    if dest.is_dir() and not dest.is_symlink():
        if not any(dest.iterdir()):
            return False
        try:
            if pack(dest, rules=EXACT).digest == manifest:
                return True
        except SpecError:
            pass  # something in it that no tree holds
    if replace:
        return False
    raise SpecError(f"`{dest}` is in the way: it holds something else", hints=("name another folder, or replace it with --force",))


@contextmanager
def _partial(dest: Path, manifest: Digest) -> Iterator[Path | None]:
    """The folder beside `dest` in which this pull gathers, locked; None when another pull finished it meanwhile."""
    partial = dest.with_name(f".{dest.name[:64]}.{manifest[:16]}.part")
    with writing_below(str(dest.parent)):
        partial.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            same = os.path.samestat(os.fstat(descriptor), os.lstat(partial))
        except FileNotFoundError:
            same = False
        yield partial if same else None
    finally:
        os.close(descriptor)


def _put_in_place(partial: Path, dest: Path, *, replace: bool) -> None:
    os.chmod(partial, 0o777 & ~_umask())
    old = None
    if replace and os.path.lexists(dest):
        old = dest.with_name(f".{dest.name[:64]}.{os.urandom(4).hex()}.old")
        dest.rename(old)
    try:
        partial.rename(dest)
    except OSError as bad:
        if old is not None:
            old.rename(dest)
        raise SpecError(f"`{dest}` came into the way: {bad.strerror}", hints=("name another folder",)) from bad
    if old is not None:
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()


def _umask() -> int:
    """The process's umask; there is no way to read it without setting it for a moment."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
