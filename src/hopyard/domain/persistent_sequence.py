"""Long sequences whose next version differs little: unchanged parts are shared, and need no new check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar, overload

T = TypeVar("T")
K = TypeVar("K")

CHUNK_SIZE = 256  # items at most: a change copies this number, and each new sequence counts all chunks
SPARSE_FACTOR = 4  # number of chunks, as a multiple of the needed ones, at which they are compacted


class PersistentSequence(Sequence[T]):
    """An immutable sequence. Equal to any sequence of equal items.

    chunks: its items in order, in tuples. The next sequence of one `PersistentMap` shares the tuples of
    unchanged chunks.
    """

    __slots__ = ("_length", "chunks")

    def __init__(self, chunks: Sequence[tuple[T, ...]] = ()) -> None:
        self.chunks = tuple(chunks)
        self._length = sum(map(len, self.chunks))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.chunks)

    @overload
    def __getitem__(self, index: int, /) -> T: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice, /) -> T | Sequence[T]:
        if isinstance(index, slice):
            return tuple(self)[index]
        position = index + self._length if index < 0 else index
        if position >= 0:
            for chunk in self.chunks:
                if position < len(chunk):
                    return chunk[position]
                position -= len(chunk)
        raise IndexError(f"{index} of {self._length} items")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return self is other or (
            len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


class _Chunk(Generic[K, T]):
    """items: the cached values, None after a change."""

    __slots__ = ("items", "values")

    def __init__(self, values: dict[K, T]) -> None:
        self.values = values
        self.items: tuple[T, ...] | None = None


class PersistentMap(Generic[K, T]):
    """Values by key, in insertion order. The cost of `to_sequence` depends on the number of changes, not of
    values. size: the largest size of a chunk."""

    def __init__(self, size: int = CHUNK_SIZE) -> None:
        self._size = size
        self._chunks: list[_Chunk[K, T]] = []
        self._chunk_of_key: dict[K, _Chunk[K, T]] = {}
        self._sequence: PersistentSequence[T] | None = PersistentSequence()

    def __len__(self) -> int:
        return len(self._chunk_of_key)

    def __contains__(self, key: object) -> bool:
        return key in self._chunk_of_key

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(chunk.values for chunk in self._chunks)

    def __getitem__(self, key: K) -> T:
        return self._chunk_of_key[key].values[key]

    def get(self, key: K) -> T | None:
        chunk = self._chunk_of_key.get(key)
        return None if chunk is None else chunk.values[key]

    def __setitem__(self, key: K, value: T) -> None:
        chunk = self._chunk_of_key.get(key)
        if chunk is None:
            if not self._chunks or len(self._chunks[-1].values) >= self._size:
                self._chunks.append(_Chunk({}))
            chunk = self._chunk_of_key[key] = self._chunks[-1]
        chunk.values[key] = value
        chunk.items = self._sequence = None

    def __delitem__(self, key: K) -> None:
        chunk = self._chunk_of_key.pop(key)
        del chunk.values[key]
        chunk.items = self._sequence = None

    def discard(self, key: K) -> None:
        if key in self._chunk_of_key:
            del self[key]

    def values(self) -> Iterator[T]:
        return chain.from_iterable(chunk.values.values() for chunk in self._chunks)

    def to_sequence(self) -> PersistentSequence[T]:
        """Returns the values; the same object until a change."""
        if self._sequence is None:
            self._chunks = [chunk for chunk in self._chunks if chunk.values]
            if len(self._chunks) > SPARSE_FACTOR * (len(self._chunk_of_key) // self._size + 1):
                self._compact()
            for chunk in self._chunks:
                if chunk.items is None:
                    chunk.items = tuple(chunk.values.values())
            self._sequence = PersistentSequence([chunk.items for chunk in self._chunks if chunk.items])
        return self._sequence

    def _compact(self) -> None:
        """Rebuilds the chunks, once only few values of each are left."""
        items = [item for chunk in self._chunks for item in chunk.values.items()]
        self._chunks = [
            _Chunk(dict(items[start : start + self._size])) for start in range(0, len(items), self._size)
        ]
        self._chunk_of_key = {key: chunk for chunk in self._chunks for key in chunk.values}
