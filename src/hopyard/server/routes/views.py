"""Views that users keep: a named filter, order, grouping, set of columns and page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import Name, RequestModel
from hopyard.domain.saved_view import MAX_VIEW_BYTES, SavedView
from hopyard.errors import NotFound, SpecError
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import PageQuery, paginate
from hopyard.server.responses import encode
from hopyard.server.services import Services

Revision = Annotated[int, Meta(ge=0, le=2**53)]


class ViewIn(RequestModel):
    """view: a JSON object with fields that the client defines, such as filter, sort, group, columns and page.
    shared: every user may read it. revision: the one that the view replaces, and 0 if there is none of that
    name; null for any."""

    view: dict[str, Any]
    shared: bool = False
    revision: Revision | None = None


class ViewOut(Struct, frozen=True):
    """view: as it was stored. revision: counts the changes, from 1."""

    user: str
    name: str
    shared: bool
    revision: int
    updated_at: datetime
    view: dict[str, Any]


class ViewsOut(Struct, frozen=True):
    """The caller's views, then the shared ones of others. next: `after` of the next page; null at the end."""

    views: list[ViewOut]
    next: str | None


class ViewQuery(RequestModel):
    user: Annotated[Name, Meta(description="of a shared view of another user")] | None = None


class RemoveViewQuery(RequestModel):
    revision: Annotated[Revision, Meta(description="the one to remove; default: any")] | None = None


def view_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_views(request: ApiRequest[PageQuery, Empty]) -> ViewsOut:
        """List the caller's views, and the shared views of other users."""
        user = request.caller.require_user()
        page, after = paginate(
            await services.saved_views.list_visible(user),
            request.query,
            key=lambda view: f"{int(view.user != user)}/{view.user}/{view.name}",
        )
        return ViewsOut([_to_out(view) for view in page], after)

    async def get(request: ApiRequest[ViewQuery, Empty]) -> ViewOut:
        """Get a view of the caller, or a shared view of another user."""
        caller = request.caller.require_user()
        user, name = request.query.user or caller, request.path["view"]
        view = await services.saved_views.get(user, name)
        if view.user != caller and not view.shared:
            # as for a view that does not exist: names of private views stay private
            raise NotFound(f"{user} has no view `{name}`", hints=("list the views with GET /api/v1/views",))
        return _to_out(view)

    async def put(request: ApiRequest[Empty, ViewIn]) -> ViewOut:
        """Store a view of the caller, in place of one with this name. 400 if its JSON is longer than 64 KiB,
        409 after 1000 views, and if the view is at another revision than `revision`: another browser has
        changed it. A request with the content that the view has already changes nothing."""
        text = encode(request.body.view)
        if len(text) > MAX_VIEW_BYTES:
            raise SpecError(
                f"view: {len(text)} bytes of JSON are too many",
                hints=(f"keep it within {MAX_VIEW_BYTES} bytes",),
            )
        view = SavedView(
            request.caller.require_user(),
            request.path["view"],
            text.decode(),
            request.body.shared,
            services.now(),
        )
        return _to_out(await services.saved_views.put(view, base=request.body.revision))

    async def remove(request: ApiRequest[RemoveViewQuery, Empty]) -> Empty:
        """Remove a view of the caller. 409 if it is at another revision than `revision`."""
        await services.saved_views.remove(
            request.caller.require_user(), request.path["view"], base=request.query.revision
        )
        return Empty()

    path = "/views/{view}"
    return [
        Endpoint("GET", "/views", list_views, PageQuery, returns=ViewsOut),
        Endpoint("GET", path, get, ViewQuery, returns=ViewOut),
        Endpoint("PUT", path, put, body=ViewIn, returns=ViewOut, errors=(400, 409)),
        Endpoint("DELETE", path, remove, RemoveViewQuery, errors=(409,)),
    ]


def _to_out(view: SavedView) -> ViewOut:
    return ViewOut(view.user, view.name, view.shared, view.revision, view.updated_at, json.loads(view.view))
