"""No news of an attempt takes a run out of the table of phases."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.attempt_state import AttemptState, Transition
from hopyard.domain.attempt_transitions import apply_status, request_stop
from hopyard.domain.ids import AttemptId
from hopyard.domain.requeue import end_attempt, fail_launch, lost_exit
from hopyard.domain.run import RunPhase, checked_transition

EXITS = st.builds(Exit, st.sampled_from(ExitKind), st.sampled_from((0, 1, 130)), st.just("over"))


@st.composite
def statuses(draw: st.DrawFn) -> ReplicaStatus:
    phase = draw(st.sampled_from(ReplicaPhase))
    exit = draw(EXITS) if phase is ReplicaPhase.EXITED else None
    return ReplicaStatus(draw(st.integers(0, 2)), phase, exit=exit)


NEWS = st.one_of(
    st.lists(statuses(), max_size=3).map(tuple),
    st.sampled_from(("stop", "preempt", "lost")),
    st.sampled_from((ExitKind.NODE_FAULT, ExitKind.PREPARE_FAILED, ExitKind.LOST)),
)
FIRST = AttemptState(AttemptId("r.1"), AttemptPhase.STARTING, (), 3, 0, RunPhase.STARTING, False, 4)


def change(
    state: AttemptState, news: tuple[ReplicaStatus, ...] | str | ExitKind
) -> tuple[AttemptState, Transition | None]:
    """Applies a status to an attempt like a store, and returns the next state and the transition."""
    if isinstance(news, tuple):
        return state, apply_status(state, AttemptStatus(state.attempt, news))
    if isinstance(news, ExitKind):
        return state, fail_launch(state, "it was not started", news)
    if news == "lost":
        return state, end_attempt(state, AttemptPhase.LOST, lost_exit("it is gone"))
    state = replace(state, stop_requested=True) if news == "stop" else replace(state, preempted=True)
    return state, request_stop(state)


@given(
    st.lists(NEWS, max_size=20),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sets(st.integers(1, 2), max_size=1),
)
def test_every_status_sequence_follows_the_transition_table(
    statuses_: list[tuple[ReplicaStatus, ...] | str | ExitKind],
    size: int,
    max_attempts: int,
    optional: set[int],
) -> None:
    state = replace(
        FIRST,
        size=size,
        max_attempts=max_attempts,
        optional=frozenset(rank for rank in optional if rank < size),
    )
    for news in statuses_:
        state, after = change(state, news)
        if after is None:
            continue
        phase = checked_transition(state.run_phase, after.run_phase)
        if not after.phase.is_live:
            assert phase is RunPhase.QUEUED or phase.is_final
            assert after.exit is not None
            return
        state = replace(state, phase=after.phase, replicas=after.replicas, run_phase=phase)
