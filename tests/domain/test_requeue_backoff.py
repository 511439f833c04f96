"""How long a requeued run waits."""

from __future__ import annotations

from hopyard.domain.requeue_backoff import MAX_BACKOFF_S, RequeueCause, backoff_s, ordinal


def test_backoff_is_bounded_and_does_not_overflow() -> None:
    assert backoff_s(RequeueCause.NODE_FAULT, 10**9) == MAX_BACKOFF_S
    assert backoff_s(RequeueCause.PREEMPTED, 5) == 0.0


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "22nd",
        "101st",
        "111th",
    ]
