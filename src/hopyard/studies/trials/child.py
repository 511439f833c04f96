"""The run of one trial up to one budget, as its study sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.run import RunPhase
from hopyard.studies.trainer import News, Reached, Reported, TrialFailed
from hopyard.studies.trials.reports import Epochs, Row, StreamRows

_NAMES_SHOWN = 12
StreamId = tuple[str, int, str]  # attempt, rank, stream


@dataclass(slots=True)
class Child:
    """whole: its budget is not counted in epochs: the last value that it reports is told when it has ended.
    last: the epoch, as the script counts, at which the trial has done its budget; shift: from the script's
    epochs to the trial's (they differ where it goes on from another trial's checkpoint).
    """

    run: RunId
    trial: TrialId
    budget: int
    metric: str
    last: int
    shift: int = 0
    whole: bool = False
    name: str = ""
    phase: RunPhase | None = None
    exit_reason: str = ""
    ending: bool = False  # it was asked to end; what it says is of no interest any more
    overrun: bool = False  # it goes on beyond its budget
    asked: bool = False  # to leave at its next safe point, for that
    over: bool = False  # it has ended, and all that it said was read
    told: int = 0  # the largest epoch of the trial that was reported
    cursors: dict[StreamId, int] = field(default_factory=dict)
    _rows: dict[StreamId, StreamRows] = field(default_factory=dict)
    _epochs: dict[str, Epochs] = field(default_factory=dict)  # by attempt
    # by the script's steps where these are beyond its epochs
    _counted: dict[int, int] = field(default_factory=dict)
    _speaker: tuple[int, str] | None = None  # the rank and stream that the metric comes from
    _newest: Mapping[str, float] | None = None

    def see(self, head: Mapping[str, Any]) -> None:
        """What the server says of the run."""
        self.name, self.phase = str(head["name"]), RunPhase(head["phase"])
        exit = head.get("exit")
        self.exit_reason = str(exit["reason"]) if exit else ""
        attempt = head.get("attempt")
        if attempt is not None and attempt not in self._epochs:
            self._epochs[attempt] = Epochs(self._done(head.get("resumed_from_step")), self.last)

    def feed(self, stream: StreamId, offset: int, data: bytes) -> list[News]:
        """More of one of its metric streams."""
        at = self.cursors.get(stream, 0)
        if offset > at or offset + len(data) <= at:
            return []
        data = data[at - offset :]
        self.cursors[stream] = at + len(data)
        rows = self._rows.setdefault(stream, StreamRows(self.metric)).feed(data)
        attempt, rank, name = stream
        if rows and self._speaker is None:
            self._speaker = rank, name
        if self._speaker != (rank, name):
            return []
        return [news for row in rows for news in self._report(attempt, row)]

    def end(self) -> list[News]:
        """It is final, and all that it said was read."""
        self.over = True
        if self.ending:
            return []
        if self.phase is RunPhase.FAILED:
            return [TrialFailed(self.trial, f"run {self.name}: {self.exit_reason or 'it failed'}")]
        if self.phase is RunPhase.CANCELLED and not self._reached:
            return [
                TrialFailed(self.trial, f"run {self.name} was stopped: {self.exit_reason or 'by request'}")
            ]
        if self._newest is None and not self.told:
            return [
                TrialFailed(
                    self.trial,
                    f"run {self.name} ended, and never reported `{self.metric}`; it reported "
                    f"{self._all_names()}",
                )
            ]
        news: list[News] = []
        if not self._reached and self._newest is not None:  # it reports now and then only, or ended before
            news.append(Reported(self.trial, self.budget, self._newest))
        return [*news, Reached(self.trial, self.budget)]

    @property
    def _reached(self) -> bool:
        return self.told >= self.budget

    def _report(self, attempt: str, row: Row) -> list[News]:
        self._newest = row.metrics
        if self.whole:
            return []
        done = self._epochs.setdefault(attempt, Epochs(0, self.last)).of(row.step)
        if row.step is not None and row.step > self.last:
            self._counted[row.step] = done
        epoch = done + self.shift
        if epoch > self.budget:
            self.overrun = True
        if epoch <= self.told or epoch > self.budget or epoch < 1:
            return []
        self.told = epoch
        return [Reported(self.trial, epoch, row.metrics)]

    def _done(self, step: int | None) -> int:
        """Epochs of the script that were done at a checkpoint. A step beyond the last one is no number of
        epochs, but of batches: what was reported up to that step was done."""
        if step is None:
            return 0
        if step <= self.last:
            return step
        began = next(iter(self._epochs.values())).begun if self._epochs else max(0, self.told - self.shift)
        return max((done for at, done in self._counted.items() if at <= step), default=began)

    def _all_names(self) -> str:
        names = sorted({name for rows in self._rows.values() for name in rows.names})
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return (
            (", ".join(f"`{name}`" for name in names[:_NAMES_SHOWN]) + more)
            if names
            else "no metric at all (`hop.log(…)`, or TensorBoard)"
        )
