"""Alerts of a run that a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import RequestModel
from hopyard.domain.ids import RunId
from hopyard.domain.notification import (
    MAX_ALERT_TEXT,
    MAX_ALERT_TITLE,
    MAX_ALERTS,
    Alert,
    AlertLevel,
    NotifyOn,
    check_alert,
    shown_target,
)
from hopyard.errors import Conflict
from hopyard.server.authorization import check_owns_run
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services


class AlertIn(RequestModel):
    text: Annotated[str, Meta(max_length=MAX_ALERT_TEXT)] = ""
    title: Annotated[str, Meta(max_length=MAX_ALERT_TITLE)] = ""
    level: AlertLevel = AlertLevel.WARNING


class AlertOut(Struct, frozen=True):
    """targets: what is notified, without the secret parts of addresses."""

    run: str
    targets: list[str]


def alert_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def create(request: ApiRequest[Empty, AlertIn]) -> AlertOut:
        """Give notice of something to the targets of a run. Equal alerts within a minute are one.

        400 for an alert without text. 403 unless the caller may change the run. 409 for a run that has no
        more alerts, or had this one within the minute.
        """
        run = await services.runs.get(RunId(request.path["id"]))
        check_owns_run(request.caller, run, owner=services.queue_cache.owner)
        text, title = check_alert(request.body.text, request.body.title, request.body.level)
        now = services.now()
        alert = Alert(text, now, title, request.body.level)
        if not await services.notifications.record_alert(run.id, alert, attempt=None, now=now):
            raise Conflict(
                f"run {run.name} had this alert within the minute, or {MAX_ALERTS} alerts in all",
                hints=("see its events with `hop info`",),
            )
        services.subscriptions.notify_state(run.id)
        targets = [shown_target(each.to) for each in run.spec.on_end if each.gets(NotifyOn.ALERT)]
        return AlertOut(run.id, targets)

    return [
        Endpoint(
            "POST",
            "/runs/{id}/alerts",
            create,
            body=AlertIn,
            returns=AlertOut,
            status=201,
            errors=(400, 409),
            audit="run.alert",
        )
    ]
