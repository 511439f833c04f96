"""Reports: pages of text, curves, tables and media of chosen runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from hopyard.config.schemas.fields import LINE, Name, RequestModel, full_match
from hopyard.domain.report import (
    MAX_REPORT_BYTES,
    Report,
    ReportAccess,
    ReportFilter,
    ReportSummary,
    unknown_error,
)
from hopyard.errors import Forbidden, SpecError
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint
from hopyard.server.pages import Limit
from hopyard.server.report_export.export import ReportExport
from hopyard.server.responses import encode
from hopyard.server.schemas.reports import (
    Blocks,
    NewReport,
    ReportIn,
    ReportOut,
    ReportsOut,
    ReportSummaryOut,
    RevisionOut,
    RevisionsOut,
)
from hopyard.server.services import Services

_MAX_RUNS = 1000  # of all blocks
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HTML = "text/html; charset=utf-8"
# As for all content of users: it must never act as a page of the server.
_EXPORT_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "no-store",
}
_decode_blocks: Callable[[str], Blocks] = msgspec.json.Decoder(Blocks).decode


class ReportsQuery(RequestModel):
    user: Annotated[Name, Meta(description="only reports of this user")] | None = None
    search: Annotated[
        str, Meta(max_length=200, pattern=LINE, description="only reports with this text in the title")
    ] = ""
    limit: Limit = 100
    after: (
        Annotated[
            str,
            Meta(
                pattern=full_match(r"[0-9]{1,18}-[0-9a-f]{16}"),
                max_length=64,
                description="`next` of the previous page; default: the first page",
            ),
        ]
        | None
    ) = None


def report_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    exporter = ReportExport(services)

    async def find(request: ApiRequest[Any, Any], *, for_change: bool = False) -> tuple[str, Report]:
        """Returns the caller and the report. A private report of another user is as one that does not
        exist."""
        user = request.caller.require_user()
        report = await services.reports.get(request.path["report"])
        if not report.may_read(user):
            raise unknown_error(report.id)
        if for_change and not report.may_write(user):
            raise Forbidden(
                f"`{user}` cannot change report {report.id} of {report.user}",
                hints=(f"ask {report.user} for the access `write`, or make a copy",),
            )
        return user, report

    async def list_reports(request: ApiRequest[ReportsQuery, Empty]) -> ReportsOut:
        """List the reports that the caller may read, the last changed first, without their blocks."""
        user, query = request.caller.require_user(), request.query
        before = None if query.after is None else _parse_cursor(query.after)
        where = ReportFilter(user, query.user, query.search, before, query.limit + 1)
        found = await services.reports.list(where)
        page = found[: query.limit]
        after = _cursor(page[-1]) if len(found) > len(page) else None
        return ReportsOut([ReportSummaryOut(**_summary(report, user)) for report in page], after)

    async def create(request: ApiRequest[Empty, NewReport]) -> ReportOut:
        """Create a report. 400 if the JSON of its blocks is longer than 256 KiB, 409 after 1000 reports of a
        user, 507 after 256 MiB of all of them with their earlier revisions."""
        user, body, now = request.caller.require_user(), request.body, services.now()
        blocks = _encode_blocks(body.blocks)
        report = Report(secrets.token_hex(8), user, body.title, body.access, 1, now, now, user, blocks)
        await services.reports.create(report)
        return _to_out(report, user)

    async def get(request: ApiRequest[Empty, Empty]) -> ReportOut:
        """Get a report of the caller, or one that other users may read."""
        user, report = await find(request)
        return _to_out(report, user)

    async def put(request: ApiRequest[Empty, ReportIn]) -> ReportOut:
        """Store new content of a report in place of a revision. 409 if the report is at another revision:
        someone else has changed it. A request with the content that the report has already changes nothing.
        Only its own user may change the access."""
        user, current = await find(request, for_change=True)
        body = request.body
        if body.access is not current.access and user != current.user:
            raise Forbidden(
                f"only {current.user} changes the access to report {current.id}",
                hints=(f"send the access `{current.access}`",),
            )
        changed = Report(
            current.id,
            current.user,
            body.title,
            body.access,
            body.revision,
            current.created_at,
            services.now(),
            user,
            _encode_blocks(body.blocks),
        )
        return _to_out(await services.reports.update(changed, base=body.revision), user)

    async def remove(request: ApiRequest[Empty, Empty]) -> Empty:
        """Remove a report with its earlier revisions. Only its own user and the owner of the server may."""
        user, report = await find(request)
        owner = services.queue_cache.owner
        if user not in (report.user, owner):
            raise Forbidden(
                f"`{user}` cannot remove report {report.id}; allowed users: "
                + ", ".join(dict.fromkeys((report.user, owner))),
                hints=("ask one of them",),
            )
        await services.reports.remove(report.id)
        return Empty()

    async def revisions(request: ApiRequest[Empty, Empty]) -> RevisionsOut:
        """List the revisions of a report: the current one, and at most 50 earlier ones. Of the changes that
        one user makes without another in between, one in ten minutes is kept."""
        _, report = await find(request)
        found = await services.reports.revisions(report.id)
        return RevisionsOut(
            [
                RevisionOut(each.revision, each.title, each.updated_at, each.updated_by, each.size_bytes)
                for each in found
            ]
        )

    async def revision(request: ApiRequest[Empty, Empty]) -> ReportOut:
        """Get a report as it was at a revision."""
        user, report = await find(request)
        number = int(request.path["number"])
        return _to_out(await services.reports.get_revision(report.id, number), user)

    async def export(request: ApiRequest[Empty, Empty]) -> Response:
        """Export a report as one HTML file with all of its content. The file needs neither a server nor a
        network, and contains no script."""
        _, report = await find(request)
        content = await exporter.export(report, _decode_blocks(report.blocks), request.lease)
        name = f'attachment; filename="report-{report.id}.html"'
        headers = {**_EXPORT_HEADERS, "Content-Disposition": name}
        return Response(content, media_type=_HTML, headers=headers)

    path = "/reports/{report}"
    return [
        Endpoint("GET", "/reports", list_reports, ReportsQuery, returns=ReportsOut),
        Endpoint(
            "POST", "/reports", create, body=NewReport, returns=ReportOut, status=201, errors=(400, 409, 507)
        ),
        Endpoint("GET", path, get, returns=ReportOut),
        Endpoint("PUT", path, put, body=ReportIn, returns=ReportOut, errors=(400, 409, 507)),
        Endpoint("DELETE", path, remove),
        Endpoint("GET", path + "/revisions", revisions, returns=RevisionsOut),
        Endpoint("GET", path + "/revisions/{number}", revision, returns=ReportOut),
        Endpoint(
            "GET",
            path + "/export",
            export,
            returns=BinaryBody("a standalone page", "text/html"),
            audit="report.read",
            is_heavy=True,
        ),
    ]


def _encode_blocks(blocks: Blocks) -> str:
    runs = {run for block in blocks for run in getattr(block, "runs", ())}
    if len(runs) > _MAX_RUNS:
        raise SpecError(
            f"blocks: a report shows at most {_MAX_RUNS} runs, this has {len(runs)}",
            hints=("split the report",),
        )
    text = encode(blocks)
    if len(text) > MAX_REPORT_BYTES:
        raise SpecError(
            f"blocks: {len(text)} bytes of JSON are too many",
            hints=(f"keep them within {MAX_REPORT_BYTES} bytes: split the report",),
        )
    return text.decode()


def _summary(report: ReportSummary, user: str) -> dict[str, Any]:
    return {
        "id": report.id,
        "user": report.user,
        "title": report.title,
        "access": ReportAccess(report.access),
        "revision": report.revision,
        "created_at": report.created_at,
        "updated_at": report.updated_at,
        "updated_by": report.updated_by,
        "may_write": report.may_write(user),
    }


def _to_out(report: Report, user: str) -> ReportOut:
    return ReportOut(**_summary(report, user), blocks=_decode_blocks(report.blocks))


def _cursor(report: ReportSummary) -> str:
    return f"{(report.updated_at - _EPOCH) // timedelta(microseconds=1)}-{report.id}"


def _parse_cursor(text: str) -> tuple[datetime, str]:
    at, _, report = text.partition("-")
    try:
        return _EPOCH + timedelta(microseconds=int(at)), report
    except OverflowError:
        raise SpecError(
            "after: this is not the `next` of a page", hints=("begin with the first page",)
        ) from None
