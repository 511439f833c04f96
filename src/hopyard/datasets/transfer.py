"""Pushes and pulls trees: requests the list of missing blobs, transfers only these, and checks every byte.

Both can be interrupted at any point and restarted. Transferred blobs are not sent again, and a tree counts
only when it is complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from blake3 import blake3

from hopyard.datasets.local_blobs import LARGE_BYTES, find_files, read_checked
from hopyard.datasets.merge_tree import merge_tree
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

# concurrent transfers: enough to keep both sides busy on one machine, and few enough to bound memory
TRANSFER_THREADS = 3
_MAX_DIGESTS_PER_REQUEST = 20_000
_PACK_BYTES, _PACK_BLOBS = 8 * 1024 * 1024, 1000
_MAX_ATTEMPTS = 3
_PARTIAL_SUFFIX, _TREE_DIR, _MANIFEST_FILE = ".part", "tree", "manifest"
_DAMAGED_HINT = "push the same data again: only damaged blobs are sent"


class PushResult(NamedTuple):
    """The amount that was transferred; both are 0 if the server had every blob."""

    blobs: int
    size_bytes: int


def push_tree(
    tree: PackedTree, transport: BlobTransport, progress: ProgressListener = NO_PROGRESS
) -> PushResult:
    """Sends every blob of `tree`, its manifest included, to the server. They are durable there on return.

    Raises SpecError if a file changed after it was packed, and the errors of the transport.
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
    """Sends these blobs of `tree` without checking first which are missing; for the digests of a
    `missing_blobs` error.

    Raises the errors of `push_tree`, and IntegrityError for a digest that does not belong to the tree.
    """
    requested = [Digest(digest) for digest in digests]
    unknown = [digest for digest in requested if digest != tree.digest and digest not in tree.sources]
    if unknown:
        raise IntegrityError(f"the server requested blob {unknown[0][:12]}, which is not part of {tree.root}")
    total = tree.size_of(requested)
    progress.begin("uploading", total)
    run_parallel(
        list(_upload_batches(tree, requested)),
        lambda batch: _upload_batch(tree, batch, transport, progress),
        threads=TRANSFER_THREADS,
        stop_on=transport.close,
    )
    return PushResult(len(requested), total)


def _upload_batches(tree: PackedTree, digests: Iterable[Digest]) -> Iterator[list[Digest]]:
    """Yields large blobs one by one, small blobs in batches."""
    group: list[Digest] = []
    size = 0
    for digest in digests:
        blob_size = tree.size_of([digest])
        if blob_size >= LARGE_BYTES:
            yield [digest]
            continue
        if group and (size + blob_size > _PACK_BYTES or len(group) >= _PACK_BLOBS):
            yield group
            group, size = [], 0
        group.append(digest)
        size += blob_size
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
    """Returns the checked manifest of this digest. Raises IntegrityError, NotFound."""
    received: list[bytes] = []
    _fetch_blobs(digest, [digest], transport, lambda _, data: received.append(data), str(digest))
    return Manifest.decode(received[0])


def pull_tree(
    manifest: Digest,
    dest: Path,
    transport: BlobSource,
    progress: ProgressListener = NO_PROGRESS,
    *,
    merge: bool = False,
) -> Manifest:
    """Writes the tree to `dest`, completely or not at all; resumes an interrupted pull.

    Leaves a `dest` that holds exactly this tree as it is. Any other content is rejected with SpecError; with
    `merge`, files of the same name are replaced and all others are kept. Raises IntegrityError if the
    server's copy is damaged, and StorageFull.
    """
    dest = Path(os.path.abspath(dest))
    if not dest.name:
        raise SpecError("`/` cannot be pulled into", hints=("choose another folder",))
    tree = fetch_manifest(manifest, transport)
    if _matches_manifest(dest, manifest, merge=merge):
        return tree
    with write_errors_below(str(dest.parent)):
        dest.parent.mkdir(parents=True, exist_ok=True)
    with OpenFolder.open_path(dest.parent) as parent, _open_partial(parent, dest, manifest) as partial:
        if partial is None:  # another process pulled the same meanwhile
            return pull_tree(manifest, dest, transport, progress, merge=merge)
        with partial.enter_private(_TREE_DIR) as into:
            _resume_download(manifest, into, transport, progress, tree, name=str(dest))
            os.fchmod(into.descriptor, 0o777 & ~_umask())
        if not _move_into_place(partial, parent, dest, merge=merge):
            return pull_tree(manifest, dest, transport, progress, merge=False)
    return tree


