"""Writes the journal and updates its index."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop.report_schedule import ReportSchedule
from hopyard.mop_runtime.driver.journal_index import FinalState, JournalIndex
from hopyard.mop_runtime.driver.retry_counts import RetryCause
from hopyard.mop_runtime.messages import EvaluationResult, HopResult, MeasurementResult
from hopyard.studies.trainer import TrainerContext


class MopJournal:
    """expected_workers: the last workers of an earlier driver of this attempt."""

    def __init__(self, context: TrainerContext, schedule: ReportSchedule) -> None:
        self._context = context
        fork_point = context.spec.beginning
        self.index = JournalIndex.from_records(
            context.past_records,
            schedule.partition_count,
            None
            if fork_point is None
            else FinalState(
                fork_point.fork_state_name,
                fork_point.epoch,
                frozenset(map(PartitionId, fork_point.visited)),
            ),
            schedule,
        )
        self.expected_workers = frozenset(self.index.active_workers)
        self.write("hopper", start=self.index.driver_starts + 1)

    def write(self, kind: str, **fields: Any) -> None:
        """Appends a record before its effect. Raises StorageFull."""
        self._context.journal.write(kind, **fields)
        self.index.apply({"kind": kind, **fields})

    def record_worker_event(self, worker: WorkerId, event: str, detail: str) -> None:
        self.write("worker", worker=worker, event=event, detail=detail)
        self._context.log_message(f"worker {worker} {event}: {detail}")

    def record_retry(
        self, trial: TrialId, cause: RetryCause, epoch: int = 0, partitions: Iterable[PartitionId] = ()
    ) -> int:
        """Returns how often this unit was repeated for this cause; for errors of the code, how often any unit
        of the trial was."""
        unit = epoch, tuple(partitions)
        self.write("retried", trial=trial, cause=cause.value, epoch=epoch, partitions=list(unit[1]))
        counts = self.index.retry_counts[trial]
        return counts.errors if cause is RetryCause.ERROR else counts.by_unit[cause, unit]

    def record_hop(self, result: HopResult, workers: tuple[WorkerId, ...]) -> None:
        self.write(
            "hop",
            n=self.index.hop_count + 1,
            unit=result.unit,
            trial=result.trial,
            epoch=result.epoch,
            partitions=list(result.partitions),
            workers=list(workers),
            began_at=result.began_at,
            ended_at=result.ended_at,
            start_from=result.start_from,
            state=result.state,
            bytes=result.bytes,
            fetch_s=result.fetch_s,
            save_s=result.save_s,
            fetched_bytes=result.fetched_bytes,
            **({"logged": dict(result.logged)} if result.logged else {}),
        )

    def record_evaluation(
        self, result: EvaluationResult, worker: WorkerId, *, of: str, is_available: Callable[[str], bool]
    ) -> bool:
        """of: `train` or `validation`. Results that are recorded already, or belong to an unknown state, are
        ignored, unless what was gathered before is lost. Returns whether it was recorded."""
        is_needed = result.state in self.index.states and (
            result.partition in self.index.missing_evaluations(result.state, is_available)
        )
        if is_needed:
            self.write(
                "evaluated",
                unit=result.unit,
                trial=result.trial,
                epoch=result.epoch,
                partition=result.partition,
                worker=worker,
                of=of,
                began_at=result.began_at,
                ended_at=result.ended_at,
                metrics=dict(result.metrics),
                rows=result.rows,
                state=result.state,
                **({"gathered": True} if result.gathered else {}),
            )
        return is_needed

    def record_reads(self, params: Iterable[str]) -> None:
        """Records parameters that the user's code has read, each once."""
        new = sorted(set(params) - self.index.read_params)
        if new:
            self.write("read", params=new)

    def record_measurement(self, result: MeasurementResult, worker: WorkerId) -> None:
        """Records the metrics of a state on the whole validation set, once."""
        if result.state in self.index.states and result.state not in self.index.measured:
            self.write(
                "measured",
                unit=result.unit,
                trial=result.trial,
                epoch=result.epoch,
                worker=worker,
                began_at=result.began_at,
                ended_at=result.ended_at,
                metrics=dict(result.metrics),
                state=result.state,
            )
