"""What runs said: followed live, read as a log, as raw bytes, as metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.run import Run
from hopyard.errors import NotFound, SpecError
from hopyard.interfaces.streams import StreamKey
from hopyard.server.answers import encode
from hopyard.server.auth import Caller
from hopyard.server.endpoint import Ask, Endpoint, Nothing, Raw
from hopyard.server.fields import TEXT, In, entire, one_of, some_of
from hopyard.server.names import readable_one
from hopyard.server.other_servers import check_here
from hopyard.server.pages import MOST_ROWS, Limit, PageQuery, page_of
from hopyard.server.parts import Parts
from hopyard.server.wire import run_out
from hopyard.tracking.follow import Follower, Wish
from hopyard.tracking.ingest import STREAMS
from hopyard.tracking.logs import read_parts, tail, visible_parts
from hopyard.tracking.metrics import Series, read_series, series_bytes
from hopyard.tracking.past import look_back
from hopyard.tracking.system import read_system

RAW_LIMIT = 16 * 1024 * 1024
_LIST = Annotated[str, Meta(max_length=64 * 1024, pattern=TEXT)]
_Rank = Annotated[int, Meta(ge=0, lt=10**6)]
_MaxPoints = Annotated[int, Meta(ge=1, le=10**7)]


class FollowQuery(In):
    cursors: Annotated[
        str,
        Meta(
            max_length=64 * 1024,
            description='where the follower stands: {"<attempt>:<rank>:<stream>": offset} as JSON',
        ),
    ] = "{}"
    streams: Annotated[
        str, Meta(max_length=256, pattern=some_of(STREAMS), description="names, separated by commas")
    ] = "stdout,stderr"
    ranks: Annotated[
        str,
        Meta(
            pattern=entire(r"all|[0-9]{1,6}(,[0-9]{1,6})*"),
            max_length=4096,
            description="`all`, or ranks separated by commas",
        ),
    ] = "all"


class LogQuery(In):
    stream: Annotated[str, Meta(pattern=one_of(("stdout", "stderr")))] = "stdout"
    rank: _Rank = 0
    tail_lines: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class RawQuery(In):
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, Meta(ge=0, le=RAW_LIMIT)] = RAW_LIMIT


class MetricsQuery(In):
    names: Annotated[_LIST, Meta(description="names, separated by commas; all when absent")] | None = None
    rank: _Rank | None = None
    max_points: _MaxPoints | None = None
    limit: Limit = MOST_ROWS
    after: (
        Annotated[
            str,
            Meta(
                max_length=64 * 1024,
                pattern=TEXT,
                description="only names after this one: `next` of the page before",
            ),
        ]
        | None
    ) = None


class SystemQuery(In):
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


def follower_of(parts: Parts, caller: Caller) -> Follower:
    """One that tells runs as this caller may see them and people read them."""
    return Follower(
        parts.runs,
        parts.streams,
        parts.ingest,
        parts.hub,
        frame=lambda head: frame(head, caller),
        readable=lambda run: readable_one(parts.runs, run),
    )


def stream_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def follow(ask: Ask[FollowQuery, Nothing]) -> Response:
        """Follow a run until it is final.

        Frames: a line of JSON each, `kind` is state, output, progress, ping or end; after an output frame's
        line come `size` raw bytes. A client that lost the connection asks again with the cursors that it has.
        """
        run = RunId(ask.path["id"])
        wish = Wish(
            tuple(dict.fromkeys(ask.query.streams.split(","))),
            _ranks(ask.query.ranks),
            _cursors(ask.query.cursors, run),
        )
        await check_here(parts, await parts.runs.get(run))
        frames = follower_of(parts, ask.caller).frames(run, wish)
        first = await anext(frames)  # raises NotFound before an answer begins
        return StreamingResponse(
            _joined(first, frames),
            media_type="application/octet-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def log(ask: Ask[LogQuery, Nothing]) -> Response:
        """Read a stream of one rank as users see it: what later attempts rolled back is left out."""
        past = await look_back(parts.runs, parts.streams, RunId(ask.path["id"]))
        await check_here(parts, past.run)
        found = await visible_parts(parts.streams, past, stream=ask.query.stream, rank=ask.query.rank)
        if ask.query.tail_lines is not None:
            found = await tail(parts.streams, found, ask.query.tail_lines)
        return StreamingResponse(read_parts(parts.streams, found), media_type="application/octet-stream")

    async def raw(ask: Ask[RawQuery, Nothing]) -> Response:
        """Read a stream's bytes as they were shipped; `X-Length` tells how many there are in all."""
        attempt, rank, stream = AttemptId(ask.path["attempt"]), int(ask.path["rank"]), ask.path["stream"]
        run = await parts.runs.get(RunId(ask.path["id"]))
        if split_attempt(attempt)[0] != run.id:
            raise NotFound(f"run {run.name} has no attempt {attempt}")
        await check_here(parts, run, attempt)
        length = (await parts.streams.lengths(attempt, rank)).get(stream, 0)
        await ask.lease.reserve(max(0, min(ask.query.limit, length - ask.query.offset)))
        data = await parts.streams.read(StreamKey(attempt, rank, stream), ask.query.offset, ask.query.limit)
        return Response(data, media_type="application/octet-stream", headers={"X-Length": str(length)})

    async def list_streams(ask: Ask[PageQuery, Nothing]) -> StreamsOut:
        """List the streams that a run has, of all attempts and ranks."""
        run = await parts.runs.get(RunId(ask.path["id"]))
        page, after = page_of(
            await parts.streams.list(run.id),
            ask.query,
            key=lambda one: f"{split_attempt(one.attempt)[1]:010}:{one.rank:06}:{one.name}",
        )
        return StreamsOut([StreamOut(key.attempt, key.rank, key.name) for key in page], after)

    async def metrics(ask: Ask[MetricsQuery, Nothing]) -> MetricsOut:
        """Read metrics as columns. `max_points` thins: of each stretch the least and the largest value stay.

        Without `rank`, each name is that of the lowest rank that logged it. An answer has at most a million
        points: where there are more, all of its metrics are thinned.
        """
        names = None if ask.query.names is None else [name for name in ask.query.names.split(",") if name]
        past = await look_back(parts.runs, parts.streams, RunId(ask.path["id"]))
        await check_here(parts, past.run)
        await ask.lease.reserve(await series_bytes(parts.streams, past, max_points=ask.query.max_points))
        found = await read_series(
            parts.streams,
            past,
            names=names,
            after=ask.query.after,
            limit=ask.query.limit + 1,
            rank=ask.query.rank,
            max_points=ask.query.max_points,
        )
        page = list(found)[: ask.query.limit]
        return MetricsOut(
            {name: _series(found[name]) for name in page}, page[-1] if len(found) > len(page) else None
        )

    async def system(ask: Ask[SystemQuery, Nothing]) -> SystemOut:
        """Read what the run's processes used: CPU, memory, GPUs.
        Where there are more than a hundred thousand samples they are thinned."""
        past = await look_back(parts.runs, parts.streams, RunId(ask.path["id"]))
        await check_here(parts, past.run)
        samples = await read_system(parts.streams, past, max_points=ask.query.max_points)
        return SystemOut(msgspec.convert(samples, list[SampleOut]))

    bytes_out = Raw("bytes")
    return [
        Endpoint(
            "GET",
            "/runs/{id}/follow",
            follow,
            FollowQuery,
            returns=Raw("frames"),
            who="run",
            errors=(400, 409),
        ),
        Endpoint("GET", "/runs/{id}/log", log, LogQuery, returns=bytes_out, who="study", errors=(409,)),
        Endpoint("GET", "/runs/{id}/streams", list_streams, PageQuery, returns=StreamsOut, who="study"),
        Endpoint(
            "GET",
            "/runs/{id}/raw/{attempt}/{rank}/{stream}",
            raw,
            RawQuery,
            returns=Raw("bytes", headers={"X-Length": "how many bytes the stream has"}),
            who="run",
            errors=(409,),
        ),
        Endpoint(
            "GET", "/runs/{id}/metrics", metrics, MetricsQuery, returns=MetricsOut, who="study", errors=(409,)
        ),
        Endpoint(
            "GET", "/runs/{id}/system", system, SystemQuery, returns=SystemOut, who="run", errors=(409,)
        ),
    ]


def frame(head: Mapping[str, Any], caller: Caller) -> bytes:
    """One frame's line of JSON."""
    run = head.get("run")
    return encode({**head, "run": run_out(run, caller)} if isinstance(run, Run) else head) + b"\n"


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _series(series: Series) -> SeriesOut:
    return SeriesOut(series.steps.tolist(), [*series.values], [*series.times], series.count)


def _ranks(text: str) -> frozenset[int] | None:
    return None if text == "all" else frozenset(int(rank) for rank in text.split(","))


def _cursors(text: str, run: RunId) -> dict[tuple[AttemptId, int, str], int]:
    try:
        given = msgspec.json.decode(text, type=dict[str, Annotated[int, Meta(ge=0, le=2**53)]])
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as bad:
        raise SpecError(
            f"cursors: {bad}", hints=('they look like {"<attempt>:<rank>:<stream>": offset}',)
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
            raise SpecError(f"cursors: `{key[:80]}` is no stream of this run")
        found[AttemptId(attempt), int(rank), stream] = offset
    return found
