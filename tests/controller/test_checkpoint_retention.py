"""Which checkpoints of a run are kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from hopyard.controller.checkpoint_retention import expired_steps
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.dataset import Dataset
from hopyard.domain.ids import Digest, RunId, attempt_id
from hopyard.domain.run import Attempt

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = RunId("abcdefgh")


def make_checkpoint(step: int, *, number: int = 1, rank: int = 0, kept: bool = False) -> Checkpoint:
    return Checkpoint(ID, attempt_id(ID, number), rank, step, Digest("0" * 64), 1, NOW, kept=kept)


def attempt(number: int, resumed: int | None = None) -> Attempt:
    return Attempt(
        attempt_id(ID, number), number, "lost", ("n",), ((),), "local", NOW, resumed_from_step=resumed
    )


def test_newest_checkpoints_are_retained() -> None:
    checkpoints = [make_checkpoint(step) for step in (1, 2, 9, 3, 4)]
    assert expired_steps(checkpoints, [attempt(1)], retained_count=2) == [9, 2, 1]
    assert expired_steps(checkpoints, [attempt(1)], retained_count=0) == []
    assert expired_steps(
        [make_checkpoint(step, rank=rank) for step in (1, 2) for rank in (0, 1)],
        [attempt(1)],
        retained_count=1,
    ) == [1]


def test_checkpoint_of_an_attempt_start_is_retained() -> None:
    """The visible streams are rolled back to that checkpoint: without it, the offset would be unknown."""
    checkpoints = [
        make_checkpoint(5),
        make_checkpoint(6),
        make_checkpoint(7, number=2),
        make_checkpoint(8, number=3),
        make_checkpoint(9, number=3),
    ]
    assert expired_steps(checkpoints, [attempt(1), attempt(2, 5), attempt(3, 7)], retained_count=1) == [8, 6]


def test_pinned_checkpoint_is_retained() -> None:
    assert expired_steps(
        [make_checkpoint(1, kept=True), make_checkpoint(2), make_checkpoint(3)],
        [attempt(1)],
        retained_count=1,
    ) == [2]


def test_best_checkpoint_is_retained() -> None:
    values = {1: 0.2, 2: 0.9, 3: 0.9, 4: 0.1, 5: 0.3}
    checkpoints = [
        replace(make_checkpoint(step), metrics={"acc": value, "loss": value}, best_by="acc")
        for step, value in values.items()
    ]
    dataset = Dataset("d", NOW, 1, None, metric="loss")
    assert expired_steps(checkpoints, [], retained_count=1) == [4, 3, 1]
    assert expired_steps(checkpoints, [], retained_count=1, datasets=[dataset]) == [3, 2, 1]


@given(
    st.lists(st.builds(make_checkpoint, st.integers(0, 9), kept=st.booleans()), max_size=12),
    st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_only_unneeded_checkpoints_expire(
    checkpoints: list[Checkpoint], resumed: list[int | None], newest: int
) -> None:
    attempts = [attempt(number, step) for number, step in enumerate(resumed, 1)]
    expired = set(expired_steps(checkpoints, attempts, retained_count=newest))
    stay = {checkpoint.step for checkpoint in checkpoints} - expired
    assert not expired & (
        {checkpoint.step for checkpoint in checkpoints if checkpoint.kept}
        | {step for step in resumed if step is not None}
    )
    steps = list(dict.fromkeys(checkpoint.step for checkpoint in reversed(checkpoints)))
    assert set(steps[:newest]) <= stay
    assert stay <= {
        *steps[:newest],
        *(checkpoint.step for checkpoint in checkpoints if checkpoint.kept),
        *resumed,
    }
