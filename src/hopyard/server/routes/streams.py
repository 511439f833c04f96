"""What runs said: followed live, read as a log, as raw bytes, as metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from hopyard.config.schemas.fields import TEXT, RequestModel, full_match, word_list_pattern, word_pattern
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.run import Run
from hopyard.domain.stream_limits import OUTPUT_STREAMS, STREAMS
from hopyard.errors import NotFound, SpecError
from hopyard.interfaces.streams import StreamKey
from hopyard.server.authentication import Caller
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint
from hopyard.server.other_servers import check_stored_here
from hopyard.server.pages import MAX_ROWS, Limit, PageQuery, paginate
from hopyard.server.responses import encode
from hopyard.server.run_names import with_readable_name
from hopyard.server.schemas.runs import to_run_out
from hopyard.server.services import Services
from hopyard.tracking.follow import FollowRequest, RunFrameStream
from hopyard.tracking.logs import last_lines, read_ranges, visible_ranges
from hopyard.tracking.metrics import Series, estimate_series_bytes, read_series
from hopyard.tracking.run_history import load_history
from hopyard.tracking.system import read_system

MAX_RAW_BYTES = 16 * 1024 * 1024
_ListText = Annotated[str, Meta(max_length=64 * 1024, pattern=TEXT)]
_Rank = Annotated[int, Meta(ge=0, lt=10**6)]
_MaxPoints = Annotated[int, Meta(ge=1, le=10**7)]


class FollowQuery(RequestModel):
    cursors: Annotated[
        str,
        Meta(
            max_length=64 * 1024,
            description='position of the follower: {"<attempt>:<rank>:<stream>": offset} as JSON',
        ),
    ] = "{}"
    streams: Annotated[
        str,
        Meta(max_length=256, pattern=word_list_pattern(STREAMS), description="names, separated by commas"),
    ] = "stdout,stderr"
    ranks: Annotated[
        str,
        Meta(
            pattern=full_match(r"all|[0-9]{1,6}(,[0-9]{1,6})*"),
            max_length=4096,
            description="`all`, or ranks separated by commas",
        ),
    ] = "all"


class LogQuery(RequestModel):
    stream: Annotated[str, Meta(pattern=word_pattern(OUTPUT_STREAMS))] = "stdout"
    rank: _Rank = 0
    tail_lines: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class RawQuery(RequestModel):
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, Meta(ge=0, le=MAX_RAW_BYTES)] = MAX_RAW_BYTES


class MetricsQuery(RequestModel):
    names: Annotated[_ListText, Meta(description="names, separated by commas; all when absent")] | None = None
    rank: _Rank | None = None
    max_points: _MaxPoints | None = None
    limit: Limit = MAX_ROWS
    after: (
        Annotated[
            str,
            Meta(
                max_length=64 * 1024,
                pattern=TEXT,
                description="only names after this name: `next` of the previous page",
            ),
        ]
        | None
    ) = None


class SystemQuery(RequestModel):
    max_points: _MaxPoints | None = None


class SeriesOut(Struct, frozen=True):
    """steps, values, times (unix seconds) have equal lengths; a value that is not a finite number is null.
    count: before thinning."""

    steps: list[int]
    values: list[float | None]
    times: list[float | None]
    count: int


class MetricsOut(Struct, frozen=True):
    """By name. next: `after` of the next page; null at the end."""

    series: Mapping[str, SeriesOut]
    next: str | None


class GpuOut(Struct, frozen=True):
    index: int
    utilisation_percent: float | None
    memory_bytes: int


class SampleOut(Struct, frozen=True):
    t: float
    rank: int
    cpu_percent: float | None
    memory_bytes: int
    gpus: list[GpuOut]


class SystemOut(Struct, frozen=True):
    samples: list[SampleOut]


class StreamOut(Struct, frozen=True):
    attempt: str
    rank: int
    stream: str


class StreamsOut(Struct, frozen=True):
    """By attempt, rank and name. next: `after` of the next page; null at the end."""

    streams: list[StreamOut]
    next: str | None


def make_frame_stream(services: Services, caller: Caller) -> RunFrameStream:
    """One that tells runs as this caller may see them and people read them."""
    return RunFrameStream(
        services.runs,
        services.streams,
        services.ingest,
        services.subscriptions,
        frame=lambda head: encode_frame(head, caller),
        with_readable_names=lambda run: with_readable_name(services.runs, run),
    )


def stream_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def follow(ask: ApiRequest[FollowQuery, Empty]) -> Response:
        """Follow a run until it is final.

        Frames: a line of JSON each, `kind` is state, output, progress, ping or end; after an output frame's
        line come `size` raw bytes. A client that lost the connection asks again with the cursors that it has.
        """
        run = RunId(ask.path["id"])
        wish = FollowRequest(
            tuple(dict.fromkeys(ask.query.streams.split(","))),
            _parse_ranks(ask.query.ranks),
            _parse_cursors(ask.query.cursors, run),
        )
        await check_stored_here(services, await services.runs.get(run))
        frames = make_frame_stream(services, ask.caller).frames(run, wish)
        first = await anext(frames)  # raises NotFound before an answer begins
        return StreamingResponse(
            _prepend(first, frames),
            media_type="application/octet-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def log(ask: ApiRequest[LogQuery, Empty]) -> Response:
        """Read a stream of one rank as users see it: what later attempts rolled back is left out."""
        past = await load_history(services.runs, services.streams, RunId(ask.path["id"]))
        await check_stored_here(services, past.run)
        found = await visible_ranges(services.streams, past, stream=ask.query.stream, rank=ask.query.rank)
        if ask.query.tail_lines is not None:
            found = await last_lines(services.streams, found, ask.query.tail_lines)
        return StreamingResponse(read_ranges(services.streams, found), media_type="application/octet-stream")

    async def raw(ask: ApiRequest[RawQuery, Empty]) -> Response:
        """Read a stream's bytes as they were shipped; `X-Length` tells how many there are in all."""
        attempt, rank, stream = AttemptId(ask.path["attempt"]), int(ask.path["rank"]), ask.path["stream"]
        run = await services.runs.get(RunId(ask.path["id"]))
        if split_attempt(attempt)[0] != run.id:
            raise NotFound(f"run {run.name} has no attempt {attempt}")
        await check_stored_here(services, run, attempt)
        length = (await services.streams.lengths(attempt, rank)).get(stream, 0)
        await ask.lease.reserve_response(max(0, min(ask.query.limit, length - ask.query.offset)))
        data = await services.streams.read(
            StreamKey(attempt, rank, stream), ask.query.offset, ask.query.limit
        )
        return Response(data, media_type="application/octet-stream", headers={"X-Length": str(length)})

    async def list_streams(ask: ApiRequest[PageQuery, Empty]) -> StreamsOut:
        """List the streams that a run has, of all attempts and ranks."""
        run = await services.runs.get(RunId(ask.path["id"]))
        page, after = paginate(
            await services.streams.list(run.id),
            ask.query,
            key=lambda one: f"{split_attempt(one.attempt)[1]:010}:{one.rank:06}:{one.name}",
        )
        return StreamsOut([StreamOut(key.attempt, key.rank, key.name) for key in page], after)

    async def metrics(ask: ApiRequest[MetricsQuery, Empty]) -> MetricsOut:
        """Read metrics as columns. `max_points` thins: of each stretch the least and the largest value stay.

        Without `rank`, each name is that of the lowest rank that logged it. An answer has at most a million
        points: where there are more, all of its metrics are thinned.
        """
        names = None if ask.query.names is None else [name for name in ask.query.names.split(",") if name]
        past = await load_history(services.runs, services.streams, RunId(ask.path["id"]))
        await check_stored_here(services, past.run)
        await ask.lease.reserve_response(
            await estimate_series_bytes(services.streams, past, max_points=ask.query.max_points)
        )
        found = await read_series(
            services.streams,
            past,
            names=names,
            after=ask.query.after,
            limit=ask.query.limit + 1,
            rank=ask.query.rank,
            max_points=ask.query.max_points,
        )
        page = list(found)[: ask.query.limit]
        return MetricsOut(
            {name: _to_series_out(found[name]) for name in page}, page[-1] if len(found) > len(page) else None
        )

    async def system(ask: ApiRequest[SystemQuery, Empty]) -> SystemOut:
        """Read what the run's processes used: CPU, memory, GPUs.
        Where there are more than a hundred thousand samples they are thinned."""
        past = await load_history(services.runs, services.streams, RunId(ask.path["id"]))
        await check_stored_here(services, past.run)
        samples = await read_system(services.streams, past, max_points=ask.query.max_points)
        return SystemOut(msgspec.convert(samples, list[SampleOut]))

    bytes_out = BinaryBody("bytes")
    return [
        Endpoint(
            "GET",
            "/runs/{id}/follow",
            follow,
            FollowQuery,
            returns=BinaryBody("frames"),
            auth="run",
            errors=(400, 409),
        ),
        Endpoint("GET", "/runs/{id}/log", log, LogQuery, returns=bytes_out, auth="study", errors=(409,)),
        Endpoint("GET", "/runs/{id}/streams", list_streams, PageQuery, returns=StreamsOut, auth="study"),
        Endpoint(
            "GET",
            "/runs/{id}/raw/{attempt}/{rank}/{stream}",
            raw,
            RawQuery,
            returns=BinaryBody("bytes", headers={"X-Length": "size of the stream in bytes"}),
            auth="run",
            errors=(409,),
        ),
        Endpoint(
            "GET",
            "/runs/{id}/metrics",
            metrics,
            MetricsQuery,
            returns=MetricsOut,
            auth="study",
            errors=(409,),
        ),
        Endpoint(
            "GET", "/runs/{id}/system", system, SystemQuery, returns=SystemOut, auth="run", errors=(409,)
        ),
    ]


