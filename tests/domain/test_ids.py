"""Identifiers, directions of metrics, phases and error codes."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hopyard.errors as errors
from hopyard.domain.ids import (
    RUN_ID_PATTERN,
    RunId,
    RunName,
    attempt_id,
    check_digest,
    check_name,
    check_run_id,
    is_digest,
    slug,
    split_attempt,
)
from hopyard.domain.metric_direction import higher_is_better, sort_key
from hopyard.domain.run import TRANSITIONS, RunPhase, RunSpec, checked_transition
from hopyard.interfaces.run_store import NewRun

legal = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,20}[A-Za-z0-9_])?", fullmatch=True)


@given(st.text())
@example("..")
@example("a..b")
@example("名前")
def test_slug_is_always_a_valid_name(text: str) -> None:
    name = slug(text)
    assert check_name(name, subject="project") == name
    assert slug(name) == name


@given(st.text() | st.from_regex(r"[A-Za-z0-9._/-]*", fullmatch=True))
@example("../etc")
@example("a\n")
@example(".hidden")
def test_valid_name_is_a_single_folder_name(text: str) -> None:
    try:
        check_name(text, subject="dataset")
    except errors.SpecError as bad:
        assert bad.hints
        return
    assert "/" not in text
    assert ".." not in text
    assert text.isascii()
    assert text.isprintable()
    assert 1 <= len(text) <= 128


@pytest.mark.parametrize(
    "invalid",
    [
        "abcdef\n",
        "-leading",
        "trailing-",
        "short",
        "a" * 65,
        "abc.def",
        "abc/def",
        "abcdé1",
        "abcdef\x00",
        "",
    ],
)
def test_run_id_that_is_no_folder_name_is_refused(invalid: str) -> None:
    with pytest.raises(errors.SpecError, match="is not a run id"):
        check_run_id(invalid)
    with pytest.raises(errors.SpecError):
        NewRun(RunId(invalid), "alice", RunSpec("mnist", ()))


@given(st.from_regex(RUN_ID_PATTERN, fullmatch=True))
def test_every_run_id_is_a_valid_name(text: str) -> None:
    assert check_run_id(text) == check_name(text, subject="run")


@given(legal, legal, st.integers(1, 10**17))
def test_run_name_round_trips(user: str, project: str, number: int) -> None:
    name = RunName(user, project, number)
    assert RunName.parse(str(name)) == name


@pytest.mark.parametrize(
    "invalid",
    [
        "",
        "a",
        "a/b",
        "a/b/",
        "a/b/c",
        "a/b/1/2",
        "../b/1",
        "a/b/-1",
        "a/b/0",
        "a/b/01",
        "a/b/٣",
        "a/b/²",
        "a/b/" + "9" * 5000,
        "a/b/1\n",
    ],
)
def test_invalid_run_name_is_refused(invalid: str) -> None:
    with pytest.raises(errors.SpecError):
        RunName.parse(invalid)


@given(legal, st.integers(1, 10**17))
def test_attempt_id_round_trips(run: str, number: int) -> None:
    assert split_attempt(attempt_id(RunId(run), number)) == (run, number)


@pytest.mark.parametrize("invalid", ["", "run", "run.", ".1", "run.0", "run.x", "run.٣", "run." + "9" * 5000])
def test_invalid_attempt_id_is_refused(invalid: str) -> None:
    with pytest.raises(errors.SpecError):
        split_attempt(invalid)  # type: ignore[arg-type]


@given(st.text())
@example("A" * 64)
@example("٣" * 64)
@example("0" * 64 + "\n")
def test_digest_is_64_lower_case_hex_digits(text: str) -> None:
    right = len(text) == 64 and set(text) <= set("0123456789abcdef")
    assert is_digest(text) == right
    if not right:
        with pytest.raises(errors.SpecError):
            check_digest(text)


@pytest.mark.parametrize(
    "down",
    [
        "loss",
        "val_loss",
        "valLoss",
        "train/loss",
        "test.mse",
        "eval-perplexity",
        "WER",
        "loss2",
        "step_time",
        "neg_log_likelihood",
        "kl",
    ],
)
def test_lower_is_better(down: str) -> None:
    assert not higher_is_better(down)


@pytest.mark.parametrize(
    "up",
    [
        "acc",
        "val_acc",
        "f1",
        "auc",
        "bleu",
        "reward",
        "lifetime",
        "glossary",
        "neg_mean_squared_error",
        "val/neg_log_loss",
    ],
)
def test_higher_is_better(up: str) -> None:
    assert higher_is_better(up)


@given(st.lists(st.floats(), max_size=20), st.booleans())
def test_ranking_is_best_first_and_nan_last(values: list[float], higher: bool) -> None:
    ranked = sorted(values, key=lambda value: sort_key(value, higher=higher))
    numbers = [v for v in ranked if not math.isnan(v)]
    assert all(math.isnan(v) for v in ranked[len(numbers) :])
    assert numbers == sorted(numbers, reverse=higher)


def test_every_phase_can_reach_a_final_phase() -> None:
    for phase in RunPhase:
        assert bool(TRANSITIONS[phase]) != phase.is_final
        assert phase.is_final or any(after.is_final for after in TRANSITIONS[phase])


@pytest.mark.parametrize("before", RunPhase)
@pytest.mark.parametrize("after", RunPhase)
def test_transitions_follow_the_table(before: RunPhase, after: RunPhase) -> None:
    if after is before or after in TRANSITIONS[before]:
        assert checked_transition(before, after) is after
    else:
        with pytest.raises(errors.Conflict, match=f"a run in phase {before} cannot become {after}"):
            checked_transition(before, after)


def test_every_error_class_has_its_own_code() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.HopyardError)
    ]
    assert len({kind.code for kind in kinds}) == len(kinds)
    for kind in kinds:
        created = (
            kind("no", hints=("do",), digests=())
            if kind is errors.MissingBlobs
            else kind("no", hints=("do",))
        )
        assert (str(created), created.message, created.hints) == ("no", "no", ("do",))
