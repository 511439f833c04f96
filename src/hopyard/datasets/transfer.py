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

from hopyard.datasets.local_blobs import LARGE_BYTES, find_files, read_checked
from hopyard.datasets.open_folder import OpenFolder
from hopyard.datasets.pack import EXACT_RULES, pack_tree
from hopyard.datasets.packed_tree import PackedTree
from hopyard.datasets.parallel import run_parallel
from hopyard.datasets.progress import NO_PROGRESS, ProgressListener
from hopyard.datasets.transport import BlobSource, BlobTransport
from hopyard.datasets.unpack import TreeWriter, write_errors_below
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import Manifest
from hopyard.errors import HopyardError, IntegrityError, MissingBlobs, NotFound, ServerUnavailable, SpecError

# transfers in flight: enough to keep both ends busy on one machine, and few enough to bound memory
TRANSFER_THREADS = 3
_MAX_DIGESTS_PER_REQUEST = 20_000  # in one question
_PACK_BYTES, _PACK_BLOBS = 8 * 1024 * 1024, 1000
_MAX_ATTEMPTS = 3
_PARTIAL_SUFFIX, _TREE_DIR, _MANIFEST_FILE = ".part", "tree", "manifest"
_DAMAGED_HINT = "push the same data again: only what is damaged is sent"


class PushResult(NamedTuple):
    """What went over the wire; both 0 when the server had everything."""

    blobs: int
    size_bytes: int


def push_tree(
    tree: PackedTree, transport: BlobTransport, progress: ProgressListener = NO_PROGRESS
) -> PushResult:
    """Bring every blob of `tree`, its manifest included, to the other side; durable there when this returns.

    Raises SpecError when a file changed since it was packed, and what the transport raises.
    """
    blobs = tree.blobs()
    missing: list[Digest] = []
    for at in range(0, len(blobs), _MAX_DIGESTS_PER_REQUEST):
        missing += [Digest(digest) for digest in transport.missing(blobs[at : at + _MAX_DIGESTS_PER_REQUEST])]
    return send_blobs(tree, missing, transport, progress)


def send_blobs(
    tree: PackedTree,
    digests: Sequence[str],
    transport: BlobTransport,
    progress: ProgressListener = NO_PROGRESS,
) -> PushResult:
    """Send these blobs of `tree`, without asking first: what a `missing_blobs` error named.
    Raises as `push`, and IntegrityError for a digest that does not belong to the tree."""
    wanted = [Digest(digest) for digest in digests]
    strange = [digest for digest in wanted if digest != tree.digest and digest not in tree.sources]
    if strange:
        raise IntegrityError(f"the server asks for blob {strange[0][:12]}, which is not part of {tree.root}")
    total = tree.size_of(wanted)
    progress.begin("uploading", total)
    run_parallel(
        list(_upload_batches(tree, wanted)),
        lambda shipment: _upload_batch(tree, shipment, transport, progress),
        threads=TRANSFER_THREADS,
        stop_on=transport.close,
    )
    return PushResult(len(wanted), total)


def _upload_batches(tree: PackedTree, digests: Iterable[Digest]) -> Iterator[list[Digest]]:
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


def _upload_batch(
    tree: PackedTree, batch: list[Digest], transport: BlobTransport, progress: ProgressListener
) -> None:
    blobs = [(digest, tree.read(digest)) for digest in batch]
    if len(blobs) == 1:
        transport.put_blob(*blobs[0])
    else:
        transport.put_pack(blobs)
    progress.advance(sum(len(data) for _, data in blobs))


# -- pull ----------------------------------------------------------------------------------------------------


def fetch_manifest(digest: Digest, transport: BlobSource) -> Manifest:
    """The manifest of this digest, checked. Raises IntegrityError, NotFound."""
    received: list[bytes] = []
    _fetch_blobs(digest, [digest], transport, lambda _, data: received.append(data), str(digest))
    return Manifest.decode(received[0])


