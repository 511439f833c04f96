"""From which state a trial goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.studies.hopper.book import FRESH, Book, Made, Position
from hopyard.studies.hopper.training import Training
from hopyard.studies.trainer import Work

IsThere = Callable[[str], bool]


def origin_of(
    book: Book, trials: Mapping[TrialId, Training], work: Work, is_there: IsThere
) -> tuple[str, Position]:
    """The state that work begins with, and where it stands: its own after the epochs that were told, a copy
    of another's as that one was left (or as it last ended an epoch, where it still trains), or the first one,
    fresh unless the study is a fork. Where that is lost, the newest before it."""
    whose = work.trial if work.start_from is None else work.start_from
    first = book.first.state, Position(book.first.epoch)
    if whose == work.trial and work.done <= book.first.epoch:
        return first
    found = _left(book, trials, whose, work.done if whose == work.trial else None)
    if found is None:
        return first
    if is_there(found):
        return found, Position(work.done)
    return next(((state, made.at) for state, made in book.line(found) if is_there(state)), first)


def _left(book: Book, trials: Mapping[TrialId, Training], whose: TrialId, epochs: int | None) -> str | None:
    training = trials.get(whose)
    if training is not None and training.ends:
        return training.ends.get(epochs if epochs in training.ends else max(training.ends))
    if whose in book.left:
        return book.left[whose].state
    ends = book.epoch_ends(whose, book.heads.get(whose, FRESH))
    return ends.get(epochs if epochs in ends else max(ends)) if ends else None


def resumed(book: Book, work: Work, is_there: IsThere) -> Training:
    """A trial that an earlier driver trained, from the newest state that is there; but not past an epoch that
    is still to be evaluated and whose state is not there any more. What was lost is done again in the same
    order, so that the trial comes to the same states, and what was reported of it stays true."""
    head = book.heads.get(work.trial, FRESH)
    ends = {step: state for step, state in book.epoch_ends(work.trial, head).items() if step >= work.done}
    state, at, lost = book.first.state, Position(book.first.epoch), []
    begun = book.begun[work.trial]
    for name, made in book.line(head):
        position = made.at if made.trial == work.trial else Position(begun.epoch)
        unmeasured = [end for step, end in ends.items() if work.done < step <= position.epoch]
        if is_there(name) and all(is_there(end) for end in unmeasured):
            state, at = name, position
            break
        lost.append(made)
    reached = {step: end for step, end in ends.items() if step <= at.epoch}
    order = (
        (*_order(lost, work.trial), *book.again.get(work.trial, ()))
        if _all_singly(lost, work.trial)
        else _order(lost, work.trial)
    )
    return Training(work.trial, work.params, work.budget, work.done, state, at, reached, order)


def _all_singly(lost: Sequence[Made], trial: TrialId) -> bool:
    return all(made.trial == trial and len(made.partitions) == 1 for made in lost)


def _order(lost: Sequence[Made], trial: TrialId) -> tuple[PartitionId, ...]:
    """The partitions of the lost hops, oldest first, up to the first that was a group's: that one needs idle
    workers."""
    if any(made.trial != trial for made in lost):
        return ()  # a part of it was another's
    singly = takewhile(lambda made: len(made.partitions) == 1, reversed(lost))
    return tuple(made.partitions[0] for made in singly)
