"""Named, versioned data. A version never changes."""

from __future__ import annotations

from datetime import datetime

from hopyard.backports import dataclass
from hopyard.domain.ids import Digest

MAX_DESCRIPTION_LENGTH = 64 * 1024  # in characters


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version. `number` counts from 1. A run that names no version gets the newest one.

    damaged: the part that was found damaged or missing; listings do not check it. derived_from: the version
    that the data was made from, as `NAME:VERSION`; "" if the push named none.
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
    derived_from: str = ""


@dataclass(frozen=True, slots=True)
class Dataset:
    """runs: the number of runs that use it, trials included; only the API counts them. description: Markdown.
    description_revision: counts the changes of the description; 0 for one that was never set."""

    name: str
    created_at: datetime
    versions: int
    newest: DatasetVersion | None
    metric: str = ""  # the metric that its leaderboard ranks by; "" uses the first summarised metric of a run
    higher_is_better: bool | None = None  # None: derived from the metric's name
    runs: int = 0
    description: str = ""
    description_revision: int = 0
