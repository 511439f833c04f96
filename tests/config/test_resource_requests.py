"""Notations of resource requests: round trips, and refusals with the value and the allowed values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config import resource_requests
from hopyard.config.resource_requests import GpuRequest, TopologyRequest
from hopyard.config.run_request import gpu_fields, parse_placement, parse_scheduling, parse_sizes
from hopyard.domain.gang import Closeness
from hopyard.errors import SpecError

models = st.lists(
    st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,8}( [A-Za-z0-9]{1,9})?", fullmatch=True), max_size=3, unique=True
).map(tuple)
counts = st.one_of(
    st.builds(lambda n, m: GpuRequest(n, 0, m), st.integers(1, 999), models),
    st.builds(lambda n, m: GpuRequest(0, n, m), st.integers(1, 999), models),
)


@given(counts)
def test_gpus_round_trip(gpus: GpuRequest) -> None:
    assert resource_requests.parse_gpus(resource_requests.format_gpus(gpus)) == gpus


@given(
    st.sampled_from([rule.value for rule in Closeness]),
    st.from_regex(r"[a-z][a-z./-]{0,20}", fullmatch=True),
    st.integers(1, 4096),
)
def test_topologies_round_trip(rule: str, level: str, size: int) -> None:
    ask = TopologyRequest(rule, level, size)
    assert resource_requests.parse_topology(resource_requests.format_topology(ask)) == ask


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_replicas_round_trip(one: int, two: int) -> None:
    fewest, most = min(one, two), max(one, two)
    result = resource_requests.parse_replicas(f"{fewest}-{most}")
    assert result == (fewest if fewest < most else 0, most)
    assert resource_requests.parse_replicas(resource_requests.format_replicas(*result)) == result


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    parse: Callable[[str], object]
    for parse in (
        resource_requests.parse_gpus,
        resource_requests.parse_topology,
        resource_requests.parse_replicas,
        resource_requests.parse_pools,
        lambda t: resource_requests.parse_extras([t]),
        lambda t: resource_requests.parse_labels([t]),
    ):
        try:
            parse(text)
        except SpecError as refused:
            assert refused.hints


def test_resource_options_are_parsed() -> None:
    assert parse_sizes({"gpus": "0.5"}) == {
        "gpus": 0,
        "gpu_milli": 500,
        "gpu_models": (),
        "gpu_memory_bytes": 0,
    }
    assert parse_sizes({"gpus": "A100|H100:2"}) == {
        "gpus": 2,
        "gpu_milli": 0,
        "gpu_models": ("A100", "H100"),
        "gpu_memory_bytes": 0,
    }
    assert parse_sizes({"gpu_memory": "20G"}) == {
        "gpus": 0,
        "gpu_milli": 0,
        "gpu_models": (),
        "gpu_memory_bytes": 20 * 2**30,
    }
    assert parse_sizes({"gpus": "A100", "gpu_memory": "1G"}) == {
        "gpus": 0,
        "gpu_milli": 0,
        "gpu_models": ("A100",),
        "gpu_memory_bytes": 2**30,
    }
    assert parse_sizes({"extras": ("tpu=4", "fpga")}) == {"extras": (("fpga", 1), ("tpu", 4))}
    assert parse_sizes({"replicas": "2-8"}) == {"min_replicas": 2, "replicas": 8}
    assert parse_sizes({"extras": (), "gpus": None}) == {}
    assert parse_placement({"pool": "a, b,a", "where": ("zone=1", "rack=a")}) == {
        "pools": ("a", "b"),
        "labels": (("rack", "a"), ("zone", "1")),
    }
    result = parse_scheduling(
        {"queue": "q", "priority": 0, "time": "1m", "preemptible": False, "topology": "same:rack/4"}
    )
    assert result == {
        "queue": "q",
        "priority": 0,
        "time_limit_s": 60.0,
        "preemptible": False,
        "topology": TopologyRequest("same", "rack", 4),
    }


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        (
            {"gpus": "1.5"},
            "--gpus: `1.5` is neither whole GPUs nor a share of one",
            "request 2, or a share below 1: 0.5",
        ),
        ({"gpus": "0.0"}, "--gpus: `0.0` is not a number of GPUs", "0.5"),
        ({"gpus": "1.0"}, "--gpus: `1.0` is not a number of GPUs", "0.5"),
        ({"gpus": "0.0005"}, "--gpus: `0.0005` is not a number of GPUs", "0.5"),
        ({"gpus": "-0.5"}, "--gpus: `-0.5` is not a number of GPUs", "0.5"),
        ({"gpus": "A100|:2"}, "--gpus: `` is not the name of a GPU model", "A100|H100:2"),
        ({"gpus": "A100:0"}, "requests no GPU of a model", "A100:8"),
        (
            {"gpus": "0.5", "gpu_memory": "20G"},
            "--gpu-memory: --gpus 0.5 already gives a share",
            "one of the two",
        ),
        (
            {"gpus": "2", "gpu_memory": "20G"},
            "--gpu-memory: it is a part of one GPU, and --gpus requests 2 whole ones",
            "leave out --gpu-memory",
        ),
        ({"gpu_memory": "0"}, "--gpu-memory: 0 is not a share of a GPU", "20G"),
        ({"gpu_memory": "20"}, "--gpu-memory: `20` has no unit", "did you mean `20G`?"),
        ({"gpu_memory": "20X"}, "--gpu-memory: `20X` is not an amount of memory", "8G"),
        *(
            ({"gpus": word}, f"--gpus: `{word}` is not a number of GPUs", "A100:8")
            for word in ("nan", "inf", "-inf", "Infinity", "NaN")
        ),
        ({"gpus": "nan:2"}, "--gpus: `nan` is not the name of a GPU model", "A100:8"),
        ({"gpus": "A100:nan"}, "--gpus: `A100:nan` is not a number of GPUs", "A100:8"),
        ({"memory": "0"}, "--memory: `0` is not an amount of memory above 0", "leave it out"),
        ({"memory": "0.0001K"}, "--memory: `0.0001K` is not an amount of memory above 0", "8G"),
        ({"cpus": "0"}, "--cpus: `0` is not a number of CPUs", "above 0"),
        ({"cpus": "9" * 23}, f"--cpus: `{'9' * 23}` is too large", "4, 0.5"),
        (
            {"cpus": "1000000.001"},
            "--cpus: `1000000.001` is too large: no machine has more than 1000000 CPUs",
            "4, 0.5",
        ),
        ({"replicas": "8-2"}, "--replicas: the minimum 8 is greater than the maximum 2", "did you mean 2-8?"),
        ({"replicas": "0-2"}, "--replicas: 0 is not from 1 to 4096", "together"),
        ({"replicas": "-2"}, "--replicas: `-2` is not a number of replicas", "2-8"),
        ({"extras": ("fpga=0",)}, "--resource: `0` is not a count of fpga", "fpga=1"),
        ({"extras": ("fpga=-1",)}, "--resource: `-1` is not a count of fpga", "fpga=1"),
        ({"extras": ("gpu=1",)}, "--resource: `gpu` has its own option", "--gpus"),
        ({"extras": ("a=1", "a=2")}, "--resource: `a` is given twice", ""),
    ],
)
def test_invalid_sizes_are_refused(options: dict[str, str], error: str, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_sizes(options)
    assert error in refused.value.message
    assert any(hint in line for line in refused.value.hints) or not hint


@pytest.mark.parametrize(
    ("parse", "options", "error", "hint"),
    [
        (parse_placement, {"pool": "a,,b"}, "--pool: `` is not a name", "letters"),
        (
            parse_placement,
            {"where": ("rack",)},
            "--where: `rack` is not of the form LABEL=VALUE",
            "--where rack=a",
        ),
        (
            parse_placement,
            {"where": ("rack=a", "rack=b")},
            "--where: no node has two values of `rack`",
            "one value",
        ),
        (parse_scheduling, {"queue": "a/b"}, "--queue: `a/b` is not a name", "letters"),
        (parse_scheduling, {"priority": -1}, "--priority: -1 is not from 0 to 100", "larger"),
        (parse_scheduling, {"time": "2 weeks"}, "--time: `2 weeks` is not a time", "2h30m"),
        (
            parse_scheduling,
            {"time": "0"},
            "--time: `0` is not more than 0 seconds",
            "2h30m",
        ),
        (
            parse_scheduling,
            {"topology": "same"},
            "--topology: `same` has no level",
            "same:node, or a label of nodes: same:rack",
        ),
        (
            parse_scheduling,
            {"topology": "sme:rack"},
            "--topology: `sme` is not a placement rule",
            "did you mean `same`?",
        ),
        (
            parse_scheduling,
            {"topology": "same:rack/0"},
            "--topology: `0` is not the size of a slice",
            "same:rack/4",
        ),
        (parse_scheduling, {"topology": "same:"}, "is not the name of a label", "rack or zone"),
    ],
)
def test_invalid_constraints_are_refused(
    parse: Callable[[dict[str, object]], object], options: dict[str, object], error: str, hint: str
) -> None:
    with pytest.raises(SpecError) as refused:
        parse(options)
    assert error in refused.value.message
    assert any(hint in line for line in refused.value.hints)


def test_gpu_option_replaces_the_complete_gpu_request() -> None:
    assert gpu_fields(resource_requests.parse_gpus("1"), None) == {
        "gpus": 1,
        "gpu_milli": 0,
        "gpu_models": (),
        "gpu_memory_bytes": 0,
    }
