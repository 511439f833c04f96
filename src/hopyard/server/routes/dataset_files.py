"""The files of a version of a dataset: listed in pages, and read one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

from blake3 import blake3
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from hopyard.config.schemas.fields import TEXT, RequestModel
from hopyard.datasets.file_index import EntryKind, FileIndex, TreeEntry
from hopyard.domain.dataset import DatasetVersion
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES
from hopyard.domain.text import escape
from hopyard.errors import NotFound
from hopyard.server.byte_range import parse_range
from hopyard.server.dataset_files import DatasetFiles
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint
from hopyard.server.pages import MAX_ROWS, Limit
from hopyard.server.responses import simple_error_response
from hopyard.server.services import Services

_MAX_PATH = 12_288
_SMALL_INDEX = 2000  # so many paths are searched in about a millisecond
# What a browser may show beside a page. None of these runs script; all else, SVG included, is plain bytes.
_TYPES_BY_ENDING = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "mp4": "video/mp4",
    "webm": "video/webm",
}

_Path = Annotated[str, Meta(min_length=1, max_length=_MAX_PATH, pattern=TEXT)]


class DatasetFilesQuery(RequestModel):
    """after: `next` of the previous page."""

    folder: Annotated[
        str,
        Meta(max_length=_MAX_PATH, pattern=TEXT, description="the folder to list; default: the top folder"),
    ] = ""
    contains: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=256,
                pattern=TEXT,
                description="instead of the folder's entries, all files below it with this text in "
                "their path, in any case",
            ),
        ]
        | None
    ) = None
    limit: Limit = MAX_ROWS
    after: (
        Annotated[
            str,
            Meta(
                max_length=_MAX_PATH + 1,
                pattern=TEXT,
                description="`next` of the previous page; default: the first page",
            ),
        ]
        | None
    ) = None


class DatasetFileQuery(RequestModel):
    path: Annotated[_Path, Meta(description="as in the list of files")]


class DatasetEntryOut(Struct, frozen=True):
    """A file, a folder or a link of a version. path: relative to the version. size_bytes, files: of a folder,
    of all that is below it. target: of a link, relative to its folder."""

    path: str
    kind: EntryKind
    size_bytes: int
    files: int
    target: str


class DatasetFilesOut(Struct, frozen=True):
    """By path. is_encoded: whether paths are percent-encoded, which only trees that a run wrote can be. next:
    `after` of the next page; null at the end."""

    entries: list[DatasetEntryOut]
    version: int
    is_encoded: bool
    next: str | None


def dataset_file_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    files = DatasetFiles(services.blobs, services.remote_blobs)

    async def list_files(request: ApiRequest[DatasetFilesQuery, Empty]) -> DatasetFilesOut:
        """List a folder of a version: its files, its links, and its folders with their sizes. With
        `contains`, list matching files instead. Empty folders are not listed."""
        query = request.query
        version = await _get_version(services, request.path)
        index = await files.index(version.manifest)
        folder = query.folder.strip("/")
        if folder and not index.has_folder(folder):
            raise _not_found(version, folder, "folder")
        found = (
            _first_entries(index, query)
            if len(index.paths) <= _SMALL_INDEX
            else await asyncio.to_thread(_first_entries, index, query)
        )
        page = found[: query.limit]
        return DatasetFilesOut(
            [
                DatasetEntryOut(entry.path, entry.kind, entry.size_bytes, entry.files, entry.target)
                for entry in page
            ],
            version.number,
            index.encoded,
            page[-1].key if len(found) > len(page) else None,
        )

    async def read_file(request: ApiRequest[DatasetFileQuery, Empty]) -> Response:
        """Read a file of a version. A header `Range` with one range of bytes reads a part of it (206); 416 if
        the file has none of these bytes. Pictures, audio and video have their type, by the ending of the
        name; all other files are plain bytes."""
        version, path = await _get_version(services, request.path), request.query.path
        found = (await files.index(version.manifest)).find(path)
        if found is None:
            raise _not_found(version, path, "file")
        size, chunks = found
        tag = _entity_tag(chunks)
        headers = {
            "Accept-Ranges": "bytes",
            # a number of a version is never used again
            "Cache-Control": (
                "private, no-cache"
                if request.path["version"] in ("newest", "0")
                else "private, max-age=31536000, immutable"
            ),
            "ETag": tag,
            "X-Length": str(size),
        }
        given = request.request.headers
        if tag in [one.strip() for one in given.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        wanted = given.get("range") if given.get("if-range", tag) == tag else None
        part = parse_range(wanted, size)
        if part is None:
            return simple_error_response(
                416,
                "range_not_satisfiable",
                f"the file has {size} bytes",
                headers={"Content-Range": f"bytes */{size}"},
            )
        await request.lease.reserve_response(min(part.length, CHUNK_BYTES))
        is_part = part.length < size
        if is_part:
            headers["Content-Range"] = f"bytes {part.begin}-{part.end - 1}/{size}"
        return StreamingResponse(
            await files.read(chunks, part),
            status_code=206 if is_part else 200,
            media_type=_TYPES_BY_ENDING.get(path.rpartition(".")[2].lower(), "application/octet-stream"),
            headers={**headers, "Content-Length": str(part.length)},
        )

    return [
        Endpoint(
            "GET",
            "/datasets/{name}/versions/{version}/files",
            list_files,
            DatasetFilesQuery,
            returns=DatasetFilesOut,
            errors=(409,),
            is_heavy=True,
        ),
        Endpoint(
            "GET",
            "/datasets/{name}/versions/{version}/file",
            read_file,
            DatasetFileQuery,
            returns=BinaryBody("bytes", headers={"X-Length": "size of the file in bytes"}),
            other_statuses=(206, 304),
            errors=(409, 416),
        ),
    ]


async def _get_version(services: Services, path: Any) -> DatasetVersion:
    number = path["version"]
    return await services.datasets.version(path["name"], 0 if number == "newest" else int(number))


def _first_entries(index: FileIndex, query: DatasetFilesQuery) -> list[TreeEntry]:
    """Returns one entry more than a page has, if there are so many."""
    folder, after = query.folder.strip("/"), query.after or ""
    entries = (
        index.children(folder, after=after)
        if query.contains is None
        else index.search(query.contains, folder=folder, after=after)
    )
    return list(islice(entries, query.limit + 1))


def _entity_tag(chunks: Sequence[Digest]) -> str:
    """Returns the ETag of a file: of equal content only."""
    return f'"{blake3("".join(chunks).encode()).hexdigest()[:32]}"'


def _not_found(version: DatasetVersion, path: str, kind: str) -> NotFound:
    reference = f"{version.dataset}:{version.number}"
    return NotFound(
        f"{reference} has no {kind} `{escape(path)}`",
        hints=(f"list them with `hop dataset files {reference}`",),
    )
