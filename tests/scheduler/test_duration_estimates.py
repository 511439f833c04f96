"""How long runs are expected to take."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.duration_keys import history_keys
from hopyard.scheduler.duration_estimates import (
    MAX_DURATION_S,
    estimate_duration,
    estimate_remaining,
    estimate_total,
    history_for,
)
from tests.scheduler.timeline_clusters import limited_gang

samples = st.lists(st.floats(0.1, 1e6), max_size=40).map(tuple)
limits = st.none() | st.floats(1.0, 1e6)
elapsed = st.floats(0.0, 1e7)


def gang(limit_s: float | None = None, script: str = "train.py"):  # type: ignore[no-untyped-def]
    return replace(limited_gang("g", limit_s=limit_s), script=script)


@given(samples, samples, limits, elapsed)
def test_estimate_is_ordered_and_within_the_time_limit(
    mine: tuple[float, ...], all_: tuple[float, ...], limit_s: float | None, gone_s: float
) -> None:
    durations = {"script:ada/train.py": mine, "all": all_}
    for result in (
        estimate_duration(gang(limit_s), durations),
        estimate_remaining(gang(limit_s), durations, gone_s),
    ):
        assert 0 <= result.low_s <= result.mid_s <= result.high_s <= MAX_DURATION_S
        assert result.is_limit == (limit_s is not None)
    if limit_s is not None:
        assert estimate_duration(gang(limit_s), durations).high_s == limit_s
        assert estimate_remaining(gang(limit_s), durations, gone_s).high_s == max(limit_s - gone_s, 0)


@given(samples, elapsed)
def test_running_run_is_expected_to_take_longer_than_it_did(
    history: tuple[float, ...], gone_s: float
) -> None:
    total, _ = estimate_total(gang(), {"all": history}, gone_s)
    assert total.mid_s > gone_s or total.mid_s == MAX_DURATION_S


@given(samples, elapsed, st.floats(0.0, 1.0), st.just(0.0) | elapsed)
def test_estimate_is_valid_until_its_expiry(
    history: tuple[float, ...], gone_s: float, part: float, served_s: float
) -> None:
    served_gang = replace(gang(), served_s=served_s)
    total, until_s = estimate_total(served_gang, {"all": history}, gone_s)
    assert until_s > gone_s
    later_s = gone_s + part * (until_s - gone_s)
    if later_s < until_s:
        assert estimate_total(served_gang, {"all": history}, later_s)[0] == total


def test_remaining_time_grows_with_the_overrun() -> None:
    remaining_s = [
        estimate_remaining(gang(), {"all": (100.0,) * 20}, gone_s).mid_s
        for gone_s in (50, 150, 1_000, 10_000)
    ]
    assert remaining_s[0] == 50 and remaining_s[1] < remaining_s[2] < remaining_s[3]


def test_most_specific_history_counts_alone_when_long_enough() -> None:
    keys = history_keys(gang())
    durations = {keys[0]: (100.0,) * 8, keys[-1]: (9_000.0,) * 200}
    assert (
        estimate_duration(gang(), durations).mid_s == 100
        and estimate_duration(gang(), durations).high_s < 150
    )
    assert estimate_duration(gang(script="other.py"), durations).mid_s == 9_000


def test_runs_of_the_same_script_have_more_weight() -> None:
    keys = history_keys(gang())
    history = history_for(gang(), {keys[0]: (100.0,) * 4, keys[-1]: (9_000.0,) * 200})
    mine = history.weights[history.seconds.index(9_000.0) - 1]
    assert mine == 4 and round(history.weights[-1]) == 8


def test_few_runs_under_many_keys_count_once() -> None:
    one, seconds = gang(), (100.0, 110.0)
    history = history_for(one, dict.fromkeys(history_keys(one), seconds))
    assert history.runs == 2
    expected = estimate_duration(one, dict.fromkeys(history_keys(one), seconds))
    assert expected.low_s <= 100 and expected.high_s >= 86400
    assert history_for(one, dict.fromkeys(history_keys(one), seconds * 4)).runs == 8
    assert estimate_duration(one, dict.fromkeys(history_keys(one), seconds * 4)).high_s < 300


def test_earlier_attempts_count_for_the_estimate() -> None:
    durations = {"all": (5.0,) * 20}
    fresh, back = (
        estimate_duration(gang(), durations),
        estimate_duration(replace(gang(), served_s=40.0), durations),
    )
    assert fresh.high_s < 10
    assert back.mid_s >= 40 and back.high_s >= 300
    young = estimate_duration(replace(gang(), served_s=2.0), durations)
    assert young.high_s == fresh.high_s  # it may have started again from the beginning


def test_no_history_gives_a_wide_estimate_and_a_limit_is_used_up() -> None:
    unknown = estimate_duration(gang(), {})
    assert unknown.high_s >= 100 * unknown.mid_s >= 100 * unknown.low_s and not unknown.is_limit
    limited = estimate_duration(gang(600.0), {})
    assert (limited.mid_s, limited.high_s, limited.is_limit) == (600.0, 600.0, True)


def test_eight_of_ten_runs_end_within_the_estimate() -> None:
    """Runs as they are: each user's times spread over an order of magnitude, and change from week to week."""
    random, inside, count = Random(7), 0, 0
    durations: dict[str, tuple[float, ...]] = {}
    centres = {user: random.uniform(4, 10) for user in ("ada", "bob", "cy", "dan")}
    for i in range(3_000):
        user = random.choice(sorted(centres))
        if i % 300 == 0:
            centres[user] = random.uniform(4, 10)
        new_gang = replace(gang(), user=user)
        took_s = 2.718281828 ** random.gauss(centres[user], 1.0)
        if i >= 200:
            result = estimate_duration(new_gang, durations)
            inside += result.low_s <= took_s <= result.high_s
            count += 1
        for key in history_keys(new_gang):
            durations[key] = (*durations.get(key, ()), took_s)[-256:]
    assert 0.72 <= inside / count <= 0.95


@given(samples, samples, st.lists(elapsed, min_size=1, max_size=20))
def test_vectorised_estimates_equal_single_estimates(
    mine: tuple[float, ...], all_: tuple[float, ...], gone_s: list[float]
) -> None:
    history = history_for(gang(), {"script:ada/train.py": mine, "all": all_})
    for each, estimate in zip(gone_s, history.bands_after(np.array(gone_s)).T.tolist(), strict=True):
        if estimate[0] == estimate[0]:
            (_, mid_s, high_s), until_s = history.band_after(each)
            assert estimate == [mid_s, high_s, until_s]
        else:
            assert not history.seconds or each >= history.seconds[0]
