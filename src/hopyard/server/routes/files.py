"""The files in the working folder of a live run: listed, and read one by one."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hopyard.config.schemas.fields import TEXT, RequestModel
from hopyard.datasets.ignore_rules import SECRET_FILES
from hopyard.datasets.open_folder import OpenFolder
from hopyard.datasets.output_scan import scan_files
from hopyard.domain.encoded_path import decode_path, to_text
from hopyard.domain.ids import AttemptId, Digest, RunId
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.domain.run import MAX_REPLICAS, Run
from hopyard.domain.text import escape
from hopyard.errors import Conflict, HopyardError, NotFound
from hopyard.private_files import open_below
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint
from hopyard.server.other_servers import check_stored_locally
from hopyard.server.pages import MAX_ROWS, Limit
from hopyard.server.services import Services

_READ_BYTES = 256 * 1024
_MAX_LISTINGS, _LISTING_TTL_S = 8, 60.0


class FileQuery(RequestModel):
    """encoded: whether the path is percent-encoded, as in the list."""

    path: Annotated[str, Meta(min_length=1, max_length=12288, pattern=TEXT)]
    rank: Annotated[int, Meta(ge=0, lt=MAX_REPLICAS)] = 0
    encoded: bool = False


class FilePageQuery(RequestModel):
    """after: `next` of the previous page."""

    limit: Limit = MAX_ROWS
    after: (
        Annotated[
            str,
            Meta(
                max_length=12400,
                pattern=TEXT,
                description="`next` of the previous page; default: the first page",
            ),
        ]
        | None
    ) = None


class FileOut(Struct, frozen=True):
    """A file that the run wrote. path: relative to the working folder of this rank. encoded: whether the path
    is percent-encoded, because it is not UTF-8, or holds control characters or a backslash."""

    path: str
    rank: int
    size_bytes: int
    modified_at: datetime
    encoded: bool = False


class FilesOut(Struct, frozen=True):
    """By rank and path. next: `after` of the next page; null at the end."""

    files: list[FileOut]
    next: str | None


def file_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    listings = _FileListCache()

    async def list_files(request: ApiRequest[FilePageQuery, Empty]) -> FilesOut:
        """List the files that a live run wrote into its working folder so far. The files of an ended run are
        those of its artifact. All pages of a listing show the folder as it was at the first one."""
        run, attempt = await _live_attempt(services, request.path["id"])
        after = request.query.after
        listing = None if after is None else listings.get(attempt)
        if listing is None:
            code = await _code_files(services, run)
            files: list[FileOut] = []
            for rank, folder in services.work_folders(attempt).items():
                files += await asyncio.to_thread(_scan_files, folder, rank, code)
            listing = await asyncio.to_thread(_FileList.of_files, files)
        page, next_ = listing.page(after, request.query.limit)
        listings.put(attempt, listing if next_ else None)
        return FilesOut(page, next_)

    async def read_file(request: ApiRequest[FileQuery, Empty]) -> Response:
        """Read a file in the working folder of a live run, as long as it was at the beginning."""
        _, attempt = await _live_attempt(services, request.path["id"])
        folder = services.work_folders(attempt).get(request.query.rank)
        path = decode_path(request.query.path) if request.query.encoded else request.query.path
        opened = None if folder is None else await asyncio.to_thread(_open_regular, folder, path)
        if opened is None:
            raise NotFound(
                f"the run has no file `{escape(request.query.path)}`", hints=("list them with `hop files`",)
            )
        return _FileResponse(*opened)

    return [
        Endpoint(
            "GET", "/runs/{id}/files", list_files, FilePageQuery, returns=FilesOut, auth="run", errors=(409,)
        ),
        Endpoint(
            "GET",
            "/runs/{id}/file",
            read_file,
            FileQuery,
            returns=BinaryBody("bytes", headers={"X-Length": "size of the file in bytes"}),
            auth="run",
            errors=(409,),
        ),
    ]


async def _live_attempt(services: Services, run_id: str) -> tuple[Run, AttemptId]:
    run = await services.runs.get(RunId(run_id))
    if run.phase.is_final or run.attempt is None:
        raise Conflict(
            f"{run.name} is {run.phase}: it has no working folder",
            hints=("the files of an ended run are in its artifact: `hop files RUN`",),
        )
    await check_stored_locally(services, run)
    return run, run.attempt.id


async def _code_files(services: Services, run: Run) -> dict[str, FileEntry]:
    """Returns the files of the run's code by path; none if the code cannot be read."""
    if run.spec.code is None:
        return {}
    try:
        data = await services.blobs.get(Digest(run.spec.code))
        manifest = await asyncio.to_thread(Manifest.decode, data)
    except HopyardError:
        return {}
    return {file.path: file for file in manifest.files}


