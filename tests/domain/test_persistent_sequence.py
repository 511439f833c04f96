"""Sequences in chunks, against plain ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.persistent_sequence import PersistentMap, PersistentSequence

KEYS = st.integers(0, 30)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "drop", "look"]), KEYS, st.integers(0, 3)), max_size=120)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(1, 5))
def test_it_holds_what_a_dictionary_holds(steps: list[tuple[str, int, int]], size: int) -> None:
    plain: dict[int, tuple[int, int]] = {}
    found: PersistentMap[int, tuple[int, int]] = PersistentMap(size)
    seen = [(found.to_sequence(), ())]
    for step, key, value in steps:
        if step == "set":
            plain[key] = found[key] = (key, value)
        elif step == "drop":
            plain.pop(key, None)
            found.discard(key)
        else:
            seen.append((found.to_sequence(), tuple(plain.values())))
        assert (len(found), list(found), list(found.values())) == (
            len(plain),
            list(plain),
            list(plain.values()),
        )
        assert all(
            found.get(each) == plain.get(each) and (each in found) == (each in plain) for each in range(31)
        )
    seen.append((found.to_sequence(), tuple(plain.values())))
    for told, expected in seen:  # none of them has changed since
        assert told == expected
        assert expected == told
        assert len(told) == len(expected)
        assert [told[at] for at in range(-len(told), len(told))] == [*expected, *expected]
        assert told[1:3] == expected[1:3]


def test_what_did_not_change_is_shared() -> None:
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


def test_few_that_are_left_are_packed() -> None:
    many: PersistentMap[int, int] = PersistentMap(10)
    for number in range(1000):
        many[number] = number
    for number in range(1000):
        if number % 10:
            del many[number]
    found = many.to_sequence()
    assert list(found) == list(range(0, 1000, 10))
    assert len(found.chunks) <= 44
    many[10] = 11
    many.discard(5)
    assert list(many.to_sequence())[:3] == [0, 11, 20]


def test_it_is_a_sequence_like_others() -> None:
    found = PersistentSequence([(1, 2), (3,)])
    assert found == [1, 2, 3]
    assert found != (1, 2)
    assert found != "123"
    assert PersistentSequence() == ()
    assert not PersistentSequence()
    assert 3 in found
    assert repr(found) == "PersistentSequence([1, 2, 3])"
    with pytest.raises(IndexError, match="3 of 3 items"):
        found[3]
    with pytest.raises(IndexError):
        found[-4]
    with pytest.raises(KeyError):
        del PersistentMap()[1]
