"""Chunked sequences, compared with plain ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.persistent_sequence import PersistentMap, PersistentSequence

KEYS = st.integers(0, 30)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "drop", "look"]), KEYS, st.integers(0, 3)), max_size=120)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(1, 5))
def test_persistent_map_equals_a_dictionary(steps: list[tuple[str, int, int]], size: int) -> None:
    plain: dict[int, tuple[int, int]] = {}
    result: PersistentMap[int, tuple[int, int]] = PersistentMap(size)
    sequences = [(result.to_sequence(), ())]
    for step, key, value in steps:
        if step == "set":
            plain[key] = result[key] = (key, value)
        elif step == "drop":
            plain.pop(key, None)
            result.discard(key)
        else:
            sequences.append((result.to_sequence(), tuple(plain.values())))
        assert (len(result), list(result), list(result.values())) == (
            len(plain),
            list(plain),
            list(plain.values()),
        )
        assert all(
            result.get(each) == plain.get(each) and (each in result) == (each in plain) for each in range(31)
        )
    sequences.append((result.to_sequence(), tuple(plain.values())))
    for sequence, expected in sequences:  # none of them has changed since
        assert sequence == expected
        assert expected == sequence
        assert len(sequence) == len(expected)
        assert [sequence[at] for at in range(-len(sequence), len(sequence))] == [*expected, *expected]
        assert sequence[1:3] == expected[1:3]


def test_unchanged_chunks_are_shared() -> None:
    many: PersistentMap[int, str] = PersistentMap(10)
    for number in range(1000):
        many[number] = str(number)
    before = many.to_sequence()
    assert many.to_sequence() is before
    many[505] = "another"
    del many[702]
    after = many.to_sequence()
    assert [
        at
        for at, (one, other) in enumerate(zip(before.chunks, after.chunks, strict=True))
        if one is not other
    ] == [50, 70]
    assert before[505] == "505"
    assert after[505] == "another"


def test_sparse_chunks_are_merged() -> None:
    many: PersistentMap[int, int] = PersistentMap(10)
    for number in range(1000):
        many[number] = number
    for number in range(1000):
        if number % 10:
            del many[number]
    result = many.to_sequence()
    assert list(result) == list(range(0, 1000, 10))
    assert len(result.chunks) <= 44
    many[10] = 11
    many.discard(5)
    assert list(many.to_sequence())[:3] == [0, 11, 20]


def test_persistent_sequence_behaves_like_a_sequence() -> None:
    result = PersistentSequence([(1, 2), (3,)])
    assert result == [1, 2, 3]
    assert result != (1, 2)
    assert result != "123"
    assert PersistentSequence() == ()
    assert not PersistentSequence()
    assert 3 in result
    assert repr(result) == "PersistentSequence([1, 2, 3])"
    with pytest.raises(IndexError, match="3 of 3 items"):
        result[3]
    with pytest.raises(IndexError):
        result[-4]
    with pytest.raises(KeyError):
        del PersistentMap()[1]
