"""From which checkpoint of a run a fork may start."""

from __future__ import annotations

from datetime import UTC, datetime

from hopyard.domain.checkpoint import Checkpoint, fork_candidates
from hopyard.domain.ids import AttemptId, Digest, RunId


def saved(step: int, minute: int, *, path: str = "") -> Checkpoint:
    at = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
    return Checkpoint(RunId("r"), AttemptId("r.1"), 0, step, Digest(f"{step:064x}"), 1, at, path=path)


def test_checkpoints_of_hopyard_count_more_in_the_order_of_saving() -> None:
    own = saved(5, 9, path="work/ckpt.pt")
    first, again = saved(5, 8), saved(5, 2)  # the clock was set back between them
    other, own_only = saved(6, 3), saved(7, 4, path="work/other.pt")
    every = [first, again, own, other, own_only]
    assert fork_candidates(every, 5) == [first, again]
    assert fork_candidates(every, 7) == [own_only], "there is no other one of this step"
    assert fork_candidates(every, None) == [first, again, other]
    assert fork_candidates(every, 8) == []
    assert fork_candidates([own, own_only], None) == [own, own_only]
