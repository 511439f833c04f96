"""How the ends of replicas add up to the end of their gang."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.attempt import (
    AttemptPhase,
    AttemptStatus,
    Exit,
    ExitKind,
    ReplicaPhase,
    ReplicaStatus,
    gang_state,
)
from hopyard.domain.ids import AttemptId

exits = st.builds(Exit, st.sampled_from(ExitKind), st.integers(0, 255), st.just("because"))


@st.composite
def gangs(draw: st.DrawFn) -> tuple[AttemptStatus, int]:
    size = draw(st.integers(1, 5))
    heard = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=size))
    replicas = []
    for rank in heard:
        phase = draw(st.sampled_from(ReplicaPhase))
        replicas.append(
            ReplicaStatus(rank, phase, exit=draw(exits) if phase is ReplicaPhase.EXITED else None)
        )
    return AttemptStatus(AttemptId("r.1"), tuple(replicas)), size


def status(*ends: Exit | None) -> AttemptStatus:
    return AttemptStatus(
        AttemptId("r.1"),
        tuple(
            ReplicaStatus(i, ReplicaPhase.EXITED if end else ReplicaPhase.RUNNING, exit=end)
            for i, end in enumerate(ends)
        ),
    )


GOOD = Exit(ExitKind.EXIT_CODE, 0, "finished")
BAD = Exit(ExitKind.EXIT_CODE, 1, "exit code 1")
PEER = Exit(ExitKind.PEER_FAILED, 143, "another replica failed")
LOST = Exit(ExitKind.LOST, 1, "its processes vanished")
OOM = Exit(ExitKind.OUT_OF_MEMORY, 137, "used 1.2 GiB of 1.0 GiB memory")


@given(gangs())
def test_attempt_is_over_exactly_when_every_replica_has_exited(gang: tuple[AttemptStatus, int]) -> None:
    attempt_status, size = gang
    phase, _ = gang_state(attempt_status, size=size)
    assert phase.is_live == (sum(r.exit is not None for r in attempt_status.replicas) < size)


@given(gangs())
def test_attempt_succeeds_exactly_when_all_replicas_do(
    gang: tuple[AttemptStatus, int],
) -> None:
    attempt_status, size = gang
    phase, exit = gang_state(attempt_status, size=size)
    ends = [r.exit for r in attempt_status.replicas if r.exit is not None]
    assert (phase is AttemptPhase.SUCCEEDED) == (len(ends) == size and all(e.is_success for e in ends))
    if any(not e.is_success for e in ends):
        assert exit is not None
        assert not exit.is_success
        assert exit.kind in {e.kind for e in ends if not e.is_success}
    else:
        assert (exit is None) == (phase is not AttemptPhase.SUCCEEDED)


@given(gangs(), st.randoms(use_true_random=False))
def test_order_of_replica_statuses_does_not_matter(gang: tuple[AttemptStatus, int], random) -> None:
    attempt_status, size = gang
    shuffled = AttemptStatus(
        attempt_status.attempt, tuple(random.sample(attempt_status.replicas, len(attempt_status.replicas)))
    )
    assert gang_state(shuffled, size=size) == gang_state(attempt_status, size=size)


@pytest.mark.parametrize(
    ("ends", "phase", "kind"),
    [
        ((GOOD, GOOD), AttemptPhase.SUCCEEDED, ExitKind.EXIT_CODE),
        ((GOOD, None), AttemptPhase.RUNNING, None),
        ((BAD, None), AttemptPhase.STOPPING, ExitKind.EXIT_CODE),
        ((PEER, BAD), AttemptPhase.FAILED, ExitKind.EXIT_CODE),
        # a lost replica broke its peer's connection: repeat it
        ((BAD, LOST), AttemptPhase.LOST, ExitKind.LOST),
        ((BAD, OOM), AttemptPhase.FAILED, ExitKind.OUT_OF_MEMORY),
    ],
)
def test_gang_exit_has_the_cause(
    ends: tuple[Exit | None, ...], phase: AttemptPhase, kind: ExitKind | None
) -> None:
    result, exit = gang_state(status(*ends), size=len(ends))
    assert result is phase
    assert (exit.kind if exit else None) == kind


@pytest.mark.parametrize("kind", [ExitKind.STOPPED, ExitKind.PREEMPTED])
@pytest.mark.parametrize("first", [0, 1])
def test_ordered_end_names_no_replica(kind: ExitKind, first: int) -> None:
    ordered = Exit(kind, 143, "by an order")
    moments = [datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)]
    replicas = tuple(
        ReplicaStatus(rank, ReplicaPhase.EXITED, exit=ordered, ended_at=moments[rank != first])
        for rank in range(2)
    )
    phase, exit = gang_state(AttemptStatus(AttemptId("r.1"), replicas), size=2)
    assert (phase, exit) == (AttemptPhase.STOPPED, ordered)


@pytest.mark.parametrize("first", [0, 1])
def test_preempted_gang_has_reason_of_replica_that_saved(first: int) -> None:
    moments = [datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)]
    reasons = ("preempted at step 12, checkpoint saved", "preempted")
    replicas = tuple(
        ReplicaStatus(
            rank,
            ReplicaPhase.EXITED,
            exit=Exit(ExitKind.PREEMPTED, 75, reasons[rank]),
            ended_at=moments[rank != first],
        )
        for rank in range(2)
    )
    _, exit = gang_state(AttemptStatus(AttemptId("r.1"), replicas), size=2)
    assert exit == Exit(ExitKind.PREEMPTED, 75, reasons[0])
    _, exit = gang_state(AttemptStatus(AttemptId("r.1"), replicas), size=2, optional={0}, services={0})
    assert exit == Exit(ExitKind.PREEMPTED, 75, reasons[1]), "a service saves no checkpoint"


@pytest.mark.parametrize(
    ("ends", "phase", "kind"),
    [
        ((None, BAD, LOST), AttemptPhase.RUNNING, None),
        ((GOOD, BAD, None), AttemptPhase.STOPPING, None),
        ((GOOD, BAD, LOST), AttemptPhase.SUCCEEDED, ExitKind.EXIT_CODE),
        ((LOST, GOOD, None), AttemptPhase.STOPPING, ExitKind.LOST),
        ((LOST, OOM, GOOD), AttemptPhase.LOST, ExitKind.LOST),
    ],
)
def test_only_essential_replicas_count(
    ends: tuple[Exit | None, ...], phase: AttemptPhase, kind: ExitKind | None
) -> None:
    result, exit = gang_state(status(*ends), size=len(ends), optional={1, 2})
    assert result is phase
    assert (exit.kind if exit else None) == kind


@pytest.mark.parametrize(
    ("ends", "phase", "kind"),
    [
        ((None, None, BAD), AttemptPhase.STOPPING, ExitKind.EXIT_CODE),
        ((None, None, GOOD), AttemptPhase.RUNNING, None),
        ((GOOD, None, None), AttemptPhase.RUNNING, None),
        ((GOOD, GOOD, None), AttemptPhase.STOPPING, None),
        ((GOOD, GOOD, BAD), AttemptPhase.SUCCEEDED, ExitKind.EXIT_CODE),
    ],
)
def test_service_ends_after_the_others(
    ends: tuple[Exit | None, ...], phase: AttemptPhase, kind: ExitKind | None
) -> None:
    result, exit = gang_state(status(*ends), size=len(ends), optional={2}, services={2})
    assert (result, exit.kind if exit else None) == (phase, kind)


def test_first_failure_is_the_cause_unless_a_connection_broke() -> None:
    def failed(rank: int, text: str, second: int) -> ReplicaStatus:
        end = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
        return ReplicaStatus(rank, ReplicaPhase.EXITED, exit=Exit(ExitKind.EXIT_CODE, 1, text), ended_at=end)

    replicas = (
        failed(0, "RuntimeError: Connection closed by peer [127.0.0.1]:4", 1),
        failed(1, "KeyError: 'b'", 3),
        failed(2, "ValueError: a", 2),
    )
    _, exit = gang_state(AttemptStatus(AttemptId("a.1"), replicas), size=3)
    assert exit == Exit(ExitKind.EXIT_CODE, 1, "replica 2: ValueError: a")
    killed = ReplicaStatus(1, ReplicaPhase.EXITED, exit=Exit(ExitKind.SIGNAL, 139, "killed by signal 11"))
    _, exit = gang_state(AttemptStatus(AttemptId("a.1"), (replicas[0], killed)), size=2)
    assert exit == Exit(ExitKind.SIGNAL, 139, "replica 1: killed by signal 11")


@given(gangs(), st.sets(st.integers(1, 4)))
def test_gang_with_optional_replicas_is_over_when_all_have_exited(
    gang: tuple[AttemptStatus, int], optional: set[int]
) -> None:
    attempt_status, size = gang
    phase, _ = gang_state(attempt_status, size=size, optional={rank for rank in optional if rank < size})
    assert phase.is_live == (sum(r.exit is not None for r in attempt_status.replicas) < size)


def test_failed_replica_is_named_in_gangs_only() -> None:
    assert gang_state(status(BAD), size=1)[1] == BAD
    assert gang_state(status(PEER, OOM), size=2)[1] == Exit(
        OOM.kind, OOM.code, "replica 1: used 1.2 GiB of 1.0 GiB memory"
    )
