"""The files that a run wrote: those of its artifact, or those in the working folder of a live run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.feedback import ProgressFactory, no_progress
from hopyard.domain.byte_text import format_bytes
from hopyard.domain.encoded_path import decode_path, to_text
from hopyard.domain.path_filter import is_selected
from hopyard.domain.rank_folders import split_rank
from hopyard.domain.text import escape
from hopyard.errors import HopyardError, IntegrityError, SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.domain.manifest import FileEntry, Manifest

_BLOCK_BYTES = 1024 * 1024
_RUN_DIR_PREFIX = "run/"  # of a stored run folder, see `replica.run_folder`


@dataclass(frozen=True, slots=True)
class RunFile:
    """One file. encoded: whether `path` is percent-encoded. modified_at: as ISO text; None for a stored file.
    rank: of the replica that wrote it, if replicas have working folders of their own. target: the text of a
    symbolic link, exact. tree: the digest of the stored tree with the file."""

    path: str
    size_bytes: int
    modified_at: str | None = None
    rank: int = 0
    executable: bool = False
    encoded: bool = False
    target: str | None = None
    entry: FileEntry | None = None
    tree: str = ""

    @property
    def name(self) -> str:
        """The path in a file system, as `os.fsdecode` returns it."""
        return decode_path(self.path) if self.encoded else self.path


def list_run_files(
    client: Client, run: api.RunOut, patterns: Sequence[str] = (), *, is_run_dir: bool = False
) -> list[RunFile]:
    """Returns the files of a run, ordered by path. patterns: as in `is_selected`; all files without.
    is_run_dir: those of `$HOPYARD_RUN_DIR` as stored last, in place of those of the working folder."""
    if is_run_dir:
        files = _stored_files(client, run.get("run_folder"), _RUN_DIR_PREFIX)
    elif is_ended(run):
        files = _artifact_files(client, run)
    else:
        files = _live_files(client, run)
    patterns = [to_text(pattern)[0] if _is_odd(pattern) else pattern for pattern in patterns]
    return sorted(
        (file for file in files if not patterns or is_selected(file.path, patterns)),
        key=lambda file: (file.path, file.rank),
    )


def _is_odd(pattern: str) -> bool:
    """Returns whether a pattern has characters of which an encoded path has none."""
    return not pattern.isprintable()


def describe_stored_files(client: Client, run: api.RunOut) -> str:
    """Returns the number and size of the stored files of an ended run, as "3 files, 1.2 MiB"; "" without
    any, and if they cannot be listed."""
    if not run.get("artifact"):
        return ""
    try:
        stored = list(_artifact_files(client, run))
    except HopyardError:  # the run has ended, which is what its user must know
        return ""
    count = len(stored)
    size = format_bytes(sum(file.size_bytes for file in stored))
    return f"{count:,} file{'' if count == 1 else 's'}, {size}"


def is_ended(run: api.RunOut) -> bool:
    return run["phase"] in ("succeeded", "failed", "cancelled")


def _artifact_files(client: Client, run: api.RunOut) -> Iterator[RunFile]:
    """Yields the stored files of an ended run. With a working folder for each replica, the stored tree has a
    folder for each rank; those of an older server have the files of one replica."""
    files = _stored_files(client, run.get("artifact"))
    if not _has_rank_folders(run):
        yield from files
        return
    for file in files:
        rank, path = split_rank(file.path) or (0, file.path)
        yield replace(file, path=path, rank=rank)


def _has_rank_folders(run: api.RunOut) -> bool:
    spec = run["spec"]
    if sum(role.get("replicas", 1) for role in spec["roles"]) < 2:
        return False  # a folder of it may be a number as well
    return bool(spec.get("study")) or any(role.get("private_folders") for role in spec["roles"])


def _stored_files(client: Client, tree: str | None, prefix: str = "") -> Iterator[RunFile]:
    """Yields the files of a stored tree with this prefix, without it."""
    from hopyard.datasets.transfer import fetch_manifest
    from hopyard.domain.ids import Digest

    if not tree:
        return
    manifest = fetch_manifest(Digest(tree), client)
    for entry in manifest.files:
        if not entry.path.startswith(prefix):
            continue
        path, encoded = _plain_path(manifest, entry.path.removeprefix(prefix))
        yield RunFile(path, entry.size, executable=entry.executable, encoded=encoded, entry=entry, tree=tree)
    for link in manifest.links:
        if not link.path.startswith(prefix):
            continue
        path, encoded = _plain_path(manifest, link.path.removeprefix(prefix))
        yield RunFile(
            path, 0, encoded=encoded, target=decode_path(link.target) if manifest.encoded else link.target
        )


def _plain_path(manifest: Manifest, path: str) -> tuple[str, bool]:
    """Returns a path of a manifest, and whether it is encoded: only one that must be."""
    return to_text(decode_path(path)) if manifest.encoded else (path, False)


def _live_files(client: Client, run: api.RunOut) -> Iterator[RunFile]:
    if run.get("attempt") is None:
        return
    for file in client.iterate_run_files(run["id"]):
        encoded = file.get("encoded", False)  # absent from an older server
        yield RunFile(file["path"], file["size_bytes"], file["modified_at"], file["rank"], encoded=encoded)


def read_run_file(client: Client, run: api.RunOut, file: RunFile) -> Iterator[bytes]:
    """Returns the bytes of a file. Reading raises IntegrityError if a file of a live run became shorter
    meanwhile, and if a stored one arrives damaged."""
    if file.entry is None:
        return _read_live_file(client, run, file)
    return read_stored_file(client, file.tree, file.entry)


def read_stored_file(client: Client, tree: str, entry: FileEntry) -> Iterator[bytes]:
    """Yields the bytes of a file of a stored tree. Raises IntegrityError if they arrive damaged."""
    from blake3 import blake3

    from hopyard.domain.ids import Digest

    chunks = list(entry.chunks)
    for digest, data in client.fetch(Digest(tree), chunks) if chunks else ():
        if blake3(data).hexdigest() != digest:
            raise IntegrityError(f"`{escape(entry.path)}` arrived damaged", hints=("repeat the command",))
        yield bytes(data)


def read_code_file(client: Client, run: api.RunOut, path: str) -> bytes:
    """Returns a file of the code that a run was submitted with, b"" for an absent one."""
    files = _stored_files(client, run["spec"].get("code"))
    found = next((file for file in files if file.path == path and file.entry is not None), None)
    return b"" if found is None else b"".join(read_run_file(client, run, found))


def code_reader(client: Client, run: api.RunOut) -> Callable[[str], bytes | None]:
    """Returns a function that reads the code that a run was submitted with: None for a file that is absent or
    cannot be read, such as that of a run of another user."""
    files: dict[str, RunFile] | None = None

    def read(path: str) -> bytes | None:
        nonlocal files
        try:
            if files is None:
                stored = _stored_files(client, run["spec"].get("code"))
                files = {file.path: file for file in stored if file.entry is not None}
            return b"".join(read_run_file(client, run, files[path])) if path in files else None
        except HopyardError:
            files = files or {}
            return None

    return read


def _read_live_file(client: Client, run: api.RunOut, file: RunFile) -> Iterator[bytes]:
    query: dict[str, str | int] = {"path": file.path, "rank": file.rank}
    if file.encoded:
        query["encoded"] = "true"
    with client.open("GET", f"/runs/{run['id']}/file", query=query) as response:
        missing = int(response.headers.get("X-Length") or 0)
        while data := response.read(_BLOCK_BYTES):
            missing -= len(data)
            yield data
    if missing > 0:
        raise IntegrityError(
            f"`{escape(file.path)}` became shorter while it was read", hints=("repeat the command",)
        )


def file_names(files: Sequence[RunFile]) -> list[str]:
    """Returns the path of each file below a folder that receives them all. With files of several ranks, each
    rank has a folder of its own."""
    several_ranks = len({file.rank for file in files}) > 1
    return [f"{file.rank}/{file.name}" if several_ranks else file.name for file in files]


def fetch_run_files(
    client: Client,
    run: api.RunOut,
    files: Mapping[str, RunFile],
    dest: Path,
    *,
    on_progress: ProgressFactory = no_progress,
) -> None:
    """Writes files to the folder `dest`, each at its path there. Replaces older files.

    Raises SpecError if a file cannot be written.
    """
    from hopyard.datasets.open_folder import OpenFolder

    try:
        dest.mkdir(parents=True, exist_ok=True)
        with on_progress() as progress, OpenFolder.open_path(dest) as top:
            progress.begin("downloading", sum(file.size_bytes for file in files.values()))
            for path, file in files.items():
                parent, _, name = path.rpartition("/")
                if parent:
                    top.make_folders([parent])
                if file.target is not None:
                    top.make_link(file.target, path)
                    continue
                with top.enter(parent) as folder:
                    blocks = _with_progress(read_run_file(client, run, file), progress.advance)
                    folder.write(name, blocks, executable=file.executable)
    except OSError as error:
        raise SpecError(
            f"{error.filename or dest} cannot be written: {error.strerror}", hints=("name another folder",)
        ) from error


def _with_progress(blocks: Iterator[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    for block in blocks:
        yield block
        advance(len(block))
