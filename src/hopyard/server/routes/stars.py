"""Stars that users give to runs, each for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopyard.domain.ids import RunId
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services

_UNAUDITED = "a star is a mark that only its own user sees"


def star_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def star(request: ApiRequest[Empty, Empty]) -> Empty:
        """Star a run for the caller. `GET /runs?starred=1` lists the starred runs."""
        user = request.caller.require_user()
        await services.runs.set_starred(RunId(request.path["id"]), user, True)
        return Empty()

    async def unstar(request: ApiRequest[Empty, Empty]) -> Empty:
        """Remove the caller's star from a run."""
        user = request.caller.require_user()
        await services.runs.set_starred(RunId(request.path["id"]), user, False)
        return Empty()

    path = "/runs/{id}/star"
    return [
        Endpoint("PUT", path, star, unaudited_reason=_UNAUDITED),
        Endpoint("DELETE", path, unstar, unaudited_reason=_UNAUDITED),
    ]
