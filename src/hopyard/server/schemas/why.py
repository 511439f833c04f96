"""Why a run waits, as it looks on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct


class BandOut(Struct, frozen=True):
    """When it is expected to start: at the earliest, probably, and at the latest."""

    low_at: datetime
    mid_at: datetime
    high_at: datetime


class BlockerOut(Struct, frozen=True):
    """kind: run, queue, reservation or node. name: what people call it; of a run also its id.
    until: when it probably is out of the way, where that is known."""

    kind: str
    name: str
    id: str
    until: datetime | None


class WhatIfOut(Struct, frozen=True):
    """A line such as "with 4 GPUs: now", and when it would start."""

    text: str
    start_at: datetime


class WhyOut(Struct, frozen=True, kw_only=True):
    """phase: while it is not `queued`, `detail` says where it stands and the rest is empty. reason: one of
    the words of a hold, "" where it was not looked at yet. position, waiting: its place in its queue, and how
    many wait there. promised_at: when it starts at the latest, where that was promised; late: why that will
    probably not be kept, where it will not. unknown: that too little is known of a run before it, where that
    is so: `expected` is a guess then."""

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
