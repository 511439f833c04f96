"""Push and pull: ask what is missing, send or fetch only that, check every byte.

Both can be broken off anywhere and begun again: what came over is not sent twice, and nothing counts before
it is whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from blake3 import blake3

from hopyard.datasets.flight import fly
from hopyard.datasets.folders import OpenFolder
from hopyard.datasets.local import LARGE_BYTES, find_files, read_checked
from hopyard.datasets.pack import EXACT, pack
from hopyard.datasets.progress import SILENT, Progress
from hopyard.datasets.transport import BlobSource, BlobTransport
from hopyard.datasets.tree import PackedTree
from hopyard.datasets.unpack import TreeWriter, writing_below
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import Manifest
from hopyard.errors import HopyardError, IntegrityError, MissingBlobs, NotFound, ServerUnavailable, SpecError

# transfers in flight: enough to keep both ends busy on one machine, and few enough to bound memory
THREADS = 3
_ASK_DIGESTS = 20_000  # in one question
_PACK_BYTES, _PACK_BLOBS = 8 * 1024 * 1024, 1000
_TRIES = 3
_PARTIAL, _TREE, _NOTE = ".part", "tree", "manifest"
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


def send(
    tree: PackedTree, digests: Sequence[str], transport: BlobTransport, progress: Progress = SILENT
) -> Pushed:
    """Send these blobs of `tree`, without asking first: what a `missing_blobs` error named.
    Raises as `push`, and IntegrityError for a digest that does not belong to the tree."""
    wanted = [Digest(digest) for digest in digests]
    strange = [digest for digest in wanted if digest != tree.digest and digest not in tree.sources]
    if strange:
        raise IntegrityError(f"the server asks for blob {strange[0][:12]}, which is not part of {tree.root}")
    total = tree.size_of(wanted)
    progress.begin("uploading", total)
    fly(
        list(_shipments(tree, wanted)),
        lambda shipment: _ship(tree, shipment, transport, progress),
        threads=THREADS,
        leave=transport.close,
    )
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


# -- pull
# ------------------------------------------------------------------------------------------------------------


def fetch_manifest(digest: Digest, transport: BlobSource) -> Manifest:
    """The manifest of this digest, checked. Raises IntegrityError, NotFound."""
    received: list[bytes] = []
    _fetch(digest, [digest], transport, lambda _, data: received.append(data), str(digest))
    return Manifest.decode(received[0])


def pull(
    manifest: Digest, dest: Path, transport: BlobSource, progress: Progress = SILENT, *, replace: bool = False
) -> Manifest:
    """Put the tree at `dest`, whole or not at all; an interrupted pull goes on where it was.

    A `dest` that holds exactly this tree is left as it is; one that holds anything else is refused with
    SpecError, or replaced when `replace` is set. Raises IntegrityError when the server's copy is damaged,
    StorageFull.
    """
    dest = Path(os.path.abspath(dest))
    tree = fetch_manifest(manifest, transport)
    if _holds(dest, manifest, replace=replace):
        return tree
    with writing_below(str(dest.parent)):
        dest.parent.mkdir(parents=True, exist_ok=True)
    with OpenFolder.at(dest.parent) as parent, _partial(parent, dest, manifest) as partial:
        if partial is None:  # another process pulled the same meanwhile
            return pull(manifest, dest, transport, progress, replace=replace)
        with partial.enter(_TREE) as into:
            _fill(manifest, into, transport, progress, tree, name=str(dest))
            os.fchmod(into.descriptor, 0o777 & ~_umask())
        if not _put_in_place(partial, parent, dest, replace=replace):
            return pull(manifest, dest, transport, progress, replace=False)
    return tree


def download(
    manifest: Digest,
    into: Path,
    transport: BlobSource,
    progress: Progress = SILENT,
    *,
    tree: Manifest | None = None,
) -> Manifest:
    """Fill the folder `into` with the tree. What is there already and right is kept, so a second try fetches
    only the rest. Not atomic: `TreeCache` gives it a folder that nobody looks at, and no other user may write
    to. Raises as `pull`."""
    tree = tree or fetch_manifest(manifest, transport)
    with OpenFolder.own(into) as folder:
        _fill(manifest, folder, transport, progress, tree, name=str(into))
    return tree


def _fill(
    manifest: Digest,
    into: OpenFolder,
    transport: BlobSource,
    progress: Progress,
    tree: Manifest,
    *,
    name: str,
) -> None:
    writer = TreeWriter(into, tree, name=name)
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


def _fetch(
    manifest: Digest, digests: Sequence[Digest], transport: BlobSource, receive: _Receive, path: str
) -> None:
    """Fetch and check; what did not come over rightly is asked for again, unless the server finds its own
    copy damaged."""
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
                raise IntegrityError(
                    f"blob {digests[done][:12]} of `{path}` is damaged on the server", hints=(_DAMAGED_HINT,)
                ) from bad
            if attempt == _TRIES:
                raise _broken(bad, digests[done], path) from bad


class _Garbled(Exception):
    """Bytes came over that do not match their digest."""


def _broken(bad: Exception, digest: Digest, path: str) -> HopyardError:
    if isinstance(bad, HopyardError):
        return bad
    return IntegrityError(
        f"blob {digest[:12]} of `{path}` came over damaged {_TRIES} times, though the server's copy is good",
        hints=("check the network",),
    )


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
    raise SpecError(
        f"`{dest}` is in the way: it holds something else",
        hints=("name another folder, or replace it with --force",),
    )


@contextmanager
def _partial(parent: OpenFolder, dest: Path, manifest: Digest) -> Iterator[OpenFolder | None]:
    """The folder beside `dest` in which this pull gathers, locked; None when another process finished it
    meanwhile.

    Others may write where `dest` is to be. So its name is random, only this user may look into it, and it is
    never named again: an earlier pull's is taken only where it says itself, inside, whose it is. The tree
    gathers in a folder of its own below.
    """
    prefix = f".{dest.name[:64]}."
    with writing_below(str(dest.parent)):
        found = _find_partial(parent, prefix, manifest)
        if found is None:
            name = f"{prefix}{os.urandom(8).hex()}{_PARTIAL}"
            found = name, parent.make(name)
    name, partial = found
    with partial:
        fcntl.flock(partial.descriptor, fcntl.LOCK_EX)
        if not _is_there(parent, name, partial):
            yield None
            return
        with writing_below(str(dest.parent)):
            if _NOTE not in partial.names():
                partial.make(_TREE).close()
                # last: what has none was broken off, and is left alone
                partial.write(_NOTE, [manifest.encode()])
        yield partial
        if partial.names() == [_NOTE]:
            os.unlink(_NOTE, dir_fd=partial.descriptor)
            with suppress(OSError):  # another user moved it away: the tree is where it belongs all the same
                os.rmdir(name, dir_fd=parent.descriptor)


def _find_partial(parent: OpenFolder, prefix: str, manifest: Digest) -> tuple[str, OpenFolder] | None:
    """What an earlier pull of the same left."""
    for name in parent.names():
        if not (name.startswith(prefix) and name.endswith(_PARTIAL)):
            continue
        with suppress(OSError, SpecError):
            partial = parent.enter(name)
            try:
                descriptor = partial.open(_NOTE, os.O_RDONLY)
                try:
                    said = os.read(descriptor, 256)
                finally:
                    os.close(descriptor)
                if said == manifest.encode():
                    return name, partial
            except BaseException:
                partial.close()
                raise
            partial.close()
    return None


def _is_there(parent: OpenFolder, name: str, folder: OpenFolder) -> bool:
    try:
        return os.path.samestat(
            os.fstat(folder.descriptor), os.stat(name, dir_fd=parent.descriptor, follow_symlinks=False)
        )
    except FileNotFoundError:
        return False


def _put_in_place(partial: OpenFolder, parent: OpenFolder, dest: Path, *, replace: bool) -> bool:
    """Whether the tree is at `dest` now; False when something came there meanwhile, which may be the same."""
    old, at, mine = "", parent.descriptor, partial.descriptor
    if replace and os.path.lexists(dest):
        old = f".{dest.name[:64]}.{os.urandom(8).hex()}.old"
        os.rename(dest.name, old, src_dir_fd=at, dst_dir_fd=at)
    try:
        os.rename(_TREE, dest.name, src_dir_fd=mine, dst_dir_fd=at)
    except OSError as bad:
        if old:
            os.rename(old, dest.name, src_dir_fd=at, dst_dir_fd=at)
        if bad.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR) and not old:
            shutil.rmtree(_TREE, dir_fd=mine)
            return False
        raise SpecError(
            f"`{dest}` came into the way: {bad.strerror}", hints=("name another folder",)
        ) from bad
    if old:
        left = os.stat(old, dir_fd=at, follow_symlinks=False)
        shutil.rmtree(old, dir_fd=at) if stat.S_ISDIR(left.st_mode) else os.unlink(old, dir_fd=at)
    return True


def _umask() -> int:
    """The process's umask; there is no way to read it without setting it for a moment."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
