"""Converts rows of runs to gangs as a policy sees them."""

from __future__ import annotations

from typing import Any

from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.stores.sql.codec import decode_gang_request, decode_words, from_us, from_us_or_none
from hopyard.stores.sql.tables import runs

_US_PER_S = 1_000_000

# In the order that `to_gang` expects.
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
    """Returns the gang in the first columns of a row that starts with GANG_COLUMNS."""
    (
        run,
        gang,
        submitted_at,
        queue,
        priority,
        user,
        script,
        input_digests,
        served_us,
        preemptions,
        not_before,
        requeue_reason,
    ) = row[:GANG_COLUMN_COUNT]
    request = decode_gang_request(gang)
    return Gang(
        GangId(run),
        request.roles,
        from_us(submitted_at),
        QueueName(queue),
        priority,
        user,
        request.topology,
        request.time_limit_s,
        script,
        request.preemptible,
        decode_words(input_digests),
        served_us / _US_PER_S,
        preemptions,
        from_us_or_none(not_before),
        requeue_reason,
        request.follows,
    )
