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
    """The state that work begins with, and where it stands: its own after the epochs that were told, a copy
    of another's as that one was left (or as it last ended an epoch, where it still trains), or the first one,
    fresh unless the study is a fork. Where that is lost, the newest before it."""
    whose = work.trial if work.start_from is None else work.start_from
    first = index.initial_state.state, TrainingPosition(index.initial_state.epoch)
    if whose == work.trial and work.done_epochs <= index.initial_state.epoch:
        return first
    found = _find_final_state(index, trials, whose, work.done_epochs if whose == work.trial else None)
    if found is None:
        return first
    if is_available(found):
        return found, TrainingPosition(work.done_epochs)
    return next(
        ((state, made.position) for state, made in index.ancestry(found) if is_available(state)), first
    )


def _find_final_state(
    index: JournalIndex, trials: Mapping[TrialId, ActiveTrial], source_trial: TrialId, epochs: int | None
) -> str | None:
    training = trials.get(source_trial)
    if training is not None and training.epoch_end_states:
        return training.epoch_end_states.get(
            epochs if epochs in training.epoch_end_states else max(training.epoch_end_states)
        )
    if source_trial in index.final_states:
        return index.final_states[source_trial].state
    ends = index.epoch_end_states(source_trial, index.latest_states.get(source_trial, INITIAL_STATE))
    return ends.get(epochs if epochs in ends else max(ends)) if ends else None


def resume_trial(index: JournalIndex, work: TrialWork, is_available: IsAvailable) -> ActiveTrial:
    """A trial that an earlier driver trained, from the newest state that is there; but not past an epoch that
    is still to be evaluated and whose state is not there any more. What was lost is done again in the same
    order, so that the trial comes to the same states, and what was reported of it stays true."""
    head = index.latest_states.get(work.trial, INITIAL_STATE)
    ends = {
        step: state
        for step, state in index.epoch_end_states(work.trial, head).items()
        if step >= work.done_epochs
    }
    state, at, lost = index.initial_state.state, TrainingPosition(index.initial_state.epoch), []
    begun = index.trial_starts[work.trial]
    for name, made in index.ancestry(head):
        position = made.position if made.trial == work.trial else TrainingPosition(begun.epoch)
        unmeasured = [end for step, end in ends.items() if work.done_epochs < step <= position.epoch]
        if is_available(name) and all(is_available(end) for end in unmeasured):
            state, at = name, position
            break
        lost.append(made)
    reached = {step: end for step, end in ends.items() if step <= at.epoch}
    order = (
        (*_replay_order(lost, work.trial), *index.replay_orders.get(work.trial, ()))
        if _are_all_single(lost, work.trial)
        else _replay_order(lost, work.trial)
    )
    return ActiveTrial(work.trial, work.params, work.budget, work.done_epochs, state, at, reached, order)


def _are_all_single(lost_states: Sequence[StateRecord], trial: TrialId) -> bool:
    return all(made.trial == trial and len(made.partitions) == 1 for made in lost_states)


def _replay_order(lost_states: Sequence[StateRecord], trial: TrialId) -> tuple[PartitionId, ...]:
    """The partitions of the lost hops, oldest first, up to the first that was a group's: that one needs idle
    workers."""
    if any(made.trial != trial for made in lost_states):
        return ()  # a part of it was another's
    singly = takewhile(lambda made: len(made.partitions) == 1, reversed(lost_states))
    return tuple(made.partitions[0] for made in singly)
