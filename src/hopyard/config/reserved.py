"""Reservations in the file of a cluster that is simulated, as `hop reserve` takes them.

```yaml
reservations:
  - {name: exam, from: +2h, for: 4h, nodes: [a100-0000, a100-0001], users: [alice, bob]}
  - {name: class, from: "monday 09:00", for: 2h, every: week, until: 2026-03-01,
     resources: {gpus: A100:8}, count: 2, pool: a100, queue: nlp}
```

Times count from the beginning of the workload (`+2h`, `now`), or are moments (UTC where no zone is given).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from hopyard.config import units
from hopyard.config.reader import Section, section, shown
from hopyard.config.reservations import check_reservation, parse_every, parse_when
from hopyard.config.rolefile import read_role
from hopyard.config.values import read_name
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Where
from hopyard.domain.ids import NodeId, PoolName, QueueName, ReservationId, check_name
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.errors import SpecError, UsageError

MOST = 1000
KEYS = (
    "name",
    "from",
    "for",
    "to",
    "every",
    "until",
    "users",
    "queue",
    "nodes",
    "resources",
    "count",
    "pool",
    "labels",
)
_TIME_HINT = (
    'a time is written "+2h" (after the beginning), "2026-12-01 09:00", "monday 09:00" or now; in '
    "quotes where it is all digits and colons"
)
_PLACE_HINT = "whole nodes: `nodes: [a100-0000]`; or pieces: `resources: {gpus: A100:8}` with `count: 2`"
_NOTHING = "it reserves nothing"
# what a Reservation calls it, and the file
_KEY_OF = {"start_at": "from", "every_s": "every", "where.pools": "pool"}
_HINTS = {
    "from": _TIME_HINT,
    "for": "it says how long it lasts: `for: 4h`",
    "to": "it says until when: `to: +6h`",
    "every": "it says how often: `every: week`",
    "until": "with `every` it says when it happens no more: `until: 2026-12-01`",
    "users": "name who may use it: `users: [alice]`, or `queue: vision`",
    "nodes": _PLACE_HINT,
    "resources": _PLACE_HINT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A reservation as it stands in the file; when it is, is known once the workload's beginning is.
    place: fields of it."""

    given: Section
    name: str
    users: tuple[str, ...]
    queue: QueueName | None
    place: Mapping[str, Any]

    def reservation(self, begin: datetime, *, nodes: Collection[Node], queues: QueueTree) -> Reservation:
        """With its times, where the workload begins at `begin`; `pieces` holds the count alone.
        Raises SpecError with the path of what makes no sense."""
        start = self._when("from", begin) or begin
        end = self._end(start, begin)
        every_s = self.given.amount("every", lambda text: parse_every(text, what="every")) or 0.0
        if start < begin:
            raise self.given.fail(
                "from", f"it is before the workload, which begins {begin:%Y-%m-%d %H:%M %Z}", _TIME_HINT
            )
        found = Reservation(
            ReservationId(self.name), self.name, start, end, self.users, self.queue,
            every_s=every_s, until=self._when("until", begin), **self.place,
        )  # fmt: skip
        try:
            check_reservation(found, nodes=nodes, queues=queues, now=begin)
        except UsageError as bad:
            raise self._as_written(bad, queues) from bad
        return found

    def refuse(self, why: str, *hints: str) -> SpecError:
        """The error for one that cannot be honoured."""
        return SpecError(f"{self.given.file}: {self.given.path}: it cannot be honoured: {why}", hints=hints)

    def _as_written(self, bad: UsageError, queues: QueueTree) -> SpecError:
        """The same with the keys of the file: hints that name options of a command are replaced."""
        field, _, problem = bad.message.partition(": ")
        known, _, index = field.rpartition(".") if field[-1:].isdecimal() else (field, "", "")
        key = ("for" if self.given.has("for") else "to") if known == "end_at" else _KEY_OF.get(known, known)
        place = f"{key}.{index}" if index and isinstance(self.given.values.get(key), list) else key
        kept = tuple(hint for hint in bad.hints if "--" not in hint and "`hop " not in hint)
        hint = f"queues: {', '.join(sorted(queues.queues)[:20])}" if key == "queue" else _HINTS.get(key)
        return self.given.fail(place, problem, *kept, *((hint,) if hint and not kept else ()))

    def _end(self, start: datetime, begin: datetime) -> datetime:
        lasts_s = self.given.amount("for", units.parse_time)
        if lasts_s is None:
            return self._when("to", begin) or start
        try:
            return start + timedelta(seconds=lasts_s)
        except OverflowError:
            raise self.given.fail("from", "it begins in more than five years", _TIME_HINT) from None

    def _when(self, key: str, begin: datetime) -> datetime | None:
        value = self.given.values.get(key)
        if value is None:
            return None
        if isinstance(value, (datetime, date)):  # YAML knows dates by itself
            value = value.isoformat()
        if not isinstance(value, str):
            raise self.given.fail(key, f"{shown(value)} is not a time", _TIME_HINT)
        text = value
        try:
            return self.given.checked(key, lambda: parse_when(text, begin, what=key)).astimezone(UTC)
        except SpecError as bad:
            raise SpecError(bad.message, hints=(_TIME_HINT,)) from bad
        except OverflowError:
            raise self.given.fail(key, f"{shown(value)} is not a time", _TIME_HINT) from None


