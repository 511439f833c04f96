"""What a store must do, and which one a URL means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hopyard.errors import SpecError

SPLIT, PART = "hop_split", "hop_part"  # columns of a frame that is to be written, and the names of folders
ARROW = ("file", "s3", "gs")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One file of a partition. name: below the store's folder. split: train or validation."""

    split: str
    part: int
    name: str
    rows: int


class Store(Protocol):
    """A folder that nobody else writes to. Travels to executors, without anything of Spark's."""

    @property
    def url(self) -> str: ...

    def check(self, spark: Any, /) -> None:
        """Raises SpecError where it cannot be written to, as far as this process can tell."""
        ...

    def write(self, frame: Any, /) -> list[Chunk]:
        """Write the frame, which has the columns SPLIT and PART and is sorted by them within Spark's partitions. What a task that
        Spark repeated has left behind is in none of the chunks. Raises SpecError where the store refuses."""
        ...

    def tables(self, chunks: tuple[Chunk, ...], /) -> Iterator[tuple[str, Any]]:
        """In a worker: each chunk's path, and its rows as a table of Arrow. Raises SpecError where it cannot be read."""
        ...

    def remove(self, spark: Any, /) -> None:
        """The folder, with all that is in it."""
        ...


def store_of(spark: Any, url: str, settings: Mapping[str, str]) -> Store:
    """file, s3 and gs go through Arrow's own clients, on executors as here; all else through Spark's Hadoop client. settings: of S3
    (`arrow.SETTINGS`). Raises SpecError for a URL that is none, or settings that nobody reads."""
    from hopyard.on_spark.stores import arrow, hadoop

    if ":" not in url:
        url = hadoop.qualified(spark, url)
    scheme = url.partition(":")[0]
    if scheme == "s3":
        return arrow.ArrowStore(url, arrow.settings_of_s3(settings))
    if settings:
        raise SpecError(f"storage: {scheme}:// takes no settings", hints=("they are those of s3://", "Hadoop's own: spark.hadoop.… before the session is made"))
    if scheme in ARROW:
        return arrow.ArrowStore(url, {})
    return hadoop.HadoopStore(url, hadoop.configuration(spark))
