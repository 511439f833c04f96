"""Stop orders for the replicas of a gang after others have ended."""

from __future__ import annotations

import pytest

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.replica import StopOrder, exit_after_replica_death, stop_order_for_peers

FINISHED = Exit(ExitKind.EXIT_CODE, 0, "finished")


@pytest.mark.parametrize(
    ("kinds", "kind", "reason"),
    [
        ([ExitKind.EXIT_CODE], ExitKind.PEER_FAILED, "ended because replica 0 failed"),
        ([None, ExitKind.OUT_OF_MEMORY], ExitKind.PEER_FAILED, "ended because replica 1 failed"),
        ([ExitKind.TIME_LIMIT], ExitKind.PEER_FAILED, "ended because replica 0 reached its time limit"),
        ([ExitKind.LOST], ExitKind.PEER_FAILED, "ended because replica 0 was lost"),
        (
            [ExitKind.PEER_FAILED, ExitKind.TIME_LIMIT],
            ExitKind.PEER_FAILED,
            "ended because replica 1 reached its time limit",
        ),
        ([ExitKind.PREEMPTED], ExitKind.PREEMPTED, "preempted with replica 0"),
        ([None, ExitKind.STOPPED], ExitKind.STOPPED, "stopped with replica 1"),
    ],
)
def test_stop_order_for_peers_has_the_cause(
    kinds: list[ExitKind | None], kind: ExitKind, reason: str
) -> None:
    ended = [(rank, FINISHED if kind is None else Exit(kind, 1, "x")) for rank, kind in enumerate(kinds)]
    assert stop_order_for_peers(ended, 3.0) == StopOrder(3.0, kind, reason)


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        (StopOrder.for_request(60.0, "INT"), StopOrder(30.0), (30.0, "INT", False)),
        (StopOrder.for_request(30.0, "INT"), StopOrder.for_request(60.0, "TERM"), (30.0, "TERM", False)),
        (StopOrder(30.0), StopOrder.for_request(60.0, "USR1"), (30.0, "USR1", False)),
        (StopOrder.for_request(30.0, "INT", preempt=True), StopOrder(9.0), (9.0, "INT", False)),
        (StopOrder.for_request(30.0, "INT"), StopOrder.for_preemption(60.0), (30.0, "INT", False)),
        (StopOrder.for_preemption(30.0), StopOrder.for_preemption(60.0), (30.0, "", True)),
    ],
)
def test_merged_orders_keep_the_last_signal_that_was_named(
    first: StopOrder, second: StopOrder, merged: tuple[float, str, bool]
) -> None:
    order = first.merged_with(second)
    assert (order.grace_s, order.signal, order.at_safe_point) == merged
    assert order.merged_with(second) == order  # a repeated order changes nothing


def test_successful_replicas_give_no_stop_order() -> None:
    assert stop_order_for_peers([], 3.0) is None and stop_order_for_peers([(0, FINISHED)], 3.0) is None


@pytest.mark.parametrize(
    ("order", "kind", "code", "reason"),
    [
        (None, ExitKind.LOST, 1, "lost: it died"),
        (StopOrder(3.0), ExitKind.STOPPED, 137, "stopped by request: it died"),
        (StopOrder.for_preemption(3.0), ExitKind.PREEMPTED, 137, "preempted: it died"),
        (StopOrder(3.0, ExitKind.PEER_FAILED, "replica 0 failed"), ExitKind.LOST, 1, "lost: it died"),
        (StopOrder.for_time_limit(60.0, "time limit of 4 h reached"), ExitKind.LOST, 1, "lost: it died"),
    ],
)
def test_replica_that_dies_after_stop_order_ends_as_ordered(
    order: StopOrder | None, kind: ExitKind, code: int, reason: str
) -> None:
    assert exit_after_replica_death(order, "it died") == Exit(kind, code, reason)