def download_blobs(
    manifest: Digest,
    into: Path,
    transport: BlobSource,
    progress: ProgressListener = NO_PROGRESS,
    *,
    tree: Manifest | None = None,
) -> Manifest:
    """Fills the folder `into` with the tree. Keeps intact files, so a second attempt fetches only the rest.

    Not atomic: `TreeCache` passes a folder that no process reads yet, and that no other user can write to.
    Raises the errors of `pull_tree`.
    """
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
    missing = writer.missing_digests()
    progress.begin("downloading", sum(size for _, size in missing))

    def receive(digest: Digest, data: bytes | memoryview) -> None:
        writer.write_blob(digest, data)
        progress.advance(len(data))

    files, sizes = find_files(transport, manifest, missing), dict(missing)

    def fetch(batch: list[Digest]) -> None:
        if len(batch) == 1 and batch[0] in files:
            blob = read_checked(files[batch[0]], batch[0], sizes[batch[0]])
            if blob is not None:
                receive(batch[0], blob)
                return
        _fetch_blobs(manifest, batch, transport, receive, writer.path_of(batch[0]))

    run_parallel(list(_download_batches(missing)), fetch, threads=TRANSFER_THREADS, stop_on=transport.close)
    writer.finish()


def _download_batches(blobs: Sequence[tuple[Digest, int]]) -> Iterator[list[Digest]]:
    batch: list[Digest] = []
    size = 0
    for digest, blob_size in blobs:
        if blob_size >= LARGE_BYTES:
            yield [digest]
            continue
        if batch and (size + blob_size > _PACK_BYTES or len(batch) >= _PACK_BLOBS):
            yield batch
            batch, size = [], 0
        batch.append(digest)
        size += blob_size
    if batch:
        yield batch


class _BlobReceiver(Protocol):
    def __call__(self, digest: Digest, data: bytes, /) -> object: ...


def _fetch_blobs(
    manifest: Digest, digests: Sequence[Digest], transport: BlobSource, receive: _BlobReceiver, path: str
) -> None:
    """Fetches and checks blobs. Retries corrupt downloads, unless the server finds that its own copy is
    damaged."""
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
        except (IntegrityError, MissingBlobs, NotFound) as error:
            raise IntegrityError(
                f"`{path}` cannot be pulled: {error.message}", hints=(_DAMAGED_HINT,)
            ) from error
        except (_CorruptDownload, ServerUnavailable) as error:
            if done == len(digests):
                return  # the connection broke after the last byte
            if not transport.verify(digests[done]):
                raise IntegrityError(
                    f"blob {digests[done][:12]} of `{path}` is damaged on the server", hints=(_DAMAGED_HINT,)
                ) from error
            if attempt == _MAX_ATTEMPTS:
                raise _corrupt_blob_error(error, digests[done], path) from error


class _CorruptDownload(Exception):
    """The received bytes do not match their digest."""


def _corrupt_blob_error(error: Exception, digest: Digest, path: str) -> HopyardError:
    if isinstance(error, HopyardError):
        return error
    return IntegrityError(
        f"blob {digest[:12]} of `{path}` arrived damaged {_MAX_ATTEMPTS} times, though the server's "
        "copy is good",
        hints=("check the network",),
    )


