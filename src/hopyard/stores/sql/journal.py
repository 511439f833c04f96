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
from hopyard.domain.queue import Used
from hopyard.stores.sql.history_rows import UsedKey
from hopyard.stores.sql.marks import Marks

KEPT = 256  # entries; a reader that is further behind reads the rows


@dataclass(frozen=True, slots=True)
class Entry:
    """attempts: those that were changed, as they are now with their phase, None where they are over. placed:
    gangs that wait no longer. submitted: gangs that wait since. used, durations, promises: as in a snapshot;
    of the first two what is new, of the promises all, None where none was changed."""

    after: Marks
    attempts: Mapping[AttemptId, tuple[Running, str] | None] = field(default_factory=dict)
    placed: tuple[GangId, ...] = ()
    submitted: tuple[Gang, ...] = ()
    used: Mapping[UsedKey, Used] = field(default_factory=dict)
    durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    promises: Mapping[GangId, Promise] | None = None


class Journal:
    """Of one Database. Written by the writing thread alone, read by any."""

    def __init__(self) -> None:
        self._drafts: list[tuple[Marks, Entry]] = []  # of the transaction that is under way
        self._entries: dict[Marks, Entry] = {}  # by the marks before

    def write(self, before: Marks, entry: Entry) -> None:
        """Readers are told when the transaction is stored."""
        self._drafts.append((before, entry))

    def forget(self) -> None:
        """The database may be an older copy of itself: from the same marks on it may go another way.
        From any thread."""
        self._entries = {}

    def undone(self, _: int) -> None:
        """Something of the transaction that is under way is undone, or may be."""
        self._drafts.clear()

    def committed(self) -> None:
        """The transaction is stored."""
        entries = self._entries  # a reader may have it forgotten meanwhile
        entries.update(self._drafts)
        self._drafts.clear()
        while len(entries) > KEPT:
            del entries[next(iter(entries))]

    def between(self, known: Marks, now: Marks) -> list[Entry] | None:
        """What happened in between, in order; None where not all of it is known."""
        found: list[Entry] = []
        while known != now:
            entry = self._entries.get(known)
            if entry is None or len(found) == KEPT:
                return None
            found.append(entry)
            known = entry.after
        return found
