"""When a failed check cordons a node, and which replicas are checked with each other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.ids import AttemptId, NodeId
from hopyard.domain.launcher import Launcher
from hopyard.domain.preflight import (
    CORDON_WINDOW,
    MAX_FULL_MESH,
    Check,
    CheckFailure,
    NodeFailure,
    Preflight,
    all_reduce_turns,
    checked_peers,
    cordon_reason,
    has_all_reduce,
    recent_failures,
)

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
FAILURES = st.lists(
    st.builds(
        NodeFailure,
        node=st.sampled_from([NodeId("a"), NodeId("b")]),
        attempt=st.sampled_from([AttemptId("1.1"), AttemptId("1.2"), AttemptId("2.1")]),
        check=st.sampled_from(Check),
        found=st.just("it does not answer"),
        at=st.integers(0, 12 * 3600).map(lambda seconds: NOW - timedelta(seconds=seconds)),
    ),
    max_size=6,
)


@given(FAILURES)
def test_node_is_cordoned_after_two_recent_failed_attempts(failures: list[NodeFailure]) -> None:
    counted = {
        failure.attempt
        for failure in failures
        if failure.node == "a" and failure.check is not Check.DISK and NOW - failure.at <= CORDON_WINDOW
    }
    reason = cordon_reason(failures, NodeId("a"), now=NOW)
    assert bool(reason) == (len(counted) >= 2)
    assert cordon_reason(recent_failures(failures, now=NOW), NodeId("a"), now=NOW) == reason


@given(st.integers(1, 80), st.data())
def test_peers_are_mutual_and_connect_all_replicas(size: int, data: st.DataObject) -> None:
    ranks = sorted(data.draw(st.sets(st.integers(0, 500), min_size=size, max_size=size)))
    peers = {rank: set(checked_peers(rank, ranks)) for rank in ranks}
    assert all(
        rank not in others and rank in peers[other] for rank, others in peers.items() for other in others
    )
    following = dict(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    assert size == 1 or all(following[rank] in peers[rank] for rank in ranks)
    if size <= MAX_FULL_MESH:
        assert all(len(others) == size - 1 for others in peers.values())
    else:
        assert max(len(others) for others in peers.values()) <= 2 * size.bit_length()


@pytest.mark.parametrize("size", [*range(1, 70), 100, 127, 128, 1000])
def test_all_reduce_sums_up_all_replicas_in_few_turns_with_checked_peers(size: int) -> None:
    numbers = [3**position for position in range(size)]  # no other sum of some of them is equal
    sums, turns = numbers, all_reduce_turns(size)
    for distance, from_own in turns:
        added = numbers if from_own else sums
        sums = [added[position] + sums[position - distance] for position in range(size)]
        assert {distance % size, -distance % size} <= {*checked_peers(0, range(size))}
    assert sums == [sum(numbers)] * size
    assert len(turns) <= 2 * (size.bit_length() - 1)


def test_all_reduce_follows_the_launcher_unless_checks_are_full() -> None:
    assert has_all_reduce(Preflight.FULL, Launcher.NONE)
    assert has_all_reduce(Preflight.PAIRS, Launcher.JAX)
    assert not has_all_reduce(Preflight.PAIRS, Launcher.NONE)


def test_reason_has_check_finding_and_hint() -> None:
    assert CheckFailure(Check.GPU, "GPU 1 does not answer", "reboot").reason() == (
        "preflight check `gpu` failed: GPU 1 does not answer; hint: reboot"
    )
