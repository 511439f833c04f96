"""What people type for a reservation (times, how often), and whether a reservation can be meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, time, timedelta
from zoneinfo import available_timezones

from hopyard.config.suggest import closest
from hopyard.config.units import format_time, parse_time
from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId, is_name
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.errors import NotFound, SpecError

LATE = timedelta(minutes=1)  # a start that is no longer past than this is meant as now
LONGEST = timedelta(days=366)
FURTHEST = timedelta(days=5 * 366)
SHORTEST_S = 60.0
MOST_PIECES, MOST_NODES = 4096, 4096
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_WHEN_HINT = (
    "a time is written 2026-12-01 09:00 (or with an offset: 2026-12-01T09:00+01:00), 09:00, tomorrow "
    "09:00, monday 09:00, +2h or now"
)
_EVERY: Mapping[str, float] = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0}
_EVERY_HINT = "how often is written day, week, hour or as a time: 12h, 14d"


def parse_when(text: str, now: datetime, *, what: str = "--from") -> datetime:
    """A point in time; without an offset, in the zone of `now`. A time of day alone is the next one.
    Raises SpecError."""
    given = " ".join(text.strip().lower().split())
    if given == "now":
        return now
    if given.startswith("+"):
        return now + timedelta(seconds=parse_time(given[1:], what=what))
    day, _, clock = given.rpartition(" ")
    if day in ("", "today", "tomorrow", *_DAYS, *(name[:3] for name in _DAYS)) and (
        found := _CLOCK.fullmatch(clock)
    ):
        hour, minute, second = (int(part or 0) for part in found.groups())
        return _on_day(day, now, time(hour, minute, second), what)
    return _on_date(text, now, what)


def _on_day(day: str, now: datetime, clock: time, what: str) -> datetime:
    days = 0 if day in ("", "today") else 1 if day == "tomorrow" else (_weekday(day) - now.weekday()) % 7
    wall = datetime.combine(now.date() + timedelta(days=days), clock)
    if day not in ("today", "tomorrow") and wall < now.replace(tzinfo=None):
        wall += timedelta(days=7 if day else 1)
    return _in_zone(wall, now, what)


def _weekday(day: str) -> int:
    return next(number for number, name in enumerate(_DAYS) if name.startswith(day))


def _in_zone(wall: datetime, now: datetime, what: str) -> datetime:
    """What the clock on the wall shows then, in the caller's zone: where that is this machine's, with the
    offset of that day."""
    # whatever this machine's clock shows
    if now.tzinfo is UTC or now.utcoffset() != now.astimezone().utcoffset():
        return wall.replace(tzinfo=now.tzinfo)
    local = wall.astimezone()
    if local.replace(tzinfo=None) != wall:
        raise SpecError(
            f"{what}: there is no {wall:%H:%M} on {wall:%Y-%m-%d} here: clocks are set forward over it",
            hints=("take a time before or after it, or say the offset: 2026-12-01T09:00+01:00",),
        )
    return local


def _on_date(text: str, now: datetime, what: str) -> datetime:
    given = text.strip().upper().replace(" Z", "Z")
    try:
        found = datetime.fromisoformat(given)
        return found if found.tzinfo is not None else _in_zone(found, now, what)
    except (ValueError, OverflowError, OSError):
        raise SpecError(f"{what}: `{text}` is not a time", hints=(_WHEN_HINT,)) from None


def parse_every(text: str, *, what: str = "--every") -> float:
    """Seconds. Raises SpecError."""
    word = text.strip().lower().removesuffix("s")
    if word in _EVERY:
        return _EVERY[word]
    if word in ("daily", "weekly"):
        return _EVERY["day" if word == "daily" else "week"]
    try:
        return parse_time(text, what=what)
    except SpecError as bad:
        raise SpecError(bad.message, hints=(_EVERY_HINT,)) from bad


def check_reservation(
    wanted: Reservation, *, nodes: Collection[Node], queues: QueueTree, now: datetime
) -> None:
    """Raises SpecError (NotFound for what is named and not there) where it makes no sense, with the path of
    what is wrong."""
    _check_owner(wanted, queues)
    _check_times(wanted, now)
    _check_repeats(wanted)
    _check_place(wanted, {node.id: node for node in nodes})


def _check_owner(wanted: Reservation, queues: QueueTree) -> None:
    if not wanted.users and wanted.queue is None:
        raise SpecError(
            "users: it is for nobody", hints=("name who may use it: --user alice, or --queue vision",)
        )
    for index, user in enumerate(wanted.users):
        if not is_name(user):
            raise SpecError(f"users.{index}: `{user}` is not a user's name")
    if wanted.queue is not None and wanted.queue not in queues.queues:
        near = closest(wanted.queue, queues.queues)
        hints = (f"did you mean `{near}`?",) if near else ()
        raise NotFound(
            f"queue: there is no queue `{wanted.queue}`", hints=(*hints, "`hop queue ls` lists them")
        )


def _check_times(wanted: Reservation, now: datetime) -> None:
    length = wanted.end_at - wanted.start_at
    if length <= timedelta(0):
        raise SpecError("end_at: it ends before it begins", hints=("--for says how long: --for 4h",))
    if length.total_seconds() < SHORTEST_S:
        raise SpecError(
            f"end_at: it is shorter than {SHORTEST_S:.0f} seconds", hints=("--for says how long: --for 4h",)
        )
    if length > LONGEST:
        raise SpecError(
            "end_at: it is longer than a year",
            hints=("cordon the nodes, or give a queue a guarantee instead",),
        )
    if wanted.start_at < now - LATE:
        raise SpecError(
            f"start_at: {wanted.start_at.isoformat(sep=' ', timespec='minutes')} is in the past",
            hints=(_WHEN_HINT,),
        )
    if wanted.start_at > now + FURTHEST:
        raise SpecError("start_at: it begins in more than five years", hints=(_WHEN_HINT,))


def _check_repeats(wanted: Reservation) -> None:
    length_s = (wanted.end_at - wanted.start_at).total_seconds()
    if wanted.every_s and wanted.every_s < length_s:
        hint = f"it lasts {format_time(length_s)}, so that is the least for --every"
        raise SpecError(
            f"every_s: it begins again after {format_time(wanted.every_s)}, before it has ended",
            hints=(hint,),
        )
    if wanted.zone and wanted.zone not in available_timezones():
        near = closest(wanted.zone, available_timezones())
        raise SpecError(
            f"zone: there is no time zone `{wanted.zone}`",
            hints=(f"did you mean `{near}`?",) if near else ("for example Europe/Berlin",),
        )
    if wanted.until is not None and not wanted.every_s:
        raise SpecError("until: it happens once", hints=("--every says how often: --every week",))
    if wanted.until is not None and wanted.until <= wanted.start_at:
        raise SpecError("until: it stops before it first begins", hints=(_WHEN_HINT,))


def _check_place(wanted: Reservation, nodes: Mapping[NodeId, Node]) -> None:
    hint = "name whole nodes: --nodes n1,n2; or say what and how often: --gpus A100:8 --count 2"
    if wanted.resources is None:
        if not wanted.nodes:
            raise SpecError("nodes: it reserves nothing", hints=(hint,))
        for index, name in enumerate(wanted.nodes):
            if name not in nodes:
                near = closest(name, nodes)
                hints = (f"did you mean `{near}`?",) if near else (f"nodes: {', '.join(sorted(nodes)[:20])}",)
                raise NotFound(f"nodes.{index}: there is no node `{name}`", hints=hints)
            if name in wanted.nodes[:index]:
                raise SpecError(f"nodes.{index}: `{name}` is named twice")
        return
    if wanted.nodes:
        raise SpecError("nodes: whole nodes and resources exclude each other", hints=(hint,))
    asked = wanted.resources
    if not (asked.cpu_milli or asked.memory_bytes or asked.gpus or asked.shares_gpu or asked.extras):
        raise SpecError("resources: it reserves nothing", hints=(hint,))
    if not 1 <= sum(wanted.pieces) <= MOST_PIECES:
        raise SpecError(f"count: {sum(wanted.pieces)} is not from 1 to {MOST_PIECES}", hints=(hint,))
    for index, pool in enumerate(wanted.where.pools):
        known = {node.pool for node in nodes.values()}
        if pool not in known:
            near = closest(pool, known)
            hints = (f"did you mean `{near}`?",) if near else (f"pools: {', '.join(sorted(known))}",)
            raise NotFound(f"where.pools.{index}: there is no pool `{pool}`", hints=hints)
