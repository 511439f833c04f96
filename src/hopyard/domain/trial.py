"""One configuration of a study, and what a searcher and its study say to each other of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue


@dataclass(frozen=True, slots=True)
class Proposal:
    """Train `trial` with `params` until it has done `budget` epochs in all, then (at the latest) ask what to do.

    start_from: whose state to begin with: None a fresh one; its own id a trial that was paused and goes on; another's a copy
    of that one (population based training). A trial that was proposed before is proposed again only to go on, with a larger
    budget; its params may be others then.
    """

    trial: TrialId
    params: Mapping[str, ParamValue]
    budget: int
    start_from: TrialId | None = None


class SearchState(StrEnum):
    WAIT = "wait"  # nothing to propose until more is told
    DONE = "done"  # nothing more to propose, ever


class TrialOutcome(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"  # it has done all that the study wanted of it
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Report:
    """What a trial's metric was after `step` epochs. value: None where it has none (it failed, or never reported); NaN is
    told as a failure by whoever drives the study. A final outcome is told once, after all reports, and its verdict is STOP."""

    trial: TrialId
    step: int
    value: float | None
    outcome: TrialOutcome = TrialOutcome.RUNNING


class Verdict(StrEnum):
    CONTINUE = "continue"  # go on up to the budget; at the budget, the trial has completed
    PAUSE = "pause"  # keep its state; it may be proposed again
    STOP = "stop"  # it gets no more


@dataclass(frozen=True, slots=True)
class Asked:
    answer: Proposal | SearchState


@dataclass(frozen=True, slots=True)
class Told:
    report: Report
    verdict: Verdict


StudyEvent = Asked | Told
