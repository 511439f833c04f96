"""Parses the times of a reservation, and checks whether a reservation is possible."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, time, timedelta
from zoneinfo import available_timezones

from hopyard.config.limits import MAX_PIECES
from hopyard.config.schemas.role_rules import check_node_selector, check_resources
from hopyard.config.suggest import closest_name
from hopyard.config.units import format_time, parse_time
from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId, is_name
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.errors import NotFound, SpecError

MAX_LATENESS = timedelta(minutes=1)  # a start that is no longer past than this is meant as now
MAX_DURATION = timedelta(days=366)
MAX_ADVANCE = timedelta(days=5 * 366)
MIN_DURATION_S = 60.0
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK_PATTERN = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_WHEN_HINT = (
    "a time is written 2026-12-01 09:00 (or with an offset: 2026-12-01T09:00+01:00), 09:00, tomorrow "
    "09:00, monday 09:00, +2h or now"
)
_RECURRENCE_S: Mapping[str, float] = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0}
_RECURRENCE_HINT = "how often is written day, week, hour or as a time: 12h, 14d"


def parse_start_time(text: str, now: datetime, *, what: str = "--from") -> datetime:
    """Returns a point in time; without an offset, in the zone of `now`. A time of day alone is the next one.
    Raises SpecError."""
    words = " ".join(text.strip().lower().split())
    if words == "now":
        return now
    if words.startswith("+"):
        return now + timedelta(seconds=parse_time(words[1:], what=what))
    day, _, clock = words.rpartition(" ")
    if day in ("", "today", "tomorrow", *_DAYS, *(name[:3] for name in _DAYS)) and (
        match := _CLOCK_PATTERN.fullmatch(clock)
    ):
        hour, minute, second = (int(part or 0) for part in match.groups())
        return _time_on_weekday(day, now, time(hour, minute, second), what)
    return _time_on_date(text, now, what)


def _time_on_weekday(day: str, now: datetime, clock: time, what: str) -> datetime:
    days = 0 if day in ("", "today") else 1 if day == "tomorrow" else (_weekday(day) - now.weekday()) % 7
    wall = datetime.combine(now.date() + timedelta(days=days), clock)
    if day not in ("today", "tomorrow") and wall < now.replace(tzinfo=None):
        wall += timedelta(days=7 if day else 1)
    return _localise(wall, now, what)


def _weekday(day: str) -> int:
    return next(number for number, name in enumerate(_DAYS) if name.startswith(day))


def _localise(local_time: datetime, now: datetime, what: str) -> datetime:
    """Returns the moment of a local time in the caller's zone. In the zone of this machine it has the offset
    of that day."""
    # independent of the zone of this machine
    if now.tzinfo is UTC or now.utcoffset() != now.astimezone().utcoffset():
        return local_time.replace(tzinfo=now.tzinfo)
    local = local_time.astimezone()
    if local.replace(tzinfo=None) != local_time:
        raise SpecError(
            f"{what}: {local_time:%H:%M} on {local_time:%Y-%m-%d} does not exist here: clocks are set "
            "forward over it",
            hints=("give a time before or after it, or the offset: 2026-12-01T09:00+01:00",),
        )
    return local


def _time_on_date(text: str, now: datetime, what: str) -> datetime:
    stripped = text.strip().upper().replace(" Z", "Z")
    try:
        moment = datetime.fromisoformat(stripped)
        return moment if moment.tzinfo is not None else _localise(moment, now, what)
    except (ValueError, OverflowError, OSError):
        raise SpecError(f"{what}: `{text}` is not a time", hints=(_WHEN_HINT,)) from None


def parse_recurrence(text: str, *, what: str = "--every") -> float:
    """Returns seconds. Raises SpecError."""
    word = text.strip().lower().removesuffix("s")
    if word in _RECURRENCE_S:
        return _RECURRENCE_S[word]
    if word in ("daily", "weekly"):
        return _RECURRENCE_S["day" if word == "daily" else "week"]
    try:
        return parse_time(text, what=what)
    except SpecError as error:
        raise SpecError(error.message, hints=(_RECURRENCE_HINT,)) from error


def check_reservation(
    reservation: Reservation, *, nodes: Collection[Node], queues: QueueTree, now: datetime
) -> None:
    """Raises SpecError, or NotFound for an unknown name, with the path of the invalid field."""
    _check_owner(reservation, queues)
    _check_times(reservation, now)
    _check_recurrence(reservation)
    _check_place(reservation, {node.id: node for node in nodes})


def _check_owner(reservation: Reservation, queues: QueueTree) -> None:
    if not reservation.users and reservation.queue is None:
        raise SpecError(
            "users: no owner is given", hints=("give its owner: --user alice, or --queue vision",)
        )
    for index, user in enumerate(reservation.users):
        if not is_name(user):
            raise SpecError(f"users.{index}: `{user}` is not a user's name")
    if reservation.queue is not None and reservation.queue not in queues.queues:
        closest = closest_name(reservation.queue, queues.queues)
        hints = (f"did you mean `{closest}`?",) if closest else ()
        raise NotFound(
            f"queue: there is no queue `{reservation.queue}`",
            hints=(*hints, "list the queues with `hop queue ls`"),
        )


def _check_times(reservation: Reservation, now: datetime) -> None:
    length = reservation.end_at - reservation.start_at
    if length <= timedelta(0):
        raise SpecError("end_at: it ends before it begins", hints=("give the duration: --for 4h",))
    if length.total_seconds() < MIN_DURATION_S:
        raise SpecError(
            f"end_at: it is shorter than {MIN_DURATION_S:.0f} seconds",
            hints=("give the duration: --for 4h",),
        )
    if length > MAX_DURATION:
        raise SpecError(
            "end_at: it is longer than a year",
            hints=("cordon the nodes, or give a queue a guarantee instead",),
        )
    if reservation.start_at < now - MAX_LATENESS:
        raise SpecError(
            f"start_at: {reservation.start_at.isoformat(sep=' ', timespec='minutes')} is in the past",
            hints=(_WHEN_HINT,),
        )
    if reservation.start_at > now + MAX_ADVANCE:
        raise SpecError("start_at: it begins more than five years ahead", hints=(_WHEN_HINT,))


def _check_recurrence(reservation: Reservation) -> None:
    length_s = (reservation.end_at - reservation.start_at).total_seconds()
    if reservation.every_s and reservation.every_s < length_s:
        hint = f"it lasts {format_time(length_s)}, so that is the least for --every"
        raise SpecError(
            f"every_s: it begins again after {format_time(reservation.every_s)}, before it has ended",
            hints=(hint,),
        )
    if reservation.zone and reservation.zone not in available_timezones():
        closest = closest_name(reservation.zone, available_timezones())
        raise SpecError(
            f"zone: there is no time zone `{reservation.zone}`",
            hints=(f"did you mean `{closest}`?",) if closest else ("for example Europe/Berlin",),
        )
    if reservation.until is not None and not reservation.every_s:
        raise SpecError("until: it does not repeat", hints=("give the interval: --every week",))
    if reservation.until is not None and reservation.until <= reservation.start_at:
        raise SpecError("until: it is before the first begin", hints=(_WHEN_HINT,))


def _check_place(reservation: Reservation, nodes: Mapping[NodeId, Node]) -> None:
    hint = "name whole nodes: --nodes n1,n2; or give resources and a count: --gpus A100:8 --count 2"
    if reservation.resources is None:
        if not reservation.nodes:
            raise SpecError("nodes: it reserves no capacity", hints=(hint,))
        for index, name in enumerate(reservation.nodes):
            if name not in nodes:
                closest = closest_name(name, nodes)
                hints = (
                    (f"did you mean `{closest}`?",)
                    if closest
                    else (f"nodes: {', '.join(sorted(nodes)[:20])}",)
                )
                raise NotFound(f"nodes.{index}: there is no node `{name}`", hints=hints)
            if name in reservation.nodes[:index]:
                raise SpecError(f"nodes.{index}: `{name}` is given twice")
        return
    if reservation.nodes:
        raise SpecError("nodes: whole nodes and resources exclude each other", hints=(hint,))
    requested = reservation.resources
    check_resources(requested, "resources")
    check_node_selector(reservation.where, "where")
    if not (
        requested.cpu_milli
        or requested.memory_bytes
        or requested.gpus
        or requested.is_gpu_share
        or requested.extras
    ):
        raise SpecError("resources: it reserves no capacity", hints=(hint,))
    if not 1 <= sum(reservation.pieces) <= MAX_PIECES:
        raise SpecError(f"count: {sum(reservation.pieces)} is not from 1 to {MAX_PIECES}", hints=(hint,))
    for index, pool in enumerate(reservation.where.pools):
        pools = {node.pool for node in nodes.values()}
        if pool not in pools:
            closest = closest_name(pool, pools)
            hints = (f"did you mean `{closest}`?",) if closest else (f"pools: {', '.join(sorted(pools))}",)
            raise NotFound(f"where.pools.{index}: there is no pool `{pool}`", hints=hints)
