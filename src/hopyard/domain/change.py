"""Changes of what users look at, and the position of a reader in their log.

A topic is one change of one subject: the note of a run, a node. Of several changes of a topic a reader needs
only the last, because it reads the state afterwards. Frequent topics are read separately, at most once a
second, so a position has two parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from hopyard.errors import SpecError

CURSOR_PATTERN = r"[0-9]{1,18}-[0-9]{1,18}-[0-9]{1,10}"
_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,10})", re.ASCII)


class ChangeKind(StrEnum):
    RUN = "run"  # also of a study
    NODE = "node"
    QUEUES = "queues"
    RESERVATION = "reservation"
    REPORT = "report"
    SERVER = "server"


class RunChange(StrEnum):
    SUBMITTED = "submitted"
    PHASE = "phase"
    ATTEMPT = "attempt"
    VALUES = "values"  # parameters, summary or latest metrics
    NAME = "name"
    TAGS = "tags"
    NOTE = "note"
    REQUEST = "request"  # queue, priority, resources, hold
    ARCHIVED = "archived"
    CHECKPOINT = "checkpoint"
    COMMAND = "command"
    ALERT = "alert"
    EVENT = "event"
    DELETED = "deleted"


class TableChange(StrEnum):
    CHANGED = "changed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the log.

    seq: its place in the order of the commits. tag: random; copies of a database that differ after some row
    differ in the tags of the later rows. subject: the id of the run, or the name. detail: the new value, if
    it is short.
    """

    seq: int
    tag: int
    at: datetime
    kind: ChangeKind
    subject: str
    change: str
    detail: str = ""
    is_frequent: bool = False

    @property
    def topic(self) -> tuple[str, str, str, str]:
        # each alert counts, but only the last value
        return self.kind, self.subject, self.change, self.detail


@dataclass(frozen=True, slots=True)
class Position:
    """What a reader has read: all rows up to `seq`, and all frequent ones up to `frequent_seq`. tag: of the
    later of both."""

    seq: int
    frequent_seq: int
    tag: int

    @property
    def last(self) -> int:
        return max(self.seq, self.frequent_seq)

    @property
    def first(self) -> int:
        """The row after which the reader may lack a change."""
        return min(self.seq, self.frequent_seq)

    def advance(self, seq: int, tag: int, *, frequent: bool) -> Position:
        """Returns the position after a row."""
        new_tag = tag if seq >= self.last else self.tag
        return replace(self, tag=new_tag, **{"frequent_seq" if frequent else "seq": seq})

    def cursor(self) -> str:
        """Returns the position as a text for clients."""
        return f"{self.seq}-{self.frequent_seq}-{self.tag}"


def parse_cursor(text: str) -> Position:
    """Raises SpecError."""
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise SpecError(
            "after: this is not the `id` of an event", hints=("give the `id` of the last event, or none",)
        )
    return Position(*map(int, match.groups()))


def latest_of_topics(changes: Iterable[Change]) -> list[Change]:
    """Returns the last change of each topic, in order."""
    latest: dict[tuple[str, str, str, str], Change] = {}
    for change in changes:
        latest.pop(change.topic, None)
        latest[change.topic] = change
    return list(latest.values())


def newest_row(changes: Sequence[Change], *, seq: int, tag: int) -> tuple[int, int]:
    """Returns seq and tag of the last of the changes, else the given ones."""
    return (changes[-1].seq, changes[-1].tag) if changes else (seq, tag)
