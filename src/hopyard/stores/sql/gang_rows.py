"""Rows of runs as the gangs that a policy sees."""

from __future__ import annotations

from typing import Any

from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.stores.sql.codec import decode_gang_request, decode_words, from_us, from_us_or_none
from hopyard.stores.sql.tables import runs

_US_PER_S = 1_000_000

# In the order in which `to_gang` takes them.
GANG_COLUMNS = (
    runs.c.id,
    runs.c.gang,
    runs.c.submitted_at,
    runs.c.queue,
    runs.c.priority,
    runs.c.user_name,
    runs.c.script,
    runs.c.wants,
    runs.c.served_us,
    runs.c.preemptions,
    runs.c.not_before,
    runs.c.put_back,
)
GANG_COLUMN_COUNT = len(GANG_COLUMNS)


def to_gang(row: Any) -> Gang:
    """The gang in the first columns of a row that begins with GANG_COLUMNS."""
    (
        run,
        gang,
        submitted_at,
        queue,
        priority,
        user,
        script,
        wants,
        served_us,
        preemptions,
        not_before,
        put_back,
    ) = row[:GANG_COLUMN_COUNT]
    shape = decode_gang_request(gang)
    return Gang(
        GangId(run),
        shape.roles,
        from_us(submitted_at),
        QueueName(queue),
        priority,
        user,
        shape.topology,
        shape.time_limit_s,
        script,
        shape.preemptible,
        decode_words(wants),
        served_us / _US_PER_S,
        preemptions,
        from_us_or_none(not_before),
        put_back,
    )
