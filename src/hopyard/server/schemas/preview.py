"""Schemas of previews: when a run would start that is not submitted."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from hopyard.config.schemas.fields import RequestModel
from hopyard.config.schemas.runs import SpecIn
from hopyard.server.schemas.why import BandOut, BlockerOut, WhatIfOut


class PreviewIn(RequestModel):
    """The run, as `POST /runs` takes it. Its blobs need not be uploaded."""

    spec: SpecIn


class StartKind(StrEnum):
    NOW = "now"
    LATER = "later"
    UNKNOWN = "unknown"
    NEVER = "never"


class PreviewOut(Struct, frozen=True, kw_only=True):
    """starts: `later` has `expected`; `unknown`: it would wait, and no start can be predicted; `never`: no
    node is large enough, or a limit of its queue is too low. sentence: the answer in words. detail: why it
    would wait. hints: what to change. queue, priority: those that the run would get. nodes: where it would
    start now, by rank.

    position, waiting, blocked_by, expected, unknown, what_if: as in `WhyOut`.
    """

    starts: StartKind
    sentence: str
    queue: str | None = None
    priority: int | None = None
    nodes: Sequence[str] = ()
    reason: str = ""
    detail: str = ""
    hints: Sequence[str] = ()
    position: int | None = None
    waiting: int = 0
    blocked_by: Sequence[BlockerOut] = ()
    expected: BandOut | None = None
    unknown: str = ""
    what_if: Sequence[WhatIfOut] = ()
