"""Which part of a run's streams users see: parts after the checkpoint from which a later attempt, or a later
process of the same attempt, resumed are omitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, attempt_id
from hopyard.domain.run import Attempt, Run

JOURNAL_STREAM = "journal"


@dataclass(frozen=True, slots=True)
class RestartRange:
    """A restart of a replica's process within an attempt, of one stream. The next process writes from `end`
    on; it repeats the bytes [begin, end), which are hidden."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """The bytes [begin, end) of a stream; None is its end. is_hidden: a later process repeats them.
    is_restart: another process begins here."""

    begin: int
    end: int | None
    is_hidden: bool = False
    is_restart: bool = False


@dataclass(frozen=True, slots=True)
class VisibleStreams:
    """The visible parts of a run's streams.

    attempts: the attempts with visible parts, in order. `visible_lengths[(attempt, rank, stream)]` is where a
    stream ends for users. all_attempts: all attempts, since a journal records what happened and is never cut.
    resume_points: for attempts that end for users at a checkpoint, the rank and step of that checkpoint.
    restarted_attempts: attempts, in order, after which the run started without a checkpoint of Hopyard. The
    script may have resumed from its own: see `metrics.read_series`. restarts: of replicas' processes, in
    order, by attempt, rank and stream.
    """

    attempts: tuple[AttemptId, ...]
    visible_lengths: Mapping[tuple[AttemptId, int, str], int]
    all_attempts: tuple[AttemptId, ...] = ()
    resume_points: Mapping[AttemptId, tuple[int, int]] = field(default_factory=dict)
    restarted_attempts: tuple[AttemptId, ...] = ()
    restarts: Mapping[tuple[AttemptId, int, str], tuple[RestartRange, ...]] = field(default_factory=dict)

    def attempts_of(self, stream: str) -> tuple[AttemptId, ...]:
        """Returns the attempts of which this stream is visible."""
        return self.all_attempts if stream == JOURNAL_STREAM else self.attempts

    def visible_length_of(self, attempt: AttemptId, rank: int, stream: str) -> int | None:
        """Returns how many bytes of this stream are visible; None for all."""
        return None if stream == JOURNAL_STREAM else self.visible_lengths.get((attempt, rank, stream))

    def restarts_of(self, attempt: AttemptId, rank: int, stream: str) -> tuple[RestartRange, ...]:
        """Returns the restarts that this stream has, in order."""
        return () if stream == JOURNAL_STREAM else self.restarts.get((attempt, rank, stream), ())

    def visible_parts(
        self, attempt: AttemptId, rank: int, stream: str, begin: int, end: int
    ) -> Iterator[tuple[int, int]]:
        """Yields the parts of the bytes [begin, end) of this stream that no later process repeats."""
        for span in self.spans_of(attempt, rank, stream):
            part = max(begin, span.begin), end if span.end is None else min(end, span.end)
            if not span.is_hidden and part[0] < part[1]:
                yield part

    def spans_of(self, attempt: AttemptId, rank: int, stream: str) -> Iterator[StreamSegment]:
        """Yields the parts of this stream in order, up to its visible length."""
        limit, position, is_restart = self.visible_length_of(attempt, rank, stream), 0, False
        for cut in self.restarts_of(attempt, rank, stream):
            if limit is not None and cut.begin >= limit:
                break
            if position < cut.begin:
                yield StreamSegment(position, cut.begin, is_restart=is_restart)
            if cut.begin < cut.end:
                yield StreamSegment(cut.begin, cut.end, is_hidden=True)
            position, is_restart = cut.end, True
        if limit is None or position < limit:
            yield StreamSegment(position, limit, is_restart=is_restart)


def visible_streams(
    run: Run, attempts: Sequence[Attempt], checkpoints: Sequence[Checkpoint]
) -> VisibleStreams:
    """Returns the view after all attempts so far.

    An attempt that resumed from a checkpoint of this run hides the later output of the attempt that saved it,
    and all attempts in between. An attempt that started from nothing, or from another run's checkpoint, hides
    all earlier attempts. An offline run has one attempt, which exists before it is recorded.
    """
    if run.offline and not attempts:
        return VisibleStreams((attempt_id(run.id, 1),), {}, (attempt_id(run.id, 1),))
    visible: list[AttemptId] = []
    restarted: list[AttemptId] = []
    all_attempts = tuple(attempt.id for attempt in sorted(attempts, key=lambda a: a.number))
    visible_lengths: dict[tuple[AttemptId, int, str], int] = {}
    resume_points: dict[AttemptId, tuple[int, int]] = {}
    for attempt in sorted(attempts, key=lambda a: a.number):
        source = _resumed_checkpoint(attempt, checkpoints, visible)
        if source is None:
            restarted += visible
            visible = []
        else:
            del visible[visible.index(source.attempt) + 1 :]
            resume_points[source.attempt] = source.rank, source.step
            for checkpoint in checkpoints:
                if checkpoint.attempt == source.attempt and checkpoint.step == source.step:
                    for stream, offset in checkpoint.offsets.items():
                        key = (checkpoint.attempt, checkpoint.rank, stream)
                        visible_lengths[key] = min(offset, visible_lengths.get(key, offset))
        visible.append(attempt.id)
    return VisibleStreams(
        tuple(visible),
        visible_lengths,
        all_attempts,
        {attempt: resume_point for attempt, resume_point in resume_points.items() if attempt in visible},
        tuple(restarted),
    )


def _resumed_checkpoint(
    attempt: Attempt, checkpoints: Sequence[Checkpoint], visible_attempts: Sequence[AttemptId]
) -> Checkpoint | None:
    """Returns the newest checkpoint of the step from which this attempt resumed, saved by an attempt that is
    still visible."""
    if attempt.resumed_from_step is None:
        return None
    candidates = [
        c for c in checkpoints if c.step == attempt.resumed_from_step and c.attempt in visible_attempts
    ]
    return max(candidates, key=lambda c: (visible_attempts.index(c.attempt), -c.rank), default=None)
