"""The recent changes of this process that a policy sees, so that its readers need not read them again.

An entry leads from the table versions before a write to those after it. Every write, also by other servers,
changes the versions. So a chain of entries from a reader's versions to those in the database is complete.
Without such a chain, the reader reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopyard.domain.cluster import Promise, Running
from hopyard.domain.gang import Gang
from hopyard.domain.ids import AttemptId, GangId
from hopyard.domain.queue import PastUsage
from hopyard.stores.sql.history_rows import PastUsageKey
from hopyard.stores.sql.versions import TableVersions

MAX_ENTRIES = 256  # a reader that is further behind reads the rows


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes of one write.

    attempts: changed attempts with their new state and phase, None if they ended. no_longer_pending: gangs
    that stopped waiting. submitted: gangs that started to wait. past_usage, durations: new values, as in a
    snapshot. promises: all promises, None if they are unchanged.
    """

    versions_after: TableVersions
    attempts: Mapping[AttemptId, tuple[Running, str] | None] = field(default_factory=dict)
    no_longer_pending: tuple[GangId, ...] = ()
    submitted: tuple[Gang, ...] = ()
    past_usage: Mapping[PastUsageKey, PastUsage] = field(default_factory=dict)
    durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    promises: Mapping[GangId, Promise] | None = None


class ChangeLog:
    """The change log of one Database. Written by the writing thread alone, read by any thread."""

    def __init__(self) -> None:
        self._uncommitted: list[tuple[TableVersions, ChangeSet]] = []  # of the current transaction
        self._entries: dict[TableVersions, ChangeSet] = {}  # by the versions before

    def write(self, before: TableVersions, entry: ChangeSet) -> None:
        """Adds an entry; readers see it once the transaction is committed."""
        self._uncommitted.append((before, entry))

    def clear(self) -> None:
        """Clears the log, because the database may be an older copy whose later changes differ.
        Thread-safe."""
        self._entries = {}

    def on_undone(self, _: int) -> None:
        """Drops the entries of the current transaction, because part of it is or may be undone."""
        self._uncommitted.clear()

    def on_committed(self) -> None:
        """Publishes the entries of the committed transaction."""
        entries = self._entries  # a reader may clear the log concurrently
        entries.update(self._uncommitted)
        self._uncommitted.clear()
        while len(entries) > MAX_ENTRIES:
            del entries[next(iter(entries))]

    def changes_between(self, since: TableVersions, until: TableVersions) -> list[ChangeSet] | None:
        """Returns the changes between these versions, in order; None if the log lacks some."""
        changes: list[ChangeSet] = []
        while since != until:
            entry = self._entries.get(since)
            if entry is None or len(changes) == MAX_ENTRIES:
                return None
            changes.append(entry)
            since = entry.versions_after
        return changes
