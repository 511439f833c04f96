"""Values are in their domains, evenly distributed, and depend only on seed, name and trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import log10

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hopyard.domain.run import ParamValue
from hopyard.domain.space import (
    Choice,
    Condition,
    Constant,
    Domain,
    Integer,
    Parameter,
    Space,
    Uniform,
    check_space,
)
from hopyard.errors import SpecError
from hopyard.searchers.grid import MAX_COMBINATIONS, combinations, grid_values
from hopyard.searchers.sampling import sample, uniform, value_at
from hopyard.testing.study_simulator import check_params
from tests.searchers.spaces import domains, spaces


@given(space=spaces(), seed=st.integers(), trial=st.integers(0, 10**6))
def test_every_sample_is_in_space(space: Space, seed: int, trial: int) -> None:
    check_space(space)
    check_params(space, sample(space, seed, trial))


@given(
    space=spaces(), extra=domains(), where=st.integers(0, 5), seed=st.integers(0, 9), trial=st.integers(0, 9)
)
def test_added_parameter_changes_no_other_parameter(
    space: Space, extra: Domain, where: int, seed: int, trial: int
) -> None:
    more = list(space.parameters)
    more.insert(min(where, len(more)), Parameter("another", extra))
    drawn = sample(Space(tuple(more)), seed, trial)
    del drawn["another"]
    assert drawn == sample(space, seed, trial)


@given(domain=domains())
def test_both_bounds_can_be_sampled(domain: Domain) -> None:
    first, last = value_at(domain, 0.0), value_at(domain, 1 - 2**-53)
    if isinstance(domain, Choice):
        assert (first, last) == (domain.values[0], domain.values[-1])
    elif not isinstance(domain, Constant):
        assert first == pytest.approx(domain.low)
        reached = (
            domain.high - (domain.high - domain.low) % domain.step
            if isinstance(domain, Integer)
            else domain.high
        )
        assert last == pytest.approx(reached)


def value_counts(domain: Domain, count: int = 4000) -> Counter[object]:
    return Counter(value_at(domain, uniform(1, trial, "p")) for trial in range(count))


@pytest.mark.parametrize(
    "domain",
    [
        Choice(("a", "b", "c", "d")),
        Integer(1, 4),
        Integer(0, 9, step=3),
        Uniform(0.0, 0.3, step=0.1),
        Choice((True, 1, None, "x")),
    ],
)
def test_finite_values_are_equally_likely(domain: Domain) -> None:
    counted = Counter(map(repr, [value_at(domain, uniform(1, trial, "p")) for trial in range(4000)]))
    assert len(counted) == 4
    assert all(880 < count < 1120 for count in counted.values()), counted  # four standard deviations


def test_quantised_values_are_exact_decimals() -> None:
    assert set(value_counts(Uniform(0.0, 0.3, step=0.1))) == {0.0, 0.1, 0.2, 0.3}


@pytest.mark.parametrize(
    "domain", [Uniform(0, 1), Uniform(1, 8, log=True), Uniform(0, 4, step=2), Uniform(1, 9, log=True, step=4)]
)
def test_float_domain_with_integer_bounds_gives_floats(domain: Uniform) -> None:
    assert all(type(value_at(domain, share)) is float for share in (0.0, 0.3, 0.99999999999999))
    space = Space((Parameter("p", domain),))
    assert all(type(params["p"]) is float for params in combinations(space, 3))


def test_log_ranges_are_uniform_in_logarithm() -> None:
    decades = Counter(
        int(log10(float(str(value))) + 5) for value in value_counts(Uniform(1e-5, 1e-1, log=True)).elements()
    )
    assert set(decades) == {0, 1, 2, 3}
    assert all(880 < count < 1120 for count in decades.values()), decades
    ones = value_counts(Integer(1, 100, log=True))
    assert min(ones) == 1
    assert max(ones) == 100
    assert ones[1] == max(ones.values())


def test_streams_are_not_correlated() -> None:
    pairs = [(uniform(0, trial, "lr"), uniform(0, trial, "wd")) for trial in range(2000)]
    mean = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / len(pairs) * 12
    assert abs(mean) < 0.1
    assert (
        abs(sum((uniform(0, t, "lr") - 0.5) * (uniform(1, t, "lr") - 0.5) for t in range(2000)) / 2000 * 12)
        < 0.1
    )


def test_random_streams_are_stable_across_versions() -> None:
    """A study from before an upgrade continues after it: these values never change."""
    assert [
        round(uniform(seed, trial, name), 12)
        for seed, trial, name in ((0, 0, "lr"), (7, 3, "batch"), (-1, 12, "ü"))
    ] == FIRST


FIRST = [0.992352120956, 0.025492373629, 0.216756015037]


# -- grids ---------------------------------------------------------------------------------------------------


TOO_LARGE = Space(
    (
        Parameter("p0", Integer(0, 390, step=1)),
        Parameter("p1", Choice(("a", "b")), ()),
        Parameter("p2", Integer(0, 255, step=1), (Condition("p1", ("a",)),)),
    )
)


def count_of(space: Space, chosen: Mapping[str, ParamValue], depth: int = 0) -> int:
    """Returns the number of combinations, without enumerating them."""
    if depth == len(space.parameters):
        return 1
    parameter = space.parameters[depth]
    if not space.is_active(parameter, chosen):
        return count_of(space, chosen, depth + 1)
    values = grid_values(parameter, 3)
    if isinstance(parameter.domain, Choice):
        return sum(count_of(space, {**chosen, parameter.name: value}, depth + 1) for value in values)
    return len(values) * count_of(space, chosen, depth + 1)


@given(space=spaces(most=4))
@example(space=TOO_LARGE)
def test_grid_has_every_combination_once_or_is_too_large(space: Space) -> None:
    size = count_of(space, {})
    if size > MAX_COMBINATIONS:
        with pytest.raises(SpecError, match=f"more than {MAX_COMBINATIONS:,}"):
            combinations(space, 3)
        return
    result = combinations(space, 3)
    assert len(result) == size
    for params in result:
        check_params(space, params)
    texts = [repr(params) for params in result]
    assert len(set(texts)) == len(texts)


def test_grid_matches_manual_example() -> None:
    space = Space(
        (
            Parameter("opt", Choice(("sgd", "adam", "sgd"))),
            Parameter("momentum", Uniform(0.0, 0.9, points=2), (Condition("opt", ("sgd",)),)),
            Parameter("lr", Uniform(1e-3, 1e-1, log=True, points=3)),
        )
    )
    assert combinations(space) == [
        *(
            {"opt": "sgd", "momentum": momentum, "lr": lr}
            for momentum in (0.0, 0.9)
            for lr in (0.001, 0.01, 0.1)
        ),
        *({"opt": "adam", "lr": lr} for lr in (0.001, 0.01, 0.1)),
    ]


def test_grid_points_of_domains() -> None:
    def of(domain: Domain, points: int | None = None) -> list[object]:
        return [params["p"] for params in combinations(Space((Parameter("p", domain),)), points)]

    assert of(Integer(0, 10, step=5)) == [0, 5, 10]
    assert of(Integer(1, 3, points=10)) == [1, 2, 3]
    assert of(Integer(1, 100, log=True), 3) == [1, 10, 100]
    assert of(Uniform(0.0, 0.3, step=0.1)) == [0.0, 0.1, 0.2, 0.3]
    assert of(Uniform(0.0, 1.0), 5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert of(Uniform(0.0, 1.0), 1) == [0.5]
    assert of(Choice((1, True, 1.0, 1))) == [1, True, 1.0]
    assert list(map(type, of(Choice((1, True, 1.0, 1))))) == [int, bool, float]
    assert of(Constant("x"), 9) == ["x"]


def test_a_range_without_points_has_no_grid() -> None:
    with pytest.raises(SpecError, match=r"space\.lr: a grid needs a number of points"):
        combinations(Space((Parameter("lr", Uniform(0.0, 1.0)),)))


def test_oversized_grid_is_refused_and_largest_range_named() -> None:
    space = Space(
        (
            Parameter("small", Integer(1, 3, step=1)),
            *(Parameter(f"p{number}", Integer(1, 10**9)) for number in range(8)),
        )
    )
    with pytest.raises(SpecError, match=f"more than {MAX_COMBINATIONS:,}") as error:
        combinations(space)
    assert error.value.hints[0].startswith("give `p0` fewer points")


# -- spaces that nothing can be drawn from -------------------------------------------------------------------

LR = Parameter("lr", Uniform(0.0, 1.0))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ((), "space: the space is empty"),
        ((LR, LR), r"space\.lr: duplicate name"),
        ((Parameter("a", Choice(())),), r"space\.a: there is nothing to choose from"),
        ((Parameter("a", Uniform(1.0, 0.0)),), r"space\.a: low `1` is larger than high `0`"),
        ((Parameter("a", Uniform(0.0, float("inf"))),), r"space\.a: `inf` is not a finite"),
        ((Parameter("a", Uniform(0.0, 1.0, log=True)),), r"space\.a: low 0 has no logarithm"),
        ((Parameter("a", Integer(0, 8, step=0)),), r"space\.a: step: `0` is not above 0"),
        ((Parameter("a", Integer(0, 8, points=0)),), r"space\.a: points: `0` is not a whole"),
        ((LR, Parameter("a", Constant(1), (Condition("rl", (1,)),))), r"space\.a: depends on `rl`"),
        ((Parameter("a", Constant(1), (Condition("a", (1,)),)),), r"space\.a: depends on itself"),
        (
            (Parameter("a", Choice((1, 2))), Parameter("b", Constant(1), (Condition("a", (3,)),))),
            r"space\.b: exists only if `a` is 3",
        ),
        ((LR, Parameter("b", Constant(1), (Condition("lr", (2.0,)),))), r"space\.b: exists only"),
    ],
)
def test_a_space_without_points_is_named(parameters: tuple[Parameter, ...], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        check_space(Space(parameters))


@pytest.mark.parametrize(
    "domain",
    [
        Choice((1, 1.0, True)),
        Uniform(0, 1, step=2),
        Integer(1, 4, step=10),
        Uniform(1e20, 2e20, step=1),
        Constant(float("inf")),
    ],
)
def test_space_of_an_earlier_version_is_accepted_only_if_stored(domain: Domain) -> None:
    space = Space((Parameter("x", domain),))
    check_space(space, is_stored=True)
    with pytest.raises(SpecError):
        check_space(space)


def test_parameter_with_unsatisfiable_condition_is_omitted() -> None:
    space = Space(
        (
            Parameter("opt", Constant("adam")),
            replace(LR, name="momentum", conditions=(Condition("opt", ("sgd",)),)),
        )
    )
    check_space(space)
    assert sample(space, 0, 0) == {"opt": "adam"}


def test_unknown_parameter_hint_suggests_closest_name() -> None:
    with pytest.raises(SpecError) as error:
        check_space(Space((LR, replace(LR, name="b", conditions=(Condition("lrr", (0.5,)),)))))
    assert error.value.hints[0] == "did you mean `lr`?"
