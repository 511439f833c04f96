"""Streams of runs: followed live, read as a log, as raw bytes, as metrics."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from hopyard.config.schemas.fields import TEXT, RequestModel, full_match, word_list_pattern, word_pattern
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.metric_values import MetricValue, encode_value
from hopyard.domain.run import Run
from hopyard.domain.stream_limits import OUTPUT_STREAMS, STREAMS
from hopyard.errors import NotFound, SpecError
from hopyard.interfaces.streams import StreamKey
from hopyard.server.authentication import Caller
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint
from hopyard.server.other_servers import check_stored_locally
from hopyard.server.pages import MAX_ROWS, Limit, PageQuery, paginate
from hopyard.server.responses import encode
from hopyard.server.run_names import with_readable_name
from hopyard.server.schemas.runs import encode_latest, to_run_out
from hopyard.server.services import Services
from hopyard.tracking.follow import FollowRequest, RunFrameStream
from hopyard.tracking.logs import last_lines, read_ranges, visible_ranges
from hopyard.tracking.metrics import Series, estimate_series_bytes, read_series
from hopyard.tracking.output_order import OutputOrder, OutputSegment, last_line_parts, parts_since
from hopyard.tracking.rollback import VisibleStreams
from hopyard.tracking.run_history import load_history, load_with_evaluations
from hopyard.tracking.system import read_system

MAX_RAW_BYTES = 16 * 1024 * 1024
_FRAME_BYTES = 256 * 1024
_ListText = Annotated[str, Meta(max_length=64 * 1024, pattern=TEXT)]
_Rank = Annotated[int, Meta(ge=0, lt=10**6)]
Ranks = Annotated[
    str,
    Meta(
        pattern=full_match(r"all|[0-9]{1,6}(,[0-9]{1,6})*"),
        max_length=4096,
        description="`all`, or ranks separated by commas",
    ),
]
_MaxPoints = Annotated[int, Meta(ge=1, le=10**7)]
_decode_offsets = msgspec.json.Decoder(dict[str, Annotated[int, Meta(ge=0, le=2**53)]]).decode


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
    ranks: Ranks = "all"


class LogQuery(RequestModel):
    stream: Annotated[str, Meta(pattern=word_pattern(OUTPUT_STREAMS))] = "stdout"
    rank: _Rank = 0
    tail_lines: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class OutputQuery(RequestModel):
    """attempt: only this attempt, in full. since: unix seconds."""

    streams: Annotated[
        str,
        Meta(
            max_length=64, pattern=word_list_pattern(OUTPUT_STREAMS), description="names, separated by commas"
        ),
    ] = "stdout,stderr"
    ranks: Ranks = "all"
    tail_lines: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    since: Annotated[float, Meta(ge=0, le=10**11)] | None = None
    attempt: Annotated[int, Meta(ge=1, le=10**9)] | None = None


class RawQuery(RequestModel):
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, Meta(ge=0, le=MAX_RAW_BYTES)] = MAX_RAW_BYTES


class MetricsQuery(RequestModel):
    names: (
        Annotated[_ListText, Meta(description="names, separated by commas, `*` is any text; all when absent")]
        | None
    ) = None
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
    """steps, values, times (unix seconds) have equal lengths. Values that are not finite are `"NaN"`,
    `"Infinity"` and `"-Infinity"`. count: the number of points before downsampling."""

    steps: list[int]
    values: list[MetricValue]
    times: list[float | None]
    count: int


class MetricsOut(Struct, frozen=True):
    """By name. next: `after` of the next page; null at the end."""

    series: Mapping[str, SeriesOut]
    next: str | None


class GpuOut(Struct, frozen=True):
    """temperature_celsius: null for a GPU without a sensor, and in samples of older replicas."""

    index: int
    utilisation_percent: float | None
    memory_bytes: int
    temperature_celsius: float | None = None


class SampleOut(Struct, frozen=True):
    """read_bytes_per_s, write_bytes_per_s: of disks. host_received_bytes_per_s, host_sent_bytes_per_s: over
    the network, by all processes of the host or container. All are null in samples of older replicas."""

    t: float
    rank: int
    cpu_percent: float | None
    memory_bytes: int
    gpus: list[GpuOut]
    read_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None
    host_received_bytes_per_s: float | None = None
    host_sent_bytes_per_s: float | None = None


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
    """Returns a stream of frames with runs as this caller may see them, and with readable names."""
    return RunFrameStream(
        services.runs,
        services.streams,
        services.ingest,
        services.subscriptions,
        frame=lambda head: encode_frame(head, caller),
        with_readable_names=lambda run: with_readable_name(services.runs, run),
    )


def stream_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def follow(request: ApiRequest[FollowQuery, Empty]) -> Response:
        """Follow a run until it is final. Frames are lines of JSON; `kind` is state, output, progress, ping
        or end. The line of an output frame is followed by `size` raw bytes. After a lost connection, a client
        requests the stream again with its cursors."""
        run = RunId(request.path["id"])
        follow_request = FollowRequest(
            tuple(dict.fromkeys(request.query.streams.split(","))),
            parse_ranks(request.query.ranks),
            _parse_cursors(request.query.cursors, run),
        )
        await check_stored_locally(services, await services.runs.get(run))
        frames = make_frame_stream(services, request.caller).frames(run, follow_request)
        first = await anext(frames)  # raises NotFound before the response begins
        return StreamingResponse(
            _prepend(first, frames),
            media_type="application/octet-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def log(request: ApiRequest[LogQuery, Empty]) -> Response:
        """Read a stream of one rank as users see it, without the parts that later attempts rolled back."""
        history = await load_history(services.runs, services.streams, RunId(request.path["id"]))
        await check_stored_locally(services, history.run)
        ranges = await visible_ranges(
            services.streams, history, stream=request.query.stream, rank=request.query.rank
        )
        if request.query.tail_lines is not None:
            ranges = await last_lines(services.streams, ranges, request.query.tail_lines)
        return StreamingResponse(read_ranges(services.streams, ranges), media_type="application/octet-stream")

    async def output(request: ApiRequest[OutputQuery, Empty]) -> Response:
        """Read stdout and stderr of all ranks in the order of their arrival, without the parts that later
        attempts rolled back. Each frame is a line of JSON with rank, stream, size and `at` (unix seconds, or
        null), followed by `size` raw bytes."""
        query = request.query
        history = await load_history(services.runs, services.streams, RunId(request.path["id"]))
        view, run = history.visible_streams, history.run
        attempts = view.attempts
        if query.attempt is not None:
            attempts = tuple(a for a in view.all_attempts if split_attempt(a)[1] == query.attempt)
            view = VisibleStreams(attempts, {}, attempts)
        await check_stored_locally(services, run, attempts[0] if query.attempt and attempts else None)
        ranks = parse_ranks(query.ranks)
        parts: list[OutputSegment] = []
        order = OutputOrder(services.streams)
        for attempt in attempts:
            parts += await order.parts(
                view,
                attempt,
                range(run.spec.size) if ranks is None else sorted(ranks),
                tuple(dict.fromkeys(query.streams.split(","))),
                cursors={},
            )
        if query.since is not None:
            parts = parts_since(parts, query.since)
        if query.tail_lines is not None:
            parts = await last_line_parts(services.streams, parts, query.tail_lines)
        return StreamingResponse(_output_frames(services, parts), media_type="application/octet-stream")

    async def raw(request: ApiRequest[RawQuery, Empty]) -> Response:
        """Read a stream's bytes as they were shipped; `X-Length` is their total number."""
        attempt, rank, stream = (
            AttemptId(request.path["attempt"]),
            int(request.path["rank"]),
            request.path["stream"],
        )
        run = await services.runs.get(RunId(request.path["id"]))
        if split_attempt(attempt)[0] != run.id:
            raise NotFound(f"run {run.name} has no attempt {attempt}")
        await check_stored_locally(services, run, attempt)
        length = (await services.streams.lengths(attempt, rank)).get(stream, 0)
        await request.lease.reserve_response(max(0, min(request.query.limit, length - request.query.offset)))
        data = await services.streams.read(
            StreamKey(attempt, rank, stream), request.query.offset, request.query.limit
        )
        return Response(data, media_type="application/octet-stream", headers={"X-Length": str(length)})

    async def list_streams(request: ApiRequest[PageQuery, Empty]) -> StreamsOut:
        """List the streams of a run, of all attempts and ranks."""
        run = await services.runs.get(RunId(request.path["id"]))
        page, after = paginate(
            await services.streams.list(run.id),
            request.query,
            key=lambda key: f"{split_attempt(key.attempt)[1]:010}:{key.rank:06}:{key.name}",
        )
        return StreamsOut([StreamOut(key.attempt, key.rank, key.name) for key in page], after)

    async def metrics(request: ApiRequest[MetricsQuery, Empty]) -> MetricsOut:
        """Read metrics as columns. `max_points` downsamples: each bucket keeps its minimum and maximum.
        Without `rank`, the points of each name are those of the lowest rank that logged it. A response has at
        most a million points; all of its metrics are downsampled to stay below it."""
        names = (
            None if request.query.names is None else [name for name in request.query.names.split(",") if name]
        )
        history = await load_with_evaluations(services.runs, services.streams, RunId(request.path["id"]))
        await check_stored_locally(services, history.run)
        await request.lease.reserve_response(
            await estimate_series_bytes(services.streams, history, max_points=request.query.max_points)
        )
        series = await read_series(
            services.streams,
            history,
            names=names,
            after=request.query.after,
            limit=request.query.limit + 1,
            rank=request.query.rank,
            max_points=request.query.max_points,
        )
        page = list(series)[: request.query.limit]
        return MetricsOut(
            {name: _to_series_out(series[name]) for name in page},
            page[-1] if len(series) > len(page) else None,
        )

    async def system(request: ApiRequest[SystemQuery, Empty]) -> SystemOut:
        """Read the resource usage of the run's processes: CPU, memory, GPUs. More than a hundred thousand
        samples are downsampled."""
        history = await load_history(services.runs, services.streams, RunId(request.path["id"]))
        await check_stored_locally(services, history.run)
        samples = await read_system(services.streams, history, max_points=request.query.max_points)
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
        Endpoint(
            "GET",
            "/runs/{id}/output",
            output,
            OutputQuery,
            returns=BinaryBody("frames"),
            auth="study",
            errors=(409,),
        ),
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