def _matches_manifest(dest: Path, manifest: Digest, *, merge: bool) -> bool:
    """Returns whether `dest` is exactly the tree. Raises SpecError if it holds anything else, unless
    `merge` is set."""
    if not os.path.lexists(dest):
        return False
    if dest.is_dir() and not dest.is_symlink():
        if not any(dest.iterdir()):
            return False
        try:
            if pack_tree(dest, rules=EXACT_RULES).digest == manifest:
                return True
        except SpecError:
            pass  # it holds an entry that no tree contains
    if merge:
        return False
    raise SpecError(
        f"`{dest}` already exists and holds other content",
        hints=("choose another folder, or merge into it with --force",),
    )


@contextmanager
def _open_partial(parent: OpenFolder, dest: Path, manifest: Digest) -> Iterator[OpenFolder | None]:
    """Yields the locked folder beside `dest` that collects this pull; None if another process finished it
    meanwhile.

    Other users may be able to write to the parent of `dest`. So the folder's name is random, only this user
    can read it, and it is never addressed by name again. The folder of an earlier pull is resumed only if the
    file inside names the same manifest. The tree is collected in a subfolder.
    """
    prefix = f".{dest.name[:64]}."
    with write_errors_below(str(dest.parent)):
        named_folder = _find_partial(parent, prefix, manifest)
        if named_folder is None:
            name = f"{prefix}{os.urandom(8).hex()}{_PARTIAL_SUFFIX}"
            named_folder = name, parent.create_folder(name)
    name, partial = named_folder
    with partial:
        fcntl.flock(partial.descriptor, fcntl.LOCK_EX)
        if not _exists(parent, name, partial):
            yield None
            return
        with write_errors_below(str(dest.parent)):
            if _MANIFEST_FILE not in partial.names():
                partial.create_folder(_TREE_DIR).close()
                # last: a folder without it was interrupted, and is left alone
                partial.write(_MANIFEST_FILE, [manifest.encode()])
        yield partial
        if partial.names() == [_MANIFEST_FILE]:
            os.unlink(_MANIFEST_FILE, dir_fd=partial.descriptor)
            with suppress(OSError):  # another user moved it away: the tree is in place anyway
                os.rmdir(name, dir_fd=parent.descriptor)


def _find_partial(parent: OpenFolder, prefix: str, manifest: Digest) -> tuple[str, OpenFolder] | None:
    """Returns the folder of an earlier pull of the same manifest, with its name."""
    for name in parent.names():
        if not (name.startswith(prefix) and name.endswith(_PARTIAL_SUFFIX)):
            continue
        with suppress(OSError, SpecError):
            partial = parent.enter_private(name)
            try:
                descriptor = partial.open(_MANIFEST_FILE, os.O_RDONLY)
                try:
                    stored_manifest = os.read(descriptor, 256)
                finally:
                    os.close(descriptor)
                if stored_manifest == manifest.encode():
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


def _move_into_place(partial: OpenFolder, parent: OpenFolder, dest: Path, *, merge: bool) -> bool:
    """Returns whether the tree is at `dest` now; False if another file, perhaps the same tree, appeared
    there."""
    parent_fd, partial_fd = parent.descriptor, partial.descriptor
    try:
        os.rename(_TREE_DIR, dest.name, src_dir_fd=partial_fd, dst_dir_fd=parent_fd)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise SpecError(
                f"`{dest}` was created by another program: {error.strerror}", hints=("choose another folder",)
            ) from error
        if not merge:
            shutil.rmtree(_TREE_DIR, dir_fd=partial_fd)
            return False
        try:
            existing = parent.enter(dest.name)
        except OSError:
            raise SpecError(
                f"`{dest}` is not a folder", hints=("choose another folder, or move it away",)
            ) from None
        with existing, partial.enter(_TREE_DIR) as tree:
            merge_tree(tree, existing, name=str(dest))
        os.rmdir(_TREE_DIR, dir_fd=partial_fd)
    return True


def _umask() -> int:
    """Returns the umask of the process; it can only be read by setting it for a moment."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
