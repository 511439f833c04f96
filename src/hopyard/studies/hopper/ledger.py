"""The journal, and what it says so far."""

from __future__ import annotations

from typing import Any

from hopyard.domain.ids import WorkerId
from hopyard.studies.hopper.book import Book, Left
from hopyard.studies.messages import Evaluated, Finished
from hopyard.studies.trainer import Ground


class Ledger:
    """expected: the workers that an earlier driver of this attempt had in the end."""

    def __init__(self, ground: Ground, parts: int) -> None:
        self._ground = ground
        begin = ground.spec.beginning
        self.book = Book.of(ground.past, parts, None if begin is None else Left(begin.kept_as, begin.epoch))
        self.expected = frozenset(self.book.present)
        self.write("hopper", start=self.book.starts + 1)

    def write(self, kind: str, **fields: Any) -> None:
        """Before its effect. Raises StorageFull."""
        self._ground.journal.write(kind, **fields)
        self.book.take({"kind": kind, **fields})

    def note(self, worker: WorkerId, event: str, detail: str) -> None:
        self.write("worker", worker=worker, event=event, detail=detail)
        self._ground.say(f"worker {worker} {event}: {detail}")

    def hop(self, said: Finished, workers: tuple[WorkerId, ...]) -> None:
        self.write(
            "hop",
            n=self.book.hops + 1,
            unit=said.unit,
            trial=said.trial,
            epoch=said.epoch,
            partitions=list(said.partitions),
            workers=list(workers),
            began_at=said.began_at,
            ended_at=said.ended_at,
            start_from=said.start_from,
            state=said.state,
            bytes=said.bytes,
            fetch_s=said.fetch_s,
            save_s=said.save_s,
            fetched_bytes=said.fetched_bytes,
        )

    def evaluated(self, said: Evaluated, worker: WorkerId, *, of: str) -> None:
        """of: `train` or `validation`. What is known already, or of a state that is not, is passed over."""
        if said.state in self.book.made and said.partition not in self.book.results.get(said.state, {}):
            self.write(
                "evaluated",
                unit=said.unit,
                trial=said.trial,
                epoch=said.epoch,
                partition=said.partition,
                worker=worker,
                of=of,
                began_at=said.began_at,
                ended_at=said.ended_at,
                metrics=dict(said.metrics),
                rows=said.rows,
                state=said.state,
            )
