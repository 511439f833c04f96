"""The interface of a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

SPLIT, PART = "hop_split", "hop_part"  # columns of a frame to write, and names of folders


@dataclass(frozen=True, slots=True)
class Chunk:
    """One file of a partition. name: relative to the store's folder. split: train or validation."""

    split: str
    part: int
    name: str
    rows: int


class Store(Protocol):
    """A folder with a single writer. It is sent to executors, without objects of Spark."""

    @property
    def url(self) -> str: ...

    def check(self, spark: Any, /) -> None:
        """Raises SpecError if the store cannot be written to, as far as this process can see."""
        ...

    def write(self, frame: Any, /) -> list[Chunk]:
        """Writes the frame, which has the columns SPLIT and PART and is sorted by them within Spark's
        partitions. Files of repeated tasks are not part of any chunk. Raises SpecError if the store rejects
        them."""
        ...

    def tables(self, chunks: tuple[Chunk, ...], /) -> Iterator[tuple[str, Any]]:
        """Runs in a worker: yields each chunk's path, and its rows as an Arrow table. Raises SpecError if it
        cannot be read."""
        ...

    def remove(self, spark: Any, /) -> None:
        """Removes the folder with its content; a missing folder is not an error."""
        ...

    def create_file(self, spark: Any, name: str, /) -> None:
        """Creates an empty file in the folder."""
        ...

    def list_files(self, spark: Any, /) -> list[str]:
        """Returns the files in the folder; [] if it does not exist."""
        ...

    def delete_file(self, spark: Any, name: str, /) -> None:
        """Deletes a file in the folder."""
        ...
