"""What this process changed lately, as a policy sees it: its own readers need not read that again.

An entry leads from the marks before to the marks after. Whatever else is written, by other servers too, moves
the marks, so a chain from what a reader knows to what it finds in the database is all that happened in
between; without one it reads the rows.
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

MAX_ENTRIES = 256  # entries; a reader that is further behind reads the rows


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """attempts: those that were changed, as they are now with their phase, None where they are over.
    no_longer_pending: gangs that wait no longer. submitted: gangs that wait since. past_usage, durations,
    promises: as in a snapshot; of the first two what is new, of the promises all, None where none was
    changed."""

    versions_after: TableVersions
    attempts: Mapping[AttemptId, tuple[Running, str] | None] = field(default_factory=dict)
    no_longer_pending: tuple[GangId, ...] = ()
    submitted: tuple[Gang, ...] = ()
    past_usage: Mapping[PastUsageKey, PastUsage] = field(default_factory=dict)
    durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    promises: Mapping[GangId, Promise] | None = None


class ChangeLog:
    """Of one Database. Written by the writing thread alone, read by any."""

    def __init__(self) -> None:
        self._uncommitted: list[tuple[TableVersions, ChangeSet]] = []  # of the transaction that is under way
        self._entries: dict[TableVersions, ChangeSet] = {}  # by the marks before

    def write(self, before: TableVersions, entry: ChangeSet) -> None:
        """Readers are told when the transaction is stored."""
        self._uncommitted.append((before, entry))

    def clear(self) -> None:
        """The database may be an older copy of itself: from the same marks on it may go another way.
        From any thread."""
        self._entries = {}

    def on_undone(self, _: int) -> None:
        """Something of the transaction that is under way is undone, or may be."""
        self._uncommitted.clear()

    def on_committed(self) -> None:
        """The transaction is stored."""
        entries = self._entries  # a reader may have it forgotten meanwhile
        entries.update(self._uncommitted)
        self._uncommitted.clear()
        while len(entries) > MAX_ENTRIES:
            del entries[next(iter(entries))]

    def changes_between(self, since: TableVersions, until: TableVersions) -> list[ChangeSet] | None:
        """What happened in between, in order; None where not all of it is known."""
        found: list[ChangeSet] = []
        while since != until:
            entry = self._entries.get(since)
            if entry is None or len(found) == MAX_ENTRIES:
                return None
            found.append(entry)
            since = entry.versions_after
        return found
