"""Stop orders for the replicas of a gang after others have ended."""

from __future__ import annotations

import pytest

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.replica import StopOrder, stop_order_for_peers

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


def test_successful_replicas_give_no_stop_order() -> None:
    assert stop_order_for_peers([], 3.0) is None and stop_order_for_peers([(0, FINISHED)], 3.0) is None