async def _output_frames(services: Services, parts: Sequence[OutputSegment]) -> AsyncIterator[bytes]:
    for part in parts:
        offset = part.begin
        while offset < part.end and (
            data := await services.streams.read(part.key, offset, min(_FRAME_BYTES, part.end - offset))
        ):
            offset += len(data)
            head = {"rank": part.key.rank, "stream": part.key.name, "size": len(data), "at": part.at}
            yield encode(head) + b"\n" + data


def encode_frame(fields: Mapping[str, Any], caller: Caller) -> bytes:
    """Returns the JSON line of a frame."""
    run, latest = fields.get("run"), fields.get("latest")
    if isinstance(run, Run):
        fields = {**fields, "run": to_run_out(run, caller)}
    elif latest is not None:
        fields = {**fields, "latest": encode_latest(latest)}
    return encode(fields) + b"\n"


async def _prepend(first: bytes, remaining: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in remaining:
        yield piece


def _to_series_out(series: Series) -> SeriesOut:
    values: list[MetricValue] = [*series.values]
    if not all(map(math.isfinite, series.values)):
        values = [encode_value(value) for value in series.values]
    return SeriesOut(series.steps.tolist(), values, [*series.times], series.count)


def parse_ranks(text: str) -> frozenset[int] | None:
    """Returns the ranks; None for `all`."""
    return None if text == "all" else frozenset(int(rank) for rank in text.split(","))


def _parse_cursors(text: str, run: RunId) -> dict[tuple[AttemptId, int, str], int]:
    try:
        offsets = _decode_offsets(text)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise SpecError(
            f"cursors: {error}", hints=('write them as {"<attempt>:<rank>:<stream>": offset}',)
        ) from error
    cursors: dict[tuple[AttemptId, int, str], int] = {}
    for key, offset in offsets.items():
        attempt, _, rank_and_stream = key.partition(":")
        rank, _, stream = rank_and_stream.partition(":")
        if (
            not attempt.startswith(f"{run}.")
            or not (rank.isascii() and rank.isdecimal() and len(rank) <= 6)
            or stream not in STREAMS
        ):
            raise SpecError(f"cursors: `{key[:80]}` is not a stream of this run")
        cursors[AttemptId(attempt), int(rank), stream] = offset
    return cursors
