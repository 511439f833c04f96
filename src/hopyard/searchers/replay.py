"""Restores a searcher: repeats the recorded calls, and compares every answer. Proposals that take long to
compute come from the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.trial import AskEvent, Proposal, StudyEvent, TellEvent
from hopyard.errors import Conflict
from hopyard.interfaces.searcher import ProposalRestore, Searcher

_CHANGED_HINT = "restore the searcher, its options, the space and the seed of the study, or start a new study"


def replay(searcher: Searcher, events: Iterable[StudyEvent]) -> int:
    """Makes the calls of `events`, in this order, on a new searcher. Returns the number of calls.

    Raises Conflict with the number (from 0) of the first event that is answered differently.
    """
    number, calls = -1, list(events)
    if isinstance(searcher, ProposalRestore):
        proposals: dict[TrialId, Mapping[str, ParamValue]] = {}
        for event in calls:
            if isinstance(event, AskEvent) and isinstance(event.answer, Proposal):
                proposals.setdefault(event.answer.trial, event.answer.params)
        searcher.recall(proposals)
    for number, event in enumerate(calls):
        try:
            differs = _find_difference(searcher, event)
        except Conflict as error:
            raise Conflict(
                f"the study cannot be continued: event {number}, {_describe_event(event)}: {error.message}",
                hints=(_CHANGED_HINT,),
            ) from error
        if differs:
            raise Conflict(
                f"the study cannot be continued: event {number}, {_describe_event(event)}; now it is "
                f"{differs}",
                hints=(_CHANGED_HINT,),
            )
    return number + 1


def _find_difference(searcher: Searcher, event: StudyEvent) -> str:
    """Returns the answer of the searcher if it differs from the recorded answer, otherwise an empty text."""
    match event:
        case AskEvent(recorded):
            answer = searcher.ask()
            return "" if answer == recorded else _describe_answer(answer)
        case TellEvent(report, verdict):
            new_verdict = searcher.tell(report)
            return "" if new_verdict == verdict else new_verdict.value


def _describe_event(event: StudyEvent) -> str:
    match event:
        case AskEvent(answer):
            return f"`ask` returned {_describe_answer(answer)}"
        case TellEvent(report, verdict):
            return (
                f"told {report.value} of trial {report.trial} at step {report.step} "
                f"({report.outcome.value}), was answered {verdict.value}"
            )


def _describe_answer(answer: object) -> str:
    if not isinstance(answer, Proposal):
        return str(answer)
    params = ", ".join(f"{name}={value!r}" for name, value in answer.params.items())
    start = "" if answer.start_from is None else f" from trial {answer.start_from}"
    return f"trial {answer.trial} up to {answer.budget}{start} with {params}"