def encode_frame(fields: Mapping[str, Any], caller: Caller) -> bytes:
    """One frame's line of JSON."""
    run = fields.get("run")
    return encode({**fields, "run": to_run_out(run, caller)} if isinstance(run, Run) else fields) + b"\n"


async def _prepend(first: bytes, remaining: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in remaining:
        yield piece


def _to_series_out(series: Series) -> SeriesOut:
    return SeriesOut(series.steps.tolist(), [*series.values], [*series.times], series.count)


def _parse_ranks(text: str) -> frozenset[int] | None:
    return None if text == "all" else frozenset(int(rank) for rank in text.split(","))


def _parse_cursors(text: str, run: RunId) -> dict[tuple[AttemptId, int, str], int]:
    try:
        given = msgspec.json.decode(text, type=dict[str, Annotated[int, Meta(ge=0, le=2**53)]])
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as bad:
        raise SpecError(
            f"cursors: {bad}", hints=('write them as {"<attempt>:<rank>:<stream>": offset}',)
        ) from bad
    found: dict[tuple[AttemptId, int, str], int] = {}
    for key, offset in given.items():
        attempt, _, rest = key.partition(":")
        rank, _, stream = rest.partition(":")
        if (
            not attempt.startswith(f"{run}.")
            or not (rank.isascii() and rank.isdecimal() and len(rank) <= 6)
            or stream not in STREAMS
        ):
            raise SpecError(f"cursors: `{key[:80]}` is not a stream of this run")
        found[AttemptId(attempt), int(rank), stream] = offset
    return found
