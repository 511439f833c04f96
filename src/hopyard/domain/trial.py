"""One configuration of a study, and the messages between a searcher and its study about it.

The life of a trial, as both sides see it:

    proposed ── training up to its budget ──┬─ verdict PAUSE at the budget ─▶ paused
                                            ├─ verdict CONTINUE at the budget ─▶ completed
                                            ├─ verdict STOP, at any step ─▶ stopped
                                            └─ a final outcome is reported ─▶ ended

A paused trial is proposed again, with a larger budget, and trains again; it can also end.

A report of a trial that is not training changes nothing and gets the last verdict again: reports may be late,
or repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue


@dataclass(frozen=True, slots=True)
class Proposal:
    """Train `trial` with `params` up to `budget` epochs in total, then (at the latest) request a verdict.

    trial: "0", "1", … in the order of first proposals.

    start_from: the trial whose state to start with. None: a fresh state. Its own id: a paused trial resumes.
    Another id: a copy of that trial's state when it last reached a budget (population based training), while
    the epochs of `trial` continue from its own. An earlier trial is proposed again only when it is paused,
    with a larger budget; its params may differ then.
    """

    trial: TrialId
    params: Mapping[str, ParamValue]
    budget: int
    start_from: TrialId | None = None


class SearchState(StrEnum):
    """An answer of `ask` that changes nothing: it may be repeated any number of times, and need not be
    recorded."""

    WAIT = "wait"  # nothing to propose until a trial that is training reports
    DONE = "done"  # nothing to propose ever again; trials may still be training


class TrialOutcome(StrEnum):
    RUNNING = "running"
    # all epochs that the study requested are done; in a report: it ended by itself, and its value counts
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"  # in a report: stopped by something else than the searcher


@dataclass(frozen=True, slots=True)
class Report:
    """The metric of a trial after `step` epochs (1 after the first).

    The driver of a study may report every step or only some, in the order of steps. A trial that reaches its
    budget is always reported, once, with step = budget and its newest value. A step beyond the budget counts
    as the budget. A step that is not beyond the last one changes nothing (the training went back to a
    checkpoint).

    value: None if there is none. Between budgets, None has no effect; at a budget, the trial counts as
    failed. NaN and infinities count as None; the driver reports a NaN as FAILED.

    outcome: a final outcome is reported once for a trial that ended without a verdict, after all reports; its
    verdict is STOP. The value of a COMPLETED trial counts as if it had reached its budget, but the trial
    cannot be resumed. A FAILED or STOPPED trial counts as the worst of its competitors.
    """

    trial: TrialId
    step: int
    value: float | None
    outcome: TrialOutcome = TrialOutcome.RUNNING


class Verdict(StrEnum):
    CONTINUE = "continue"  # continue up to the budget; at the budget, the trial has completed
    PAUSE = "pause"  # only at the budget: keep its state; it may be proposed again
    STOP = "stop"  # it gets no more budget; no other trial gets a copy of its state


@dataclass(frozen=True, slots=True)
class AskEvent:
    answer: Proposal | SearchState


@dataclass(frozen=True, slots=True)
class TellEvent:
    report: Report
    verdict: Verdict


StudyEvent = AskEvent | TellEvent