def read_reservations(top: Section) -> tuple[Asked, ...]:
    """Those under `reservations`. Raises SpecError."""
    found: list[Asked] = []
    for index, value in top.items("reservations"):
        if index == MOST:
            raise top.fail("reservations", f"there are more than {MOST}")
        one = _asked(section(top.file, top.at(f"reservations.{index}"), value).only(*KEYS))
        if any(one.name == other.name for other in found):
            raise one.given.fail(
                "name", f"there are two reservations `{one.name}`", "give each a name of its own"
            )
        found.append(one)
    return tuple(found)


def _asked(given: Section) -> Asked:
    name = read_name(given, "name")
    if not name:
        raise given.fail("name", "missing", "for example `name: exam`")
    if given.has("for") == given.has("to"):
        raise given.fail("for", "say how long it lasts, or with `to` until when", _HINTS["for"])
    users = _names(given, "users", "alice")
    queue = read_name(given, "queue")
    if not users and not queue:
        raise given.fail("users", "it is for nobody", _HINTS["users"])
    return Asked(given, name, users, QueueName(queue) if queue else None, _place(given))


def _place(given: Section) -> dict[str, Any]:
    if given.has("nodes") == given.has("resources"):
        both = "whole nodes and resources exclude each other" if given.has("nodes") else _NOTHING
        raise given.fail("nodes", both, _PLACE_HINT)
    if given.has("nodes"):
        for key in ("count", "pool", "labels"):
            if given.has(key):
                raise given.fail(key, "whole nodes are named by `nodes` alone", _PLACE_HINT)
        return {"nodes": tuple(map(NodeId, _names(given, "nodes", "a100-0000")))}
    if not given.section("resources").values:
        raise given.fail("resources", _NOTHING, _PLACE_HINT)
    count = given.whole("count", 1, low=1, high=4096)
    places = {key: given.values[key] for key in ("resources", "pool", "labels") if given.has(key)}
    # what one is, is written as in hop.yaml
    piece = read_role(Section(given.file, given.path, {**places, "command": "piece"}))
    cpu_milli = piece.cpu_milli if piece.cpu_limited else 1000 * max(piece.gpus, 1)
    resources = Resources(
        cpu_milli,
        piece.memory_bytes,
        piece.gpus,
        piece.gpu_models,
        False,
        piece.gpu_milli,
        piece.gpu_memory_bytes,
        piece.extras,
    )
    return {
        "pieces": (count,),
        "resources": resources,
        "where": Where(tuple(map(PoolName, piece.pools)), piece.labels),
    }


def _names(given: Section, key: str, example: str) -> tuple[str, ...]:
    names = []
    for index, value in given.items(key):
        if not isinstance(value, str):
            raise given.fail(
                f"{key}.{index}",
                f"{shown(value)} is not a name",
                f'write it in quotes: `{key}: ["{example}"]`',
            )
        names.append(given.checked(f"{key}.{index}", lambda text=value: check_name(text, what=key)))  # type: ignore[misc]
    return tuple(names)
