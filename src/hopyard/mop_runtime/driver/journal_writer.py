"""Writes the journal, and keeps its index."""

from __future__ import annotations

from typing import Any

from hopyard.domain.ids import WorkerId
from hopyard.mop_runtime.driver.journal_index import FinalState, JournalIndex
from hopyard.mop_runtime.messages import EvaluationResult, HopResult
from hopyard.studies.trainer import TrainerContext


class MopJournal:
    """expected_workers: the workers that an earlier driver of this attempt had in the end."""

    def __init__(self, context: TrainerContext, partition_count: int) -> None:
        self._context = context
        begin = context.spec.beginning
        self.index = JournalIndex.from_records(
            context.past_records,
            partition_count,
            None if begin is None else FinalState(begin.fork_state_name, begin.epoch),
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

    def record_hop(self, finished: HopResult, workers: tuple[WorkerId, ...]) -> None:
        self.write(
            "hop",
            n=self.index.hop_count + 1,
            unit=finished.unit,
            trial=finished.trial,
            epoch=finished.epoch,
            partitions=list(finished.partitions),
            workers=list(workers),
            began_at=finished.began_at,
            ended_at=finished.ended_at,
            start_from=finished.start_from,
            state=finished.state,
            bytes=finished.bytes,
            fetch_s=finished.fetch_s,
            save_s=finished.save_s,
            fetched_bytes=finished.fetched_bytes,
        )

    def record_evaluation(self, result: EvaluationResult, worker: WorkerId, *, of: str) -> None:
        """of: `train` or `validation`. What is known already, or of a state that is not, is passed over."""
        if result.state in self.index.states and result.partition not in self.index.results.get(
            result.state, {}
        ):
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
            )
