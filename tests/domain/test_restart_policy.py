"""When the process of a replica starts again."""

from __future__ import annotations

import pytest

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.restart_policy import MAX_BACKOFF_S, NO_RESTART, RestartMode, RestartPolicy

SUCCESS = Exit(ExitKind.EXIT_CODE, 0, "finished")


@pytest.mark.parametrize("kind", ExitKind)
def test_only_ends_of_the_process_itself_are_followed_by_a_restart(kind: ExitKind) -> None:
    policy, expected = (
        RestartPolicy(RestartMode.ON_FAILURE),
        kind in (ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.OUT_OF_MEMORY),
    )
    assert policy.allows(Exit(kind, 1, "why")) is expected
    assert not NO_RESTART.allows(Exit(kind, 1, "why"))


def test_success_is_followed_by_a_restart_only_with_always() -> None:
    assert [RestartPolicy(mode).allows(SUCCESS) for mode in RestartMode] == [False, False, True]


def test_backoff_doubles_up_to_its_maximum_and_ends_with_the_limit() -> None:
    policy = RestartPolicy(RestartMode.ON_FAILURE, limit=12, backoff_s=1.0)
    delays = [policy.delay_s([0.0] * count, 1000.0) for count in range(13)]
    assert delays[:4] == [1.0, 2.0, 4.0, 8.0]
    assert delays[9:] == [MAX_BACKOFF_S, MAX_BACKOFF_S, MAX_BACKOFF_S, None]
    assert policy.exceeded_text() == "no restart is left of 12 restarts"


def test_restarts_before_the_window_do_not_count() -> None:
    policy = RestartPolicy(RestartMode.ON_FAILURE, limit=2, window_s=60.0, backoff_s=1.0)
    assert policy.delay_s([0.0, 50.0], 59.0) is None
    assert policy.delay_s([0.0, 50.0], 60.0) == 2.0