def _scan_files(folder: Path, rank: int, code: dict[str, FileEntry]) -> list[FileOut]:
    """Returns the files of one rank. A file of the code counts only if its size differs or it was written to
    after the folder was made."""
    # a shared working folder is complete from the second file on
    marks = [mark for name in ("streams", "folders.ready") if (mark := folder.parent / name).exists()]
    made_at = max((mark.stat().st_ctime for mark in marks), default=0.0)
    files: list[FileOut] = []
    try:
        opened = _open_work(folder)
    except OSError:
        return []
    with opened:
        root = Path(f"/proc/self/fd/{opened.descriptor}")
        for path, info, reason in scan_files(root):
            if reason is not None or not stat.S_ISREG(info.st_mode):
                continue
            source = code.get(path)
            if source is None or source.size != info.st_size or info.st_mtime > made_at:
                text, encoded = to_text(path)
                files.append(FileOut(text, rank, info.st_size, _modified_at(info.st_mtime), encoded))
    return files


def _open_work(folder: Path) -> OpenFolder:
    """Opens a working folder. Its script may have replaced it by a link, perhaps to files of other users:
    that raises OSError."""
    return OpenFolder(open_below(folder.parent, folder.name, os.O_RDONLY | os.O_DIRECTORY))


def _modified_at(seconds: float) -> datetime:
    """Returns the time; the first day of 9999 for a later year."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime(9999, 1, 1, tzinfo=UTC)


def _open_regular(folder: Path, path: str) -> tuple[FileIO, int] | None:
    """Returns a file below `folder`, open, and its size; None if there is none. Links are not followed. Files
    with keys are not read, as they are not stored."""
    parts = path.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or not SECRET_FILES.isdisjoint(parts):
        return None
    try:
        with _open_work(folder) as top:
            descriptor = top.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        return None
    return FileIO(descriptor), info.st_size


class _FileResponse(StreamingResponse):
    """Sends exactly `size` bytes of an open file. A file that became shorter meanwhile ends the response
    early. The file is closed at the end, also of a response that its client does not read."""

    def __init__(self, file: FileIO, size: int) -> None:
        self._file, self._size = file, size
        super().__init__(
            self._read_blocks(),
            media_type="application/octet-stream",
            headers={"X-Length": str(size)},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)

    async def _read_blocks(self) -> AsyncIterator[bytes]:
        offset = 0
        while offset < self._size:
            size = min(_READ_BYTES, self._size - offset)
            data = await asyncio.to_thread(os.pread, self._file.fileno(), size, offset)
            if not data:
                return
            offset += len(data)
            yield data


@dataclass(frozen=True, slots=True)
class _FileList:
    """The files of a run at one time, sorted by `keys`."""

    keys: Sequence[str]
    files: Sequence[FileOut]

    @classmethod
    def of_files(cls, files: Sequence[FileOut]) -> _FileList:
        pairs = sorted(((f"{file.rank:06}:{file.path}", file) for file in files), key=lambda pair: pair[0])
        return cls([key for key, _ in pairs], [file for _, file in pairs])

    def page(self, after: str | None, limit: int) -> tuple[list[FileOut], str | None]:
        """Returns the files after a key, and the key of the last one if more follow."""
        start = 0 if after is None else bisect_right(self.keys, after)
        end = min(start + limit, len(self.files))
        return list(self.files[start:end]), self.keys[end - 1] if end < len(self.files) else None


class _FileListCache:
    """The newest listings of which pages are still to be sent. So a folder is scanned once, and not for each
    page. A dropped listing is scanned again."""

    def __init__(self) -> None:
        self._by_attempt: OrderedDict[AttemptId, tuple[float, _FileList]] = OrderedDict()

    def get(self, attempt: AttemptId) -> _FileList | None:
        self._drop_old()
        found = self._by_attempt.get(attempt)
        return None if found is None else found[1]

    def put(self, attempt: AttemptId, listing: _FileList | None) -> None:
        """Keeps the listing; None drops it."""
        self._by_attempt.pop(attempt, None)
        if listing is not None:
            self._by_attempt[attempt] = time.monotonic(), listing
        self._drop_old()

    def _drop_old(self) -> None:
        oldest = time.monotonic() - _LISTING_TTL_S
        while self._by_attempt:
            attempt, (used_at, _) = next(iter(self._by_attempt.items()))
            if used_at > oldest and len(self._by_attempt) <= _MAX_LISTINGS:
                return
            del self._by_attempt[attempt]