def pull_tree(
    manifest: Digest,
    dest: Path,
    transport: BlobSource,
    progress: ProgressListener = NO_PROGRESS,
    *,
    replace: bool = False,
) -> Manifest:
    """Put the tree at `dest`, whole or not at all; an interrupted pull goes on where it was.

    A `dest` that holds exactly this tree is left as it is; one that holds anything else is refused with
    SpecError, or replaced when `replace` is set. Raises IntegrityError when the server's copy is damaged,
    StorageFull.
    """
    dest = Path(os.path.abspath(dest))
    tree = fetch_manifest(manifest, transport)
    if _matches_manifest(dest, manifest, replace=replace):
        return tree
    with write_errors_below(str(dest.parent)):
        dest.parent.mkdir(parents=True, exist_ok=True)
    with OpenFolder.open_path(dest.parent) as parent, _open_partial(parent, dest, manifest) as partial:
        if partial is None:  # another process pulled the same meanwhile
            return pull_tree(manifest, dest, transport, progress, replace=replace)
        with partial.enter_private(_TREE_DIR) as into:
            _resume_download(manifest, into, transport, progress, tree, name=str(dest))
            os.fchmod(into.descriptor, 0o777 & ~_umask())
        if not _move_into_place(partial, parent, dest, replace=replace):
            return pull_tree(manifest, dest, transport, progress, replace=False)
    return tree


def download_blobs(
    manifest: Digest,
    into: Path,
    transport: BlobSource,
    progress: ProgressListener = NO_PROGRESS,
    *,
    tree: Manifest | None = None,
) -> Manifest:
    """Fill the folder `into` with the tree. What is there already and right is kept, so a second try fetches
    only the rest. Not atomic: `TreeCache` gives it a folder that nobody looks at, and no other user may write
    to. Raises as `pull`."""
    tree = tree or fetch_manifest(manifest, transport)
    with OpenFolder.open_private(into) as folder:
        _resume_download(manifest, folder, transport, progress, tree, name=str(into))
    return tree


def _resume_download(
    manifest: Digest,
    into: OpenFolder,
    transport: BlobSource,
    progress: ProgressListener,
    tree: Manifest,
    *,
    name: str,
) -> None:
    writer = TreeWriter(into, tree, name=name)
    wanted = writer.missing_digests()
    progress.begin("downloading", sum(size for _, size in wanted))

    def receive(digest: Digest, data: bytes | memoryview) -> None:
        writer.write_blob(digest, data)
        progress.advance(len(data))

    files, sizes = find_files(transport, manifest, wanted), dict(wanted)

    def fetch(batch: list[Digest]) -> None:
        if len(batch) == 1 and batch[0] in files:
            near = read_checked(files[batch[0]], batch[0], sizes[batch[0]])
            if near is not None:
                receive(batch[0], near)
                return
        _fetch_blobs(manifest, batch, transport, receive, writer.path_of(batch[0]))

    run_parallel(list(_download_batches(wanted)), fetch, threads=TRANSFER_THREADS, stop_on=transport.close)
    writer.finish()


def _download_batches(wanted: Sequence[tuple[Digest, int]]) -> Iterator[list[Digest]]:
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


class _BlobReceiver(Protocol):
    def __call__(self, digest: Digest, data: bytes, /) -> object: ...


def _fetch_blobs(
    manifest: Digest, digests: Sequence[Digest], transport: BlobSource, receive: _BlobReceiver, path: str
) -> None:
    """Fetch and check; what did not come over rightly is asked for again, unless the server finds its own
    copy damaged."""
    done = 0
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            while done < len(digests):
                for digest, data in transport.fetch(manifest, digests[done:]):
                    if digest != digests[done] or blake3(data).hexdigest() != digest:
                        raise _CorruptDownload
                    receive(digests[done], data)
                    done += 1
            return
        except (IntegrityError, MissingBlobs, NotFound) as bad:
            raise IntegrityError(f"`{path}` cannot be pulled: {bad.message}", hints=(_DAMAGED_HINT,)) from bad
        except (_CorruptDownload, ServerUnavailable) as bad:
            if done == len(digests):
                return  # it broke after the last byte
            if not transport.verify(digests[done]):
                raise IntegrityError(
                    f"blob {digests[done][:12]} of `{path}` is damaged on the server", hints=(_DAMAGED_HINT,)
                ) from bad
            if attempt == _MAX_ATTEMPTS:
                raise _corrupt_blob_error(bad, digests[done], path) from bad


