"""Reservations in the file of a simulated cluster, as `hop reserve` takes them.

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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hopyard.config import units
from hopyard.config.reservation_times import check_reservation, parse_recurrence, parse_start_time
from hopyard.config.role_section import read_role
from hopyard.config.schemas.reservations import ReservationIn, find_reservation_problem
from hopyard.config.section_values import read_field, read_name
from hopyard.config.spec_keys import role_keys
from hopyard.config.yaml_section import YamlSection, as_section, format_given
from hopyard.domain.cluster import Node
from hopyard.domain.gang import NodeSelector
from hopyard.domain.ids import NodeId, PoolName, QueueName, ReservationId, check_name
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.errors import SpecError, UsageError

MAX_RESERVATIONS = 1000
RESERVATION_KEYS = (
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
_EMPTY_ERROR = "it reserves no capacity"
# keys of the file by the field of a Reservation
_KEY_BY_FIELD = {"start_at": "from", "every_s": "every", "where.pools": "pool"}
_HINTS = {
    "from": _TIME_HINT,
    "for": "give its duration: `for: 4h`",
    "to": "give its end: `to: +6h`",
    "every": "give its interval: `every: week`",
    "until": "with `every`, give its last time: `until: 2026-12-01`",
    "users": "give its owner: `users: [alice]`, or `queue: vision`",
    "nodes": _PLACE_HINT,
    "resources": _PLACE_HINT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReservationSection:
    """A reservation in the file. Its times are known once the start of the workload is.
    place: fields of the Reservation that say what is reserved."""

    section: YamlSection
    name: str
    users: tuple[str, ...]
    queue: QueueName | None
    place: Mapping[str, Any]

    def reservation(
        self, workload_start: datetime, *, nodes: Collection[Node], queues: QueueTree
    ) -> Reservation:
        """Returns the reservation for a workload that begins at `workload_start`. `pieces` holds the count
        alone. Raises SpecError with the path of an invalid value."""
        start = self._read_time("from", workload_start) or workload_start
        end = self._end(start, workload_start)
        every_s = self.section.amount("every", lambda text: parse_recurrence(text, what="every")) or 0.0
        if start < workload_start:
            raise self.section.error(
                "from",
                f"it is before the workload, which begins {workload_start:%Y-%m-%d %H:%M %Z}",
                _TIME_HINT,
            )
        reservation = Reservation(
            ReservationId(self.name), self.name, start, end, self.users, self.queue,
            every_s=every_s, until=self._read_time("until", workload_start), **self.place,
        )  # fmt: skip
        try:
            problem = find_reservation_problem(reservation)
            if problem is not None:
                raise SpecError(problem.message(), hints=problem.hints)
            check_reservation(reservation, nodes=nodes, queues=queues, now=workload_start)
        except UsageError as error:
            raise self._translate_error(error, reservation, queues) from error
        return reservation

    def error(self, reason: str, *hints: str) -> SpecError:
        """Returns the error for a reservation that cannot be honoured."""
        return SpecError(
            f"{self.section.file}: {self.section.path}: it cannot be honoured: {reason}", hints=hints
        )

    def _translate_error(self, error: UsageError, reservation: Reservation, queues: QueueTree) -> SpecError:
        """Returns the error with the keys of the file. Hints that name options of a command are replaced."""
        field, _, problem = error.message.partition(": ")
        if field.startswith(("resources.", "where.labels")):
            fields = {
                "resources": asdict(reservation.resources or Resources()),
                "where": asdict(reservation.where),
            }
            return self.section.error(".".join(role_keys(fields, field.split("."))), problem, *error.hints)
        name, _, index = field.rpartition(".") if field[-1:].isdecimal() else (field, "", "")
        key = (
            ("for" if self.section.contains("for") else "to")
            if name == "end_at"
            else _KEY_BY_FIELD.get(name, name)
        )
        place = f"{key}.{index}" if index and isinstance(self.section.values.get(key), list) else key
        hints = tuple(hint for hint in error.hints if "--" not in hint and "`hop " not in hint)
        hint = f"queues: {', '.join(sorted(queues.queues)[:20])}" if key == "queue" else _HINTS.get(key)
        return self.section.error(place, problem, *hints, *((hint,) if hint and not hints else ()))

    def _end(self, start: datetime, workload_start: datetime) -> datetime:
        duration_s = self.section.amount("for", units.parse_time)
        if duration_s is None:
            return self._read_time("to", workload_start) or start
        try:
            return start + timedelta(seconds=duration_s)
        except OverflowError:
            raise self.section.error("from", "it begins more than five years ahead", _TIME_HINT) from None

    def _read_time(self, key: str, workload_start: datetime) -> datetime | None:
        value = self.section.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.section.error(key, f"{format_given(value)} is not a time", _TIME_HINT)
        text = value
        try:
            return self.section.parsed(
                key, lambda: parse_start_time(text, workload_start, what=key)
            ).astimezone(UTC)
        except SpecError as error:
            raise SpecError(error.message, hints=(_TIME_HINT,)) from error
        except OverflowError:
            raise self.section.error(key, f"{format_given(value)} is not a time", _TIME_HINT) from None


def read_reservations(top: YamlSection) -> tuple[ReservationSection, ...]:
    """Returns the reservations under `reservations`. Raises SpecError."""
    sections: list[ReservationSection] = []
    for index, value in top.items("reservations"):
        if index == MAX_RESERVATIONS:
            raise top.error("reservations", f"there are more than {MAX_RESERVATIONS}")
        section = _read_reservation(
            as_section(top.file, top.path_of(f"reservations.{index}"), value).check_keys(*RESERVATION_KEYS)
        )
        if any(section.name == earlier.name for earlier in sections):
            raise section.section.error(
                "name", f"there are two reservations `{section.name}`", "give each reservation its own name"
            )
        sections.append(section)
    return tuple(sections)


def _read_reservation(section: YamlSection) -> ReservationSection:
    name = read_name(section, "name")
    if not name:
        raise section.error("name", "missing", "for example `name: exam`")
    if section.contains("for") == section.contains("to"):
        raise section.error("for", "the duration is missing; give `for` or `to`", _HINTS["for"])
    users = _read_names(section, "users", "alice")
    queue = read_name(section, "queue")
    if not users and not queue:
        raise section.error("users", "it has no owner", _HINTS["users"])
    return ReservationSection(section, name, users, QueueName(queue) if queue else None, _read_place(section))


def _read_place(section: YamlSection) -> dict[str, Any]:
    if section.contains("nodes") == section.contains("resources"):
        both = "whole nodes and resources exclude each other" if section.contains("nodes") else _EMPTY_ERROR
        raise section.error("nodes", both, _PLACE_HINT)
    if section.contains("nodes"):
        for key in ("count", "pool", "labels"):
            if section.contains(key):
                raise section.error(key, "whole nodes are named only with `nodes`", _PLACE_HINT)
        return {"nodes": tuple(map(NodeId, _read_names(section, "nodes", "a100-0000")))}
    if not section.section("resources").values:
        raise section.error("resources", _EMPTY_ERROR, _PLACE_HINT)
    count = read_field(section, "count", ReservationIn)
    places = {key: section.values[key] for key in ("resources", "pool", "labels") if section.contains(key)}
    # a piece is written as a role of hop.yaml is
    piece = read_role(YamlSection(section.file, section.path, {**places, "command": "piece"}))
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
        "where": NodeSelector(tuple(map(PoolName, piece.pools)), piece.labels),
    }


def _read_names(section: YamlSection, key: str, example: str) -> tuple[str, ...]:
    names = []
    for index, value in section.items(key):
        if not isinstance(value, str):
            raise section.error(
                f"{key}.{index}",
                f"{format_given(value)} is not a name",
                f'write it in quotes: `{key}: ["{example}"]`',
            )
        names.append(section.parsed(f"{key}.{index}", lambda text=value: check_name(text, subject=key)))  # type: ignore[misc]
    return tuple(names)
