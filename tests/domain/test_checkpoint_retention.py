"""The rule of `--keep`, and which checkpoints it keeps."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.checkpoint_retention import (
    RetentionRule,
    format_retention,
    parse_retention,
    read_retention,
    retention_reasons,
)
from hopyard.domain.ids import Digest, RunId, attempt_id
from hopyard.errors import SpecError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = RunId("abcdefgh")
rules = st.builds(
    RetentionRule,
    st.none() | st.integers(1, 5),
    st.integers(0, 4),
    st.none() | st.integers(1, 7),
    st.sampled_from(["", "acc", "loss", "max:loss", "min:acc"]),
)


def saved(step: int, *, kept: bool = False, best_by: str = "", **metrics: float) -> Checkpoint:
    digest = Digest("0" * 64)
    return Checkpoint(ID, attempt_id(ID, 1), 0, step, digest, 1, NOW, metrics, kept=kept, best_by=best_by)


histories = st.lists(
    st.builds(
        saved,
        st.integers(0, 30),
        kept=st.booleans(),
        acc=st.sampled_from([0.1, 0.2, 0.3, float("nan")]),
        loss=st.floats(0, 1),
    ),
    max_size=25,
)


@given(histories, rules, st.integers(0, 4))
def test_reasons_are_those_of_the_rule(history: list[Checkpoint], rule: RetentionRule, default: int) -> None:
    steps = list(dict.fromkeys(checkpoint.step for checkpoint in reversed(history)))
    reasons = retention_reasons(history, rule, default_last=default, resumed_from=[None, *steps[-1:]])
    last = default if rule.last is None else rule.last
    assert set(steps[: last or None]) <= reasons.keys() <= set(steps)
    if rule.every is not None:
        assert {step for step in steps if step % rule.every == 0} <= reasons.keys()
    assert {checkpoint.step for checkpoint in history if checkpoint.kept} <= reasons.keys()
    assert all(reasons.values()) and set(steps[-1:]) <= reasons.keys()
    best = [step for step, why in reasons.items() if f"best={rule.best}" in why]
    if rule.metric:
        name, higher = rule.metric.rpartition(":")[2], rule.metric in ("acc", "max:loss")
        values = {c.step: [] for c in history}
        for checkpoint in history:
            if checkpoint.metrics[name] == checkpoint.metrics[name]:
                values[checkpoint.step].append(checkpoint.metrics[name])
        top = {step: (max if higher else min)(found) for step, found in values.items() if found}
        assert len(best) == min(rule.best, len(top))
        others = [value for step, value in top.items() if step not in best]
        for step in best:
            assert all(top[step] >= other if higher else top[step] <= other for other in others)
    else:
        assert not best, "the run has no metric to choose by"


@given(histories, rules, st.integers(1, 4))
def test_deleting_what_is_not_kept_changes_no_reason(
    history: list[Checkpoint], rule: RetentionRule, default: int
) -> None:
    """Retention runs after each checkpoint, so it must keep what it would keep of the whole history."""
    present: list[Checkpoint] = []
    for checkpoint in history:
        present.append(checkpoint)
        reasons = retention_reasons(present, rule, default_last=default)
        present = [each for each in present if each.step in reasons]
        assert retention_reasons(present, rule, default_last=default) == reasons


def test_defaults_are_the_last_ones_the_best_one_and_the_kept_ones() -> None:
    history = [
        saved(1, best_by="acc", acc=0.9),
        saved(2, kept=True, best_by="acc", acc=0.1),
        *(saved(step, best_by="acc", acc=0.5) for step in (3, 4, 5)),
    ]
    assert retention_reasons(history, default_last=2, resumed_from=[4]) == {
        1: ("best=1",),
        2: ("kept",),
        4: ("last=2", "resumed"),
        5: ("last=2",),
    }
    assert retention_reasons(history, default_last=0)[3] == ("all",)


def test_best_is_chosen_by_the_metric_of_the_rule() -> None:
    history = [saved(step, best_by="max:acc", acc=step, loss=abs(step - 2)) for step in range(1, 7)]
    rule = parse_retention("last=1,best=2,every=5,metric=min:loss")
    assert retention_reasons(history, rule, default_last=3) == {
        1: ("best=2",),
        2: ("best=2",),
        5: ("every=5",),
        6: ("last=1",),
    }


@given(rules)
def test_text_of_a_rule_is_read_as_the_same_rule(rule: RetentionRule) -> None:
    assert parse_retention(format_retention(rule)) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`` is not KEY=VALUE"),
        ("last", "`last` is not KEY=VALUE"),
        ("last=", "`last=` is not KEY=VALUE"),
        ("last=0", "last=0 is out of range: at least 1"),
        ("every=0", "every=0 is out of range: at least 1"),
        ("best=-1", "best=-1 is not a whole number"),
        ("best=1.5", "best=1.5 is not a whole number"),
        ("last=2,last=3", "`last` is given twice"),
        ("metric=max:", "metric=max: does not name a metric"),
        ("best=2,metric=max", "metric=max does not name a metric"),
        ("lasst=3", "unknown part `lasst`"),
    ],
)
def test_bad_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_retention(text)
    assert refused.value.message == f"--keep: {message}" or refused.value.message.startswith(
        f"--keep: {message},"
    )
    assert refused.value.hints[-1] == "for example `last=3,best=2,every=10,metric=max:val_acc`"


def test_bad_values_of_a_mapping_are_refused() -> None:
    assert read_retention({"last": 2, "best": 0}, what="keep") == RetentionRule(2, 0)
    for values in ({"last": True}, {"every": 2.5}, {"metric": 3}):
        with pytest.raises(SpecError, match="keep: "):
            read_retention(values, what="keep")
