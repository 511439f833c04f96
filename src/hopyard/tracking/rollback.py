"""What of a run's streams users see: parts after the checkpoint that a later attempt started from are left
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, attempt_id
from hopyard.domain.run import Attempt, Run

JOURNAL_STREAM = "journal"


@dataclass(frozen=True, slots=True)
class VisibleStreams:
    """attempts: those of which anything may be seen, in order. `cuts[(attempt, rank, stream)]` is where one
    ends for users. all_attempts: all attempts: a journal is what happened, and is seen whole. resume_points:
    of attempts that end for users at a checkpoint, which rank saved it at which step."""

    attempts: tuple[AttemptId, ...]
    visible_lengths: Mapping[tuple[AttemptId, int, str], int]
    all_attempts: tuple[AttemptId, ...] = ()
    resume_points: Mapping[AttemptId, tuple[int, int]] = field(default_factory=dict)

    def attempts_of(self, stream: str) -> tuple[AttemptId, ...]:
        """The attempts of which this stream is seen."""
        return self.all_attempts if stream == JOURNAL_STREAM else self.attempts

    def visible_length_of(self, attempt: AttemptId, rank: int, stream: str) -> int | None:
        """How many bytes of this stream are seen; None for all there are."""
        return None if stream == JOURNAL_STREAM else self.visible_lengths.get((attempt, rank, stream))


def visible_streams(
    run: Run, attempts: Sequence[Attempt], checkpoints: Sequence[Checkpoint]
) -> VisibleStreams:
    """The view after all attempts so far.

    An attempt that started from a checkpoint of this run hides what the saving attempt said after it and
    whatever came between; one that started from nothing (or from another run's checkpoint) hides all before
    it. An offline run has had one attempt, which exists before it is recorded.
    """
    if run.offline and not attempts:
        return VisibleStreams((attempt_id(run.id, 1),), {}, (attempt_id(run.id, 1),))
    seen: list[AttemptId] = []
    every = tuple(attempt.id for attempt in sorted(attempts, key=lambda a: a.number))
    cuts: dict[tuple[AttemptId, int, str], int] = {}
    turned: dict[AttemptId, tuple[int, int]] = {}
    for attempt in sorted(attempts, key=lambda a: a.number):
        source = _resumed_checkpoint(attempt, checkpoints, seen)
        if source is None:
            seen = []
        else:
            del seen[seen.index(source.attempt) + 1 :]
            turned[source.attempt] = source.rank, source.step
            for checkpoint in checkpoints:
                if checkpoint.attempt == source.attempt and checkpoint.step == source.step:
                    for stream, offset in checkpoint.offsets.items():
                        key = (checkpoint.attempt, checkpoint.rank, stream)
                        cuts[key] = min(offset, cuts.get(key, offset))
        seen.append(attempt.id)
    return VisibleStreams(
        tuple(seen), cuts, every, {attempt: turn for attempt, turn in turned.items() if attempt in seen}
    )


def _resumed_checkpoint(
    attempt: Attempt, checkpoints: Sequence[Checkpoint], visible_attempts: Sequence[AttemptId]
) -> Checkpoint | None:
    """The newest checkpoint of the step that this attempt started from, saved by an attempt whose words still
    count."""
    if attempt.resumed_from_step is None:
        return None
    fitting = [
        c for c in checkpoints if c.step == attempt.resumed_from_step and c.attempt in visible_attempts
    ]
    return max(fitting, key=lambda c: (visible_attempts.index(c.attempt), -c.rank), default=None)
