"""Selects the state from which a trial resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.mop_runtime.driver.active_trial import ActiveTrial
from hopyard.mop_runtime.driver.journal_index import (
    INITIAL_STATE,
    JournalIndex,
    StateRecord,
    TrainingPosition,
)
from hopyard.studies.trainer import TrialWork

IsAvailable = Callable[[str], bool]


def find_start_state(
    index: JournalIndex, trials: Mapping[TrialId, ActiveTrial], work: TrialWork, is_available: IsAvailable
) -> tuple[str, TrainingPosition]:
    """Returns the state from which the work starts, and its position.

    It is the trial's own state after the reported steps; or a copy of another trial's final state (that of
    its last report if that trial is still training); or the initial state, which is new unless the study is a
    fork. If the state is lost, its newest available predecessor is used.
    """
    source_trial = work.trial if work.start_from is None else work.start_from
    first = index.initial_state.state, index.initial_position
    if source_trial == work.trial and work.done_epochs <= index.initial_state.epoch:
        return first
    state_name = _find_final_state(
        index, trials, source_trial, work.done_epochs if source_trial == work.trial else None
    )
    if state_name is None:
        return first
    if is_available(state_name):
        visited = index.states[state_name].position.visited if state_name in index.states else frozenset()
        return state_name, index.position_at(work.done_epochs, visited)
    return next(
        ((state, record.position) for state, record in index.ancestry(state_name) if is_available(state)),
        first,
    )


def _find_final_state(
    index: JournalIndex, trials: Mapping[TrialId, ActiveTrial], source_trial: TrialId, epochs: int | None
) -> str | None:
    training = trials.get(source_trial)
    if training is not None and training.report_states:
        return training.report_states.get(
            epochs if epochs in training.report_states else max(training.report_states)
        )
    if source_trial in index.final_states:
        return index.final_states[source_trial].state
    ends = index.step_states(source_trial, index.latest_states.get(source_trial, INITIAL_STATE))
    return ends.get(epochs if epochs in ends else max(ends)) if ends else None


def resume_trial(index: JournalIndex, work: TrialWork, is_available: IsAvailable) -> ActiveTrial:
    """Returns a trial of an earlier driver at the newest available state, but before any unreported
    state that is lost.

    Lost hops are repeated in the same order. So the trial reaches the same states, and its reported metrics
    stay valid.
    """
    head = index.latest_states.get(work.trial, INITIAL_STATE)
    ends = {
        step: state
        for step, state in index.step_states(work.trial, head).items()
        if step == work.done_epochs
        or (step > work.done_epochs and index.schedule.is_report(*index.schedule.split(step), work.budget))
    }
    state, resume_position, lost_records = (
        index.initial_state.state,
        index.initial_position,
        [],
    )
    trial_start = index.trial_starts[work.trial]
    for name, record in index.ancestry(head):
        record_position = record.position if record.trial == work.trial else trial_start.position
        position_step = index.step_at(record_position)
        unevaluated = [end for step, end in ends.items() if work.done_epochs < step <= position_step]
        if is_available(name) and all(is_available(end) for end in unevaluated):
            state, resume_position = name, record_position
            break
        lost_records.append(record)
    resume_step = index.step_at(resume_position)
    report_states = {step: end for step, end in ends.items() if step <= resume_step}
    order = (
        (*_replay_order(lost_records, work.trial), *index.replay_orders.get(work.trial, ()))
        if _are_all_single(lost_records, work.trial)
        else _replay_order(lost_records, work.trial)
    )
    return ActiveTrial(
        index.schedule,
        work.trial,
        work.params,
        work.budget,
        work.done_epochs,
        state,
        resume_position,
        report_states,
        order,
    )


def _are_all_single(lost_states: Sequence[StateRecord], trial: TrialId) -> bool:
    return all(record.trial == trial and len(record.partitions) == 1 for record in lost_states)


def _replay_order(lost_states: Sequence[StateRecord], trial: TrialId) -> tuple[PartitionId, ...]:
    """Returns the partitions of the lost hops, oldest first, up to the first hop of a group, which needs idle
    workers."""
    if any(record.trial != trial for record in lost_states):
        return ()  # some of the hops belong to another trial
    single_hops = takewhile(lambda record: len(record.partitions) == 1, reversed(lost_states))
    return tuple(record.partitions[0] for record in single_hops)