class _CorruptDownload(Exception):
    """Bytes came over that do not match their digest."""


def _corrupt_blob_error(error: Exception, digest: Digest, path: str) -> HopyardError:
    if isinstance(error, HopyardError):
        return error
    return IntegrityError(
        f"blob {digest[:12]} of `{path}` came over damaged {_MAX_ATTEMPTS} times, though the server's "
        "copy is good",
        hints=("check the network",),
    )


def _matches_manifest(dest: Path, manifest: Digest, *, replace: bool) -> bool:
    """Whether `dest` is exactly the tree. Raises SpecError when it is in the way."""
    if not os.path.lexists(dest):
        return False
    if dest.is_dir() and not dest.is_symlink():
        if not any(dest.iterdir()):
            return False
        try:
            if pack_tree(dest, rules=EXACT_RULES).digest == manifest:
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
def _open_partial(parent: OpenFolder, dest: Path, manifest: Digest) -> Iterator[OpenFolder | None]:
    """The folder beside `dest` in which this pull gathers, locked; None when another process finished it
    meanwhile.

    Others may write where `dest` is to be. So its name is random, only this user may look into it, and it is
    never named again: an earlier pull's is taken only where it says itself, inside, whose it is. The tree
    gathers in a folder of its own below.
    """
    prefix = f".{dest.name[:64]}."
    with write_errors_below(str(dest.parent)):
        found = _find_partial(parent, prefix, manifest)
        if found is None:
            name = f"{prefix}{os.urandom(8).hex()}{_PARTIAL_SUFFIX}"
            found = name, parent.create_folder(name)
    name, partial = found
    with partial:
        fcntl.flock(partial.descriptor, fcntl.LOCK_EX)
        if not _exists(parent, name, partial):
            yield None
            return
        with write_errors_below(str(dest.parent)):
            if _MANIFEST_FILE not in partial.names():
                partial.create_folder(_TREE_DIR).close()
                # last: what has none was broken off, and is left alone
                partial.write(_MANIFEST_FILE, [manifest.encode()])
        yield partial
        if partial.names() == [_MANIFEST_FILE]:
            os.unlink(_MANIFEST_FILE, dir_fd=partial.descriptor)
            with suppress(OSError):  # another user moved it away: the tree is where it belongs all the same
                os.rmdir(name, dir_fd=parent.descriptor)


def _find_partial(parent: OpenFolder, prefix: str, manifest: Digest) -> tuple[str, OpenFolder] | None:
    """What an earlier pull of the same left."""
    for name in parent.names():
        if not (name.startswith(prefix) and name.endswith(_PARTIAL_SUFFIX)):
            continue
        with suppress(OSError, SpecError):
            partial = parent.enter_private(name)
            try:
                descriptor = partial.open(_MANIFEST_FILE, os.O_RDONLY)
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


def _exists(parent: OpenFolder, name: str, folder: OpenFolder) -> bool:
    try:
        return os.path.samestat(
            os.fstat(folder.descriptor), os.stat(name, dir_fd=parent.descriptor, follow_symlinks=False)
        )
    except FileNotFoundError:
        return False


def _move_into_place(partial: OpenFolder, parent: OpenFolder, dest: Path, *, replace: bool) -> bool:
    """Whether the tree is at `dest` now; False when something came there meanwhile, which may be the same."""
    old, at, mine = "", parent.descriptor, partial.descriptor
    if replace and os.path.lexists(dest):
        old = f".{dest.name[:64]}.{os.urandom(8).hex()}.old"
        os.rename(dest.name, old, src_dir_fd=at, dst_dir_fd=at)
    try:
        os.rename(_TREE_DIR, dest.name, src_dir_fd=mine, dst_dir_fd=at)
    except OSError as bad:
        if old:
            os.rename(old, dest.name, src_dir_fd=at, dst_dir_fd=at)
        if bad.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR) and not old:
            shutil.rmtree(_TREE_DIR, dir_fd=mine)
            return False
        raise SpecError(
            f"`{dest}` came into the way: {bad.strerror}", hints=("choose another folder",)
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
