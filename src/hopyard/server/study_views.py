"""The states of studies, computed from their journals for viewers, and kept while a viewer follows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import Run
from hopyard.errors import Conflict, HopyardError, SpecError
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.studies.journal import STREAM, JournalRecord, read_records
from hopyard.studies.view.study_view import StudyView

MAX_JOURNAL_BYTES = 64 * 1024 * 1024  # of one study
_MAX_CACHED_BYTES = 64 * 1024 * 1024  # of the journals of all studies that are kept
_MAX_CACHED_STUDIES = 64
_READ_BYTES = 1024 * 1024
# what a record of another form raises
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    HopyardError,
)


@dataclass(slots=True)
class JournalView:
    """A study as its journal describes it so far.

    records: the number of records. changed: by trial, the number of the record that changed it last. skipped:
    records that a driver of another version, or a user's program, wrote in another form.
    """

    view: StudyView = field(default_factory=StudyView)
    records: int = 0
    skipped: int = 0
    changed: dict[str, int] = field(default_factory=dict)
    lengths: dict[AttemptId, int] = field(default_factory=dict)
    rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Applies the whole records; the beginning of another one waits for its end."""
        end = data.rfind(b"\n") + 1
        if not end:
            self.rest += data
            return
        text, self.rest = self.rest + data[:end], data[end:]
        for record in read_records(text):
            self.records += 1
            try:
                self.view.apply(record)
                trial = _trial_of(record)
            except MALFORMED:
                self.skipped += 1
                continue
            if trial is not None:
                self.changed[trial] = self.records

    @property
    def size_bytes(self) -> int:
        return sum(self.lengths.values())


class StudyViews:
    """Keeps the studies that were read last. A later look reads only what the journal has gained."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._studies: OrderedDict[RunId, JournalView] = OrderedDict()
        self._locks: WeakValueDictionary[RunId, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def read(self, run: Run, attempts: list[AttemptId]) -> AsyncIterator[JournalView]:
        """Gives the study up to its newest record; nothing changes it until the end of the block.

        attempts: of the run, in order. Raises SpecError if the run is no study; Conflict if its journal is
        too long.
        """
        if run.spec.study is None:
            raise SpecError(
                f"{run.name} is a run, not a study", hints=("`hop search ls -a` lists the studies",)
            )
        lock = self._locks.setdefault(run.id, asyncio.Lock())
        async with lock:
            study = await self._update(run, attempts)
            # of the submission, which was checked; the journal is written by a program of the user
            study.view.spec = dict(run.spec.study)
            if run.phase.is_final:
                study.view.mark_ended()
            yield study

    async def _update(self, run: Run, attempts: list[AttemptId]) -> JournalView:
        lengths = {attempt: (await self._streams.lengths(attempt, 0)).get(STREAM, 0) for attempt in attempts}
        if sum(lengths.values()) > MAX_JOURNAL_BYTES:
            raise Conflict(
                f"the journal of {run.name} has more than {MAX_JOURNAL_BYTES // 2**20} MiB",
                hints=("read it with GET /runs/{id}/journal, or with `hop search show --json`",),
            )
        study = self._studies.pop(run.id, None)
        if study is None or not _continues(study.lengths, lengths):
            study = JournalView()
        for attempt, length in lengths.items():
            while (offset := study.lengths.get(attempt, 0)) < length:
                data = await self._streams.read(
                    StreamKey(attempt, 0, STREAM), offset, min(_READ_BYTES, length - offset)
                )
                if not data:
                    break
                await asyncio.to_thread(study.feed, data)
                study.lengths[attempt] = offset + len(data)
        self._studies[run.id] = study
        if len(self._studies) > _MAX_CACHED_STUDIES:
            self._studies.popitem(last=False)
        kept = sum(each.size_bytes for each in self._studies.values())
        while kept > _MAX_CACHED_BYTES and len(self._studies) > 1:
            kept -= self._studies.popitem(last=False)[1].size_bytes
        return study


def _continues(known: dict[AttemptId, int], now: dict[AttemptId, int]) -> bool:
    """Returns whether only the newest attempt that was read has grown: records are applied in order."""
    if not known:
        return True
    *earlier, newest = known
    return all(now.get(attempt, 0) == known[attempt] for attempt in earlier) and (
        now.get(newest, 0) >= known[newest]
    )


def _trial_of(record: JournalRecord) -> str | None:
    """Returns the trial that a record is about."""
    for part in (record, record.get("answer"), record.get("report")):
        trial: Any = part.get("trial") if isinstance(part, dict) else None
        if trial is not None:
            return str(trial)
    return None
