"""Named, versioned data. A version never changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hopyard.domain.ids import Digest


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """`number` counts from 1. The newest version is what a run gets that names none.
    damaged: what of it was found damaged, or is gone; a listing does not look for that."""

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
    metric: str = ""  # what its leaderboard ranks by; "" takes the first that a run summarised
    higher_is_better: bool | None = None  # None: told from the metric's name
