"""Loads the events of changes: once for all clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from hopyard.domain.change import Change, ChangeKind, RunChange
from hopyard.domain.ids import RunId
from hopyard.domain.metric_values import encode_value
from hopyard.domain.run import Run
from hopyard.domain.run_query import run_values
from hopyard.domain.spec_summary import truncate_values
from hopyard.interfaces.run_store import RunFilter, RunStore
from hopyard.server.responses import encode
from hopyard.server.schemas.events import EventOut, EventRunOut
from hopyard.server.schemas.runs import encode_latest
from hopyard.tracking.event_filter import Event
from hopyard.tracking.ingest import StreamIngest

_Latest = Mapping[str, tuple[int, float]]
_PLAIN_KINDS: Mapping[ChangeKind, Literal["node", "queues", "reservation", "report"]] = {
    ChangeKind.NODE: "node",
    ChangeKind.QUEUES: "queues",
    ChangeKind.RESERVATION: "reservation",
    ChangeKind.REPORT: "report",
}


class EventLoader:
    """Returns the events of changes, in their order; none of a run that was deleted meanwhile, except its
    deletion."""

    def __init__(self, runs: RunStore, ingest: StreamIngest, *, now: Callable[[], datetime]) -> None:
        self._runs, self._ingest, self._now = runs, ingest, now

    async def __call__(self, changes: Sequence[Change]) -> Sequence[Event]:
        ids = frozenset(
            RunId(change.subject)
            for change in changes
            if change.kind is ChangeKind.RUN and change.change != RunChange.DELETED
        )
        runs = await self._runs.list(RunFilter(ids=ids, limit=len(ids), brief=True)) if ids else ()
        latest = self._ingest.latest_metrics(await self._runs.latest_metrics([run.id for run in runs]))
        by_id = {run.id: (run, latest[run.id]) for run in runs}
        events: list[Event] = []
        for change in changes:
            if change.kind is ChangeKind.RUN:
                if change.change == RunChange.DELETED:
                    events.append(_deleted(change))
                elif (found := by_id.get(RunId(change.subject))) is not None:
                    events.append(self._run_event(change, *found))
            elif (kind := _PLAIN_KINDS.get(change.kind)) is not None:
                events.append(Event(change, _encode(change, kind), kind))
        return events

    def _run_event(self, change: Change, run: Run, latest: _Latest) -> Event:
        kind: Literal["study", "run"] = "run" if run.spec.study is None else "study"
        return Event(
            change,
            _encode(change, kind, _run_out(run, latest)),
            kind,
            run.name.user,
            run.name.project,
            run_values(run, latest, now=self._now()),
        )


def _deleted(change: Change) -> Event:
    user, project, _ = change.detail.split("/")
    return Event(change, _encode(change, "run"), "run", user, project)


def _encode(
    change: Change,
    kind: Literal["run", "study", "node", "queues", "reservation", "report"],
    run: EventRunOut | None = None,
) -> bytes:
    out = EventOut(kind, change.change, change.subject, change.detail, change.at)
    return encode(
        out if run is None else EventOut(out.kind, out.change, out.subject, out.detail, change.at, run)
    )


def _run_out(run: Run, latest: _Latest) -> EventRunOut:
    spec = run.spec
    return EventRunOut(
        id=run.id,
        name=str(run.name),
        user=run.name.user,
        project=run.name.project,
        label=spec.label,
        phase=run.phase,
        queue=spec.queue,
        parent=spec.parent,
        tags=spec.tags,
        note=run.note,
        archived=run.archived,
        attempt=run.attempt.number if run.attempt is not None else 0,
        stop_requested=run.stop_requested,
        submitted_at=run.submitted_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        reason=run.exit.reason if run.exit is not None else "",
        params=run.params,
        summary={name: encode_value(value) for name, value in run.summary.items()},
        latest=encode_latest(truncate_values(latest)),
    )
