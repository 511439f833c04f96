"""Series of several runs for charts: downsampled over a range of the x axis, or exact."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from hopyard.config.schemas.fields import RUN_ID, TEXT, RequestModel, full_match, word_list_pattern
from hopyard.domain.ids import RunId
from hopyard.domain.metric_values import MetricValue
from hopyard.domain.system_series import SYSTEM_PREFIX
from hopyard.errors import Conflict, SpecError
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.other_servers import check_stored_locally
from hopyard.server.responses import JSON
from hopyard.server.routes.streams import Ranks, parse_ranks
from hopyard.server.services import Services
from hopyard.tracking.run_history import RunHistory, load_histories
from hopyard.tracking.series_cursor import SeriesId, SeriesMark, decode_cursor, encode_cursor
from hopyard.tracking.series_curves import (
    BUCKET_COLUMNS,
    POINT_COLUMNS,
    AxisKind,
    CurveRequest,
    CurveSection,
    SeriesCurve,
    select_curves,
)
from hopyard.tracking.series_request import SeriesSelection, read_curves

MAX_RUNS = 100  # per request
MAX_BUCKETS = 200_000  # of all series of a response
_MAX_NAMES = 100
_MAX_CURSOR = 48 * 1024
_METRIC_AXIS = "metrics."
_DEFAULT_COLUMNS = "x_last,first,last,min,max,mean,counts,min_steps,max_steps"
_BYTES_PER_VALUE = 24  # as text in a response
_Number = Annotated[float, Meta(ge=-1e300, le=1e300)]


class SeriesQuery(RequestModel):
    run: Annotated[
        tuple[Annotated[str, Meta(pattern=RUN_ID)], ...],
        Meta(min_length=1, max_length=MAX_RUNS, description="the id of a run, repeatable"),
    ]
    name: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=1024, pattern=TEXT)], ...],
        Meta(
            min_length=1,
            max_length=_MAX_NAMES,
            description="a metric, repeatable; `*` is any text; `sys/*` is the resource usage",
        ),
    ]
    x: Annotated[
        str,
        Meta(
            max_length=1024 + len(_METRIC_AXIS),
            pattern=full_match(r"step|time|elapsed|metrics\.[^\x00]+"),
            description="the x axis: `step`, `time` (unix seconds), `elapsed` (seconds since the run began), "
            "or `metrics.NAME`",
        ),
    ] = "step"
    begin: Annotated[_Number, Meta(description="only points with at least this x")] | None = None
    end: Annotated[_Number, Meta(description="only points with at most this x")] | None = None
    buckets: Annotated[int, Meta(ge=1, le=20_000, description="maximum per series")] = 1000
    columns: Annotated[
        str,
        Meta(
            max_length=256,
            pattern=word_list_pattern((*POINT_COLUMNS, *BUCKET_COLUMNS)),
            description="columns, separated by commas",
        ),
    ] = _DEFAULT_COLUMNS
    ranks: Annotated[Ranks, Meta(description="one series for each of these ranks")] | None = None
    since: (
        Annotated[
            str,
            Meta(
                max_length=_MAX_CURSOR,
                pattern=full_match("[A-Za-z0-9_-]*"),
                description="`cursor` of the last answer to the same request: only later points",
            ),
        ]
        | None
    ) = None


class CurveOut(Struct, frozen=True, omit_defaults=True):
    """The points of one series in the range; the columns have equal lengths, in order of x.

    rank: only if `ranks` was given. total: the points of the series. count: its points in the range. exact:
    `x` and `values` are the points themselves. Otherwise each place is a bucket: `x` and `x_last` of its
    first and last point, `first`, `last`, `min`, `max` and `mean` of its values, `counts` of points, and
    `min_steps`, `max_steps` where the extremes are. `steps` and `times` are those of each point, or of the
    first point of a bucket. NaN does not count for `min`, `max` and `mean`; `nan_counts` counts it.
    Values that are not finite are `"NaN"`, `"Infinity"` and `"-Infinity"`.

    reset: the points replace all earlier ones of the series. sampled: the series has too many points for one
    request, so some were omitted when it was read; `counts` and `mean` are those of the others.
    """

    run: str
    name: str
    total: int
    count: int
    exact: bool
    x: list[float]
    rank: int | UnsetType = UNSET
    reset: bool = False
    sampled: bool = False
    values: list[MetricValue] | UnsetType = UNSET
    steps: list[int] | UnsetType = UNSET
    times: list[float | None] | UnsetType = UNSET
    x_last: list[float] | UnsetType = UNSET
    first: list[MetricValue] | UnsetType = UNSET
    last: list[MetricValue] | UnsetType = UNSET
    min: list[MetricValue] | UnsetType = UNSET
    max: list[MetricValue] | UnsetType = UNSET
    mean: list[MetricValue] | UnsetType = UNSET
    counts: list[int] | UnsetType = UNSET
    min_steps: list[int] | UnsetType = UNSET
    max_steps: list[int] | UnsetType = UNSET
    min_x: list[float] | UnsetType = UNSET
    max_x: list[float] | UnsetType = UNSET
    nan_counts: list[int] | UnsetType = UNSET


class UnavailableOut(Struct, frozen=True):
    """A run without series in the answer, and why."""

    run: str
    message: str


class CurvesOut(Struct, frozen=True):
    """buckets: the maximum per series that was used. cursor: `since` of the next request."""

    series: list[CurveOut]
    buckets: int
    cursor: str
    unavailable: list[UnavailableOut]


def series_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    cache = services.series

    async def series(request: ApiRequest[SeriesQuery, Empty]) -> Response:
        """Read series of several runs for a chart. A series with at most `buckets` points in the range is
        exact. A longer one is downsampled: all series have the same buckets of equal width between `begin`
        and `end`, or between the lowest and highest x, without the empty ones. The points are those of
        `GET /runs/{id}/metrics`. A response has at most 200,000 buckets and 1,000 series."""
        query = request.query
        _check_range(query)
        runs = [RunId(run) for run in dict.fromkeys(query.run)]
        since = None if query.since is None else decode_cursor(query.since)
        histories, unavailable = await _load_histories(services, runs)
        axis, x_metric = _parse_axis(query)
        ranks = None if query.ranks is None else tuple(sorted(parse_ranks(query.ranks) or ()))
        selection = SeriesSelection(query.name, ranks, x_metric)
        curves = await read_curves(cache, services.streams, histories, selection)
        columns = frozenset(query.columns.split(","))
        buckets = max(1, min(query.buckets, MAX_BUCKETS // max(1, len(curves))))
        points = sum(min(buckets, len(curve.columns)) for curve in curves)
        await request.lease.reserve_response(points * (len(columns) + 1) * _BYTES_PER_VALUE)
        curve_request = CurveRequest(axis, query.begin, query.end, buckets, columns)
        content = await asyncio.to_thread(_encode, curves, curve_request, since, unavailable)
        return Response(content, media_type=JSON)

    return [
        Endpoint("GET", "/series", series, SeriesQuery, returns=CurvesOut, errors=(400,), audit="series.read")
    ]


async def _load_histories(
    services: Services, runs: Sequence[RunId]
) -> tuple[list[RunHistory], list[UnavailableOut]]:
    found = await load_histories(services.runs, services.streams, runs)
    histories: list[RunHistory] = []
    unavailable: list[UnavailableOut] = []
    for run in runs:
        if run not in found:
            unavailable.append(UnavailableOut(run, f"there is no run {run}"))
            continue
        try:
            await check_stored_locally(services, found[run].run)
        except Conflict as error:
            unavailable.append(UnavailableOut(run, error.message))
        else:
            histories.append(found[run])
    return histories, unavailable


def _encode(
    curves: Sequence[SeriesCurve],
    request: CurveRequest,
    since: dict[SeriesId, SeriesMark] | None,
    unavailable: Sequence[UnavailableOut],
) -> bytes:
    """Returns the response. Each series is encoded on its own, so that other threads run in between."""
    parts, marks = select_curves(curves, request, since)
    return msgspec.json.encode(
        {
            "series": [msgspec.Raw(msgspec.json.encode(_to_out(part))) for part in parts],
            "buckets": request.buckets,
            "cursor": encode_cursor(marks),
            "unavailable": unavailable,
        }
    )


def _to_out(part: CurveSection) -> CurveOut:
    run, rank, name = part.id
    return CurveOut(
        run,
        name,
        part.total,
        part.count,
        part.is_exact,
        part.columns["x"],
        rank=UNSET if rank is None else rank,
        reset=part.is_reset,
        sampled=part.is_sampled,
        **{name: values for name, values in part.columns.items() if name != "x"},
    )


def _check_range(query: SeriesQuery) -> None:
    if query.begin is not None and query.end is not None and query.begin > query.end:
        raise SpecError(f"begin: {query.begin} is above `end`, {query.end}", hints=("swap them",))


def _parse_axis(query: SeriesQuery) -> tuple[AxisKind, str | None]:
    """Returns the kind of the x axis, and the metric that it shows."""
    if query.x.startswith(_METRIC_AXIS):
        if any(name.startswith(SYSTEM_PREFIX) for name in query.name):
            raise SpecError(
                f"x: `{SYSTEM_PREFIX}` series have no other metric as x axis",
                hints=("use `step`, `time` or `elapsed`, or request them separately",),
            )
        return "metric", query.x.removeprefix(_METRIC_AXIS)
    return ("time" if query.x == "time" else "elapsed" if query.x == "elapsed" else "step"), None
