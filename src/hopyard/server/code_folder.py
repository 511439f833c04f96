"""Writes the text files of uploaded code into a temporary folder, for programs that read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.private_files import make_folder, open_file
from hopyard.server.scratch_folder import scratch_folder
from hopyard.server.services import Services

MAX_FILES = 5000
_MAX_FILE_BYTES, _MAX_BYTES = 2 * 2**20, 64 * 2**20
_TEXT_SUFFIXES = (
    *(".py", ".ipynb", ".sh", ".txt", ".in", ".toml", ".yaml", ".yml", ".json", ".cfg", ".lock"),
)


@asynccontextmanager
async def code_folder(services: Services, code: Digest | None) -> AsyncIterator[Path]:
    """Yields a folder with the code, None: an empty one. It is removed afterwards.

    It has the files nearest to the root, at most MAX_FILES. Files that are large, or no text by their names,
    are empty there; links are left out. Raises MissingBlobs, SpecError for a blob that is no manifest.
    """
    async with scratch_folder(services, "code-") as folder:
        if code is not None:
            await services.manifests.require_complete(code, subject="code")
            (await services.remote_blobs.fetch_missing([code])).check_reachable()
            manifest = Manifest.decode(await services.blobs.get(code))
            files, contents = _chosen(manifest), dict[Digest, bytes]()
            wanted = list(dict.fromkeys(file.chunks[0] for file, is_read in files if is_read))
            (await services.remote_blobs.fetch_missing(wanted)).check_reachable()
            async for digest, data in services.blobs.get_many(wanted):
                contents[digest] = data
            await asyncio.to_thread(_write, folder, files, contents)
        yield folder


def _chosen(manifest: Manifest) -> Sequence[tuple[FileEntry, bool]]:
    """Returns files, and whether each is written with its content."""
    nearest = sorted(manifest.files, key=lambda file: (file.path.count("/"), file.path))[:MAX_FILES]
    chosen, total = list[tuple[FileEntry, bool]](), 0
    for file in nearest:
        is_text = "." not in file.path.rpartition("/")[2] or file.path.endswith(_TEXT_SUFFIXES)
        is_read = is_text and 0 < file.size <= min(_MAX_FILE_BYTES, _MAX_BYTES - total)
        total += file.size if is_read else 0
        chosen.append((file, is_read))
    return chosen


def _write(folder: Path, files: Sequence[tuple[FileEntry, bool]], contents: dict[Digest, bytes]) -> None:
    for file, is_read in files:
        path = folder / file.path  # a manifest has no path that leads out of it
        make_folder(path.parent)
        with open(path, "xb", opener=open_file) as target:
            target.write(contents[file.chunks[0]] if is_read else b"")
        if file.executable:
            path.chmod(0o700)
