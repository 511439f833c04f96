"""The media of a run: images and other values that its script logged beside numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from hopyard.config.schemas.fields import TEXT, RequestModel
from hopyard.domain.ids import RunId
from hopyard.domain.media import MediaKind
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint
from hopyard.server.other_servers import check_stored_locally
from hopyard.server.pages import MAX_ROWS, Limit
from hopyard.server.services import Services
from hopyard.tracking.media import MediaItem, find_media, list_media, read_content
from hopyard.tracking.media_index import MediaIndexes
from hopyard.tracking.run_history import load_history

# Contents come from scripts. A browser must neither run one as a page nor guess another type.
_CONTENT_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, max-age=31536000, immutable",
}


class MediaQuery(RequestModel):
    """after: `next` of the previous page."""

    names: (
        Annotated[
            str,
            Meta(
                max_length=64 * 1024,
                pattern=TEXT,
                description="names, separated by commas, `*` is any text; all when absent",
            ),
        ]
        | None
    ) = None
    rank: Annotated[int, Meta(ge=0, lt=10**6)] | None = None
    limit: Limit = MAX_ROWS
    after: (
        Annotated[
            str,
            Meta(
                max_length=64,
                pattern=TEXT,
                description="`next` of the previous page; default: the first page",
            ),
        ]
        | None
    ) = None


class MediaItemOut(Struct, frozen=True):
    """index: the position in the list that was logged. time: unix seconds. digest: BLAKE2b of the content, in
    32 hexadecimal digits. details: numbers such as width, height, sample_rate, duration_s, rows."""

    id: str
    name: str
    kind: MediaKind
    type: str
    step: int
    index: int
    rank: int
    size_bytes: int
    time: float
    digest: str
    caption: str
    details: Mapping[str, float]


class MediaOut(Struct, frozen=True):
    """By name, step, rank and index. next: `after` of the next page; null at the end."""

    media: list[MediaItemOut]
    next: str | None


def media_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    indexes = MediaIndexes(services.streams)

    async def media(request: ApiRequest[MediaQuery, Empty]) -> MediaOut:
        """List the images and other media of a run, without those that later attempts rolled back."""
        query = request.query
        names = None if query.names is None else [name for name in query.names.split(",") if name]
        history = await load_history(services.runs, services.streams, RunId(request.path["id"]))
        await check_stored_locally(services, history.run)
        items = await list_media(indexes, history, names=names, rank=query.rank)
        start = 0
        if query.after is not None:
            positions = [number for number, item in enumerate(items) if item.id == query.after]
            start = positions[0] + 1 if positions else len(items)
        page = items[start : start + query.limit]
        is_last = start + len(page) >= len(items)
        return MediaOut([_to_item_out(item) for item in page], None if is_last else page[-1].id)

    async def content(request: ApiRequest[Empty, Empty]) -> Response:
        """Read the content of one item of the list."""
        run = await services.runs.get(RunId(request.path["id"]))
        await check_stored_locally(services, run)
        item = await find_media(services.streams, run, request.path["item"])
        return StreamingResponse(
            read_content(services.streams, item),
            media_type=item.record.type,
            headers={**_CONTENT_HEADERS, "X-Length": str(item.record.size_bytes)},
        )

    return [
        Endpoint("GET", "/runs/{id}/media", media, MediaQuery, returns=MediaOut, auth="run", errors=(409,)),
        Endpoint(
            "GET",
            "/runs/{id}/media/{item}",
            content,
            returns=BinaryBody("the content", headers={"X-Length": "size of the content in bytes"}),
            auth="run",
            errors=(409,),
        ),
    ]


def _to_item_out(item: MediaItem) -> MediaItemOut:
    record = item.record
    return MediaItemOut(
        item.id,
        record.name,
        record.kind,
        record.type,
        record.step,
        record.index,
        item.rank,
        record.size_bytes,
        record.time,
        record.digest,
        record.caption,
        record.details,
    )
