"""The spec summary in listings is small for any spec."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.gang import NodeSelector
from hopyard.domain.ids import PoolName
from hopyard.domain.resources import Resources
from hopyard.domain.run import Environment, RoleSpec, RunSpec
from hopyard.domain.spec_summary import summarise_spec

LONG = st.integers(0, 20_000).map("x".__mul__)
VALUES = st.integers(0, 1000).flatmap(
    lambda count: LONG.map(lambda text: {f"key {i}": text for i in range(count)})
)
SPECS = st.builds(
    RunSpec,
    project=st.just("p"),
    roles=st.tuples(st.integers(1, 64), LONG, st.integers(1, 200)).map(
        lambda given: tuple(
            RoleSpec(
                (given[1],) * given[2],
                f"role{i}",
                resources=Resources(gpus=1, extras=tuple((f"e{j}", 1) for j in range(64))),
                where=NodeSelector((PoolName("p"),) * 64, (("k" * 256, "v" * 1024),) * 64),
            )
            for i in range(given[0])
        )
    ),
    params=VALUES,
    tags=VALUES,
    env=VALUES,
    environment=VALUES.map(lambda packages: Environment(packages=packages, links=packages)),
    study=st.none()
    | VALUES.map(
        lambda space: {
            "name": "s",
            "metric": "loss",
            "space": space,
            "searcher": {"name": "tpe", "options": space},
            "beginning": None,
        }
    ),
)


@given(SPECS)
def test_spec_summary_is_bounded_and_has_the_listed_fields(spec: RunSpec) -> None:
    brief = summarise_spec(spec)
    assert len(msgspec.json.encode(brief)) < 64 * 1024
    assert len(brief.roles) == len(spec.roles)
    assert [role.resources.gpus for role in brief.roles] == [role.resources.gpus for role in spec.roles]
    assert summarise_spec(brief) == brief
    if spec.study is not None:
        assert brief.study == {"name": "s", "metric": "loss", "searcher": {"name": "tpe"}, "beginning": None}


def test_summary_of_an_ordinary_spec_omits_only_the_environment() -> None:
    spec = RunSpec(
        "p",
        (RoleSpec(("python", "main.py", "--lr", "0.1")),),
        params={"lr": 0.1},
        tags={"team": "a"},
        label="x",
    )
    assert summarise_spec(spec) == spec
