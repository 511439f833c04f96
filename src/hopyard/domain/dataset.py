"""Named, versioned data. A version never changes."""

from __future__ import annotations

from datetime import datetime

from hopyard.backports import dataclass
from hopyard.domain.ids import Digest


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version. `number` counts from 1. A run that names no version gets the newest one.

    damaged: the part that was found damaged or missing; listings do not check it.
    """

    dataset: str
    number: int
    manifest: Digest
    size_bytes: int
    files: int
    created_at: datetime
    created_by: str
    message: str = ""
    damaged: str = ""


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    created_at: datetime
    versions: int
    newest: DatasetVersion | None
    metric: str = ""  # the metric that its leaderboard ranks by; "" uses the first summarised metric of a run
    higher_is_better: bool | None = None  # None: derived from the metric's name
