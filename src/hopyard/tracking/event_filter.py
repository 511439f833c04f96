"""Which changes a client wants to see."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.change import Change, ChangeKind, RunChange
from hopyard.domain.run_query import RunQuery, RunValues


@dataclass(frozen=True, slots=True)
class Event:
    """A change with the state of its subject. data: JSON for clients, the same for all. values: what a query
    may look at; None for what is no run, or is deleted."""

    change: Change
    data: bytes
    kind: str
    user: str = ""
    project: str = ""
    values: RunValues | None = None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """All conditions that are set must hold. kinds, changes: any of these. runs, user, project, query: only
    of runs; the deletion of a run fulfils every query."""

    kinds: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    user: str | None = None
    project: str | None = None
    query: RunQuery | None = None

    def accepts(self, event: Event) -> bool:
        change = event.change
        if (self.kinds and event.kind not in self.kinds) or (
            self.changes and change.change not in self.changes
        ):
            return False
        if change.kind is not ChangeKind.RUN:
            # with conditions on runs, other kinds are sent only on request
            return bool(self.kinds) or not (self.runs or self.user or self.project or self.query)
        if (self.runs and change.subject not in self.runs) or (
            (self.user and event.user != self.user) or (self.project and event.project != self.project)
        ):
            return False
        if self.query is None or change.change == RunChange.DELETED:
            return True
        return event.values is not None and self.query.accepts(event.values)
