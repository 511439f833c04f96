"""Converts events of a study to JSON, as in its journal, and back. `config.schemas.study_json` converts the
spec."""

from __future__ import annotations

from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.domain.trial import (
    AskEvent,
    Proposal,
    Report,
    SearchState,
    StudyEvent,
    TellEvent,
    TrialOutcome,
    Verdict,
)
from hopyard.errors import IntegrityError
from hopyard.studies.journal import JournalRecord


def event_json(event: StudyEvent) -> JournalRecord:
    """Returns the record of an event, with its `kind`. A report's value is null if it has none or is not
    finite."""
    if isinstance(event, AskEvent):
        return {"kind": "asked", "answer": _answer_json(event.answer)}
    report = event.report
    report_json = {
        "trial": report.trial,
        "step": report.step,
        "value": report.value,
        "outcome": report.outcome.value,
    }
    return {"kind": "told", "report": report_json, "verdict": event.verdict.value}


def event_from_json(record: JournalRecord) -> StudyEvent | None:
    """Returns None for records that are not events of the searcher. Raises IntegrityError for a damaged
    record."""
    kind = record.get("kind")
    if kind not in ("asked", "told"):
        return None
    try:
        if kind == "asked":
            return AskEvent(_answer_from_json(record["answer"]))
        report_json = record["report"]
        value = report_json["value"]
        report = Report(
            TrialId(report_json["trial"]),
            int(report_json["step"]),
            None if value is None else float(value),
            TrialOutcome(report_json["outcome"]),
        )
        return TellEvent(report, Verdict(record["verdict"]))
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"the journal has a record of kind `{kind}` that is invalid: {error!r}"
        ) from error


def _answer_json(answer: Proposal | SearchState) -> Any:
    if isinstance(answer, SearchState):
        return answer.value
    return {
        "trial": answer.trial,
        "params": dict(answer.params),
        "budget": answer.budget,
        "start_from": answer.start_from,
    }


def _answer_from_json(value: Any) -> Proposal | SearchState:
    if isinstance(value, str):
        return SearchState(value)
    origin = value["start_from"]
    return Proposal(
        TrialId(value["trial"]),
        dict(value["params"]),
        int(value["budget"]),
        None if origin is None else TrialId(origin),
    )
