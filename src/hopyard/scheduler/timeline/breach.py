"""Why a promise cannot be kept."""

from __future__ import annotations

from datetime import timedelta

from hopyard.domain.cluster import Breach, BreachCause, Promise
from hopyard.scheduler.timeline.outlook import Outlook


def breach(outlook: Outlook, before: Promise, after: Promise | None) -> Breach | None:
    """`after`: what the gang is promised now instead, None where nothing can be. None where the promise is kept."""
    if after is not None and after.start_at <= before.start_at:
        return None
    cause, detail = _cause(outlook, before)
    stay = outlook.stays.get(before.gang)
    expected_at = outlook.now + timedelta(seconds=stay.at_s) if stay is not None else None
    return Breach(before.gang, cause, detail, before.start_at, expected_at)


def _cause(outlook: Outlook, before: Promise) -> tuple[BreachCause, str]:
    for name in before.nodes:
        node = outlook.capacity.node(name)
        if node is None or not node.open:
            return BreachCause.NODE_LOST, f"node {name} {'was lost' if node is None or not node.ready else 'is cordoned'}"
    nodes = frozenset(before.nodes)
    for booking in outlook.bookings:
        reserved = booking.reservation
        if nodes & {*reserved.nodes} and reserved.created_at is not None and reserved.created_at > before.given_at:
            return BreachCause.RESERVATION, f"reservation {reserved.name} was granted after it"
    promised_s = (before.start_at - outlook.now).total_seconds()
    late = [end for end in outlook.ends_on(nodes) if end.mid_s > promised_s]
    overran = [end for end in late if end.gang not in outlook.started]
    if overran:
        return BreachCause.OVERRUN, f"run {overran[-1].gang} takes longer than was expected"
    if late:  # what has only just started takes no longer than was expected: it was put before it
        return BreachCause.PRIORITY, f"run {late[-1].gang} goes before it"
    others = [stay for stay in outlook.stays.values() if stay.promise.gang != before.gang and nodes & {*stay.promise.nodes}]
    if others:
        return BreachCause.PRIORITY, f"run {others[0].promise.gang} goes before it"
    return BreachCause.QUOTA, "its queue may not use as much then as was expected"
