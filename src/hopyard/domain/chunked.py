"""Long sequences of which the next one differs in little: what did not change is shared, and need not be
looked at again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar, overload

T = TypeVar("T")
K = TypeVar("K")

CHUNK = 256  # items at most: a change copies as many, and all chunks are counted once for each new sequence
SPARSE = 4  # times as many chunks as are needed: they are packed anew


class Chunked(Sequence[T]):
    """Immutable. Equal to any sequence of equal items. chunks: its items in order, in tuples; the next
    sequence of one `Chunks` has the same tuples where nothing changed."""

    __slots__ = ("_length", "chunks")

    def __init__(self, chunks: Sequence[tuple[T, ...]] = ()) -> None:
        self.chunks = tuple(chunks)
        self._length = sum(map(len, self.chunks))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.chunks)

    @overload
    def __getitem__(self, at: int, /) -> T: ...
    @overload
    def __getitem__(self, at: slice, /) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice, /) -> T | Sequence[T]:
        if isinstance(at, slice):
            return tuple(self)[at]
        left = at + self._length if at < 0 else at
        if left >= 0:
            for chunk in self.chunks:
                if left < len(chunk):
                    return chunk[left]
                left -= len(chunk)
        raise IndexError(f"{at} of {self._length} items")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return self is other or (
            len(self) == len(other) and all(one == its for one, its in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


class _Chunk(Generic[K, T]):
    """frozen: its values, until one changes."""

    __slots__ = ("frozen", "values")

    def __init__(self, values: dict[K, T]) -> None:
        self.values = values
        self.frozen: tuple[T, ...] | None = None


class Chunks(Generic[K, T]):
    """Values by key, in the order in which the keys came. `seen` gives them as they are, and costs by what
    was changed since, not by how many there are. size: of a chunk, at most."""

    def __init__(self, size: int = CHUNK) -> None:
        self._size = size
        self._chunks: list[_Chunk[K, T]] = []
        self._of: dict[K, _Chunk[K, T]] = {}
        self._seen: Chunked[T] | None = Chunked()

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(chunk.values for chunk in self._chunks)

    def __getitem__(self, key: K) -> T:
        return self._of[key].values[key]

    def get(self, key: K) -> T | None:
        chunk = self._of.get(key)
        return None if chunk is None else chunk.values[key]

    def __setitem__(self, key: K, value: T) -> None:
        chunk = self._of.get(key)
        if chunk is None:
            if not self._chunks or len(self._chunks[-1].values) >= self._size:
                self._chunks.append(_Chunk({}))
            chunk = self._of[key] = self._chunks[-1]
        chunk.values[key] = value
        chunk.frozen = self._seen = None

    def __delitem__(self, key: K) -> None:
        chunk = self._of.pop(key)
        del chunk.values[key]
        chunk.frozen = self._seen = None

    def discard(self, key: K) -> None:
        if key in self._of:
            del self[key]

    def values(self) -> Iterator[T]:
        return chain.from_iterable(chunk.values.values() for chunk in self._chunks)

    def seen(self) -> Chunked[T]:
        """The same object until something changes."""
        if self._seen is None:
            self._chunks = [chunk for chunk in self._chunks if chunk.values]
            if len(self._chunks) > SPARSE * (len(self._of) // self._size + 1):
                self._pack()
            for chunk in self._chunks:
                if chunk.frozen is None:
                    chunk.frozen = tuple(chunk.values.values())
            self._seen = Chunked([chunk.frozen for chunk in self._chunks if chunk.frozen])
        return self._seen

    def _pack(self) -> None:
        """Few values are left of each chunk."""
        items = [item for chunk in self._chunks for item in chunk.values.items()]
        self._chunks = [_Chunk(dict(items[at : at + self._size])) for at in range(0, len(items), self._size)]
        self._of = {key: chunk for chunk in self._chunks for key in chunk.values}
