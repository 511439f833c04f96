"""One configuration of a study, and what a searcher and its study say to each other of it.

The life of a trial, as both sides see it:

    proposed ── training up to its budget ──┬─ told PAUSE at the budget ─▶ paused
                                            ├─ told CONTINUE at the budget ─▶ completed
                                            ├─ told STOP, at any step ─▶ stopped
                                            └─ a final outcome was told ─▶ ended

A paused trial is proposed again, with a larger budget, and is in training again; it can end, too.

What is told of a trial that is not training changes nothing and gets the answer that it got last: news may be
late, or repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue


@dataclass(frozen=True, slots=True)
class Proposal:
    """Train `trial` with `params` until it has done `budget` epochs in all, then (at the latest) ask what to
    do.

    trial: "0", "1", … in the order of first proposals.
    start_from: whose state to begin with: None a fresh one; its own id a trial that was paused and goes on;
    another's a copy of that one's state as it stood when it last reached a budget (population based
    training), while the epochs that `trial` has done count on from its own. A trial that was proposed before
    is proposed again only when it is paused, with a larger budget; its params may be others then.
    """

    trial: TrialId
    params: Mapping[str, ParamValue]
    budget: int
    start_from: TrialId | None = None


class SearchState(StrEnum):
    """Asking and getting one of these changes nothing: it may be asked any number of times, and need not be
    recorded."""

    WAIT = "wait"  # nothing to propose until more is told of a trial that is training
    DONE = "done"  # nothing more to propose, ever; trials may still be training


class TrialOutcome(StrEnum):
    RUNNING = "running"
    # it has done all that the study wanted of it; told: it ended by itself, its value stands
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"  # told: somebody else than the searcher stopped it


@dataclass(frozen=True, slots=True)
class Report:
    """What a trial's metric was after `step` epochs (1 after the first).

    Whoever drives the study may tell every step or only some, in the order of steps. When a trial has reached
    its budget, that is told in any case, once, with step = budget and its newest value. A step beyond the
    budget counts as the budget; one that is not beyond what was told before (the training went back to a
    checkpoint) changes nothing. value: None where it has none: between budgets that says nothing, at a budget
    the trial counts as failed. NaN and infinities count as None; whoever drives the study tells a NaN as
    FAILED.
    outcome: a final one is told of a trial that ended otherwise than by a verdict, once, after all reports;
    its verdict is STOP. The value of a COMPLETED one counts as if it had reached its budget, but it cannot be
    asked to go on. One that FAILED or was STOPPED counts as the worst of those that it competes with.
    """

    trial: TrialId
    step: int
    value: float | None
    outcome: TrialOutcome = TrialOutcome.RUNNING


class Verdict(StrEnum):
    CONTINUE = "continue"  # go on up to the budget; at the budget, the trial has completed
    PAUSE = "pause"  # only at the budget: keep its state; it may be proposed again
    STOP = "stop"  # it gets no more; no other will be given a copy of its state


@dataclass(frozen=True, slots=True)
class AskEvent:
    answer: Proposal | SearchState


@dataclass(frozen=True, slots=True)
class TellEvent:
    report: Report
    verdict: Verdict


StudyEvent = AskEvent | TellEvent
