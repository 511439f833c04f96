"""Schemas of explanations why a run waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct


class BandOut(Struct, frozen=True):
    """When it is expected to start: the earliest, the probable and the latest time."""

    low_at: datetime
    mid_at: datetime
    high_at: datetime


class BlockerOut(Struct, frozen=True):
    """kind: run, queue, reservation or node. name: its readable name; id: for a run, its ID. until: when it
    probably stops blocking, if that is known."""

    kind: str
    name: str
    id: str
    until: datetime | None


class WhatIfOut(Struct, frozen=True):
    """A line such as "with 4 GPUs: now", and when the run would start."""

    text: str
    start_at: datetime


class WhyOut(Struct, frozen=True, kw_only=True):
    """phase: unless it is `queued`, `detail` describes the state and all other fields are empty. reason: the
    reason of the hold, "" before the first scheduling cycle. position, waiting: its position in its queue,
    and the number of waiting runs there.

    promised_at: the promised latest start, if any; late: why the promise will probably be broken, if so.
    unknown: set if the duration of a run ahead of it is unknown; `expected` is then a guess.
    """

    run: str
    name: str
    phase: str
    queue: str | None
    reason: str = ""
    detail: str = ""
    position: int | None = None
    waiting: int = 0
    blocked_by: Sequence[BlockerOut] = ()
    expected: BandOut | None = None
    promised_at: datetime | None = None
    late: str = ""
    unknown: str = ""
    what_if: Sequence[WhatIfOut] = ()
