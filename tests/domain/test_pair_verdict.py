"""Which replica is to blame for failed pairs, and what is reported."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.pair_verdict import PairProbe, PairReport, find_blamed, judge_pairs
from hopyard.domain.preflight import Check

OWN_NODES = {rank: "abcdefgh"[rank] for rank in range(8)}


def reports(
    size: int, failed: set[tuple[int, int]], skews: dict[int, float] | None = None
) -> list[PairReport]:
    """Returns what replicas find when these pairs fail, in both directions. skews: of clocks, by rank."""
    clocks = {rank: (skews or {}).get(rank, 0.0) for rank in range(size)}
    return [
        PairReport(
            rank,
            {
                peer: PairProbe("connection refused")
                if (min(rank, peer), max(rank, peer)) in failed
                else PairProbe("", clocks[peer] - clocks[rank], 1e9)
                for peer in range(size)
                if peer != rank
            },
        )
        for rank in range(size)
    ]


@given(st.integers(2, 8), st.data())
def test_good_pairs_pass(size: int, data: st.DataObject) -> None:
    nodes = {rank: data.draw(st.sampled_from("ab")) for rank in range(size)}
    assert judge_pairs(reports(size, set()), nodes).failure is None


@given(st.integers(3, 8), st.data())
def test_replica_that_no_other_node_reaches_is_to_blame(size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    failed = {pair for pair in combinations(range(size), 2) if rank in pair}
    verdict = judge_pairs(reports(size, failed), OWN_NODES)
    assert verdict.blamed == {rank}
    failures = {each: verdict.failure_for(each) for each in range(size)}
    assert all(failure is not None and failure.check is Check.PAIRS for failure in failures.values())
    assert [each for each, failure in failures.items() if failure and failure.blames_node] == [rank]
    assert failures[0] is not None and f"replica {rank} on node {OWN_NODES[rank]}" in failures[0].found
    alone = [report for report in reports(size, failed) if report.rank == rank]
    assert judge_pairs(alone, OWN_NODES).blamed == {rank}, "it blames itself by its own report"


@given(st.integers(2, 8), st.data())
def test_replicas_that_did_not_start_blame_none(size: int, data: st.DataObject) -> None:
    """Whichever reports arrived, also if only one replica started."""
    started = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    absent = set(range(size)) - started
    arrived = data.draw(st.sets(st.sampled_from(sorted(started)), min_size=1))
    found = [
        PairReport(
            report.rank,
            {
                peer: PairProbe("connection refused", is_absent=True) if peer in absent else probe
                for peer, probe in report.probes.items()
            },
        )
        for report in reports(size, set())
        if report.rank in arrived
    ]
    verdict = judge_pairs(found, OWN_NODES)
    assert verdict.failure is not None
    assert "did not start: connection refused" in verdict.failure.found
    assert not verdict.blamed


def test_failed_connections_are_judged_without_replicas_that_did_not_start() -> None:
    found = reports(5, {(0, 1), (1, 2), (1, 3)})
    absent = [
        PairReport(report.rank, {**report.probes, 4: PairProbe("connection refused", is_absent=True)})
        for report in found[:4]
    ]
    assert judge_pairs(absent, OWN_NODES).blamed == {1}
    refused = [
        PairReport(1, {**found[1].probes, 0: PairProbe("connection refused", is_absent=True)}),
        *found[2:],
    ]
    assert judge_pairs(refused, OWN_NODES).blamed == {1}, "replica 0 started: others reach it"


@given(st.integers(2, 8), st.data())
def test_one_failed_pair_blames_none(size: int, data: st.DataObject) -> None:
    pair = data.draw(st.sampled_from(list(combinations(range(size), 2))))
    verdict = judge_pairs(reports(size, {pair}), OWN_NODES)
    assert verdict.failure is not None
    assert not verdict.blamed


@given(st.integers(2, 8), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))), st.data())
def test_fewer_than_half_are_to_blame_and_explain_all(
    size: int, drawn: set[tuple[int, int]], data: st.DataObject
) -> None:
    nodes = {rank: data.draw(st.sampled_from("abcd")) for rank in range(size)}
    checked = set(combinations(range(size), 2))
    failed = drawn & checked
    blamed = find_blamed(failed, checked, nodes)
    blamed_nodes = {nodes[rank] for rank in blamed}
    assert (
        all(nodes[one] in blamed_nodes or nodes[other] in blamed_nodes for one, other in failed) or not blamed
    )
    assert not blamed or failed
    assert len(set(nodes.values())) < 3 or len(blamed_nodes) < len(set(nodes.values()))


@pytest.mark.parametrize(
    ("failed", "nodes", "blamed"),
    [
        # the network between two nodes: either may be the cause
        ({(0, 2), (0, 3), (1, 2), (1, 3)}, "aabb", set()),
        ({(0, 2), (1, 2)}, "aab", set()),
        # a replica that also one on its own node cannot reach
        ({(0, 2), (1, 2), (2, 3)}, "aabb", {2}),
        # a node with two replicas that two other nodes cannot reach
        ({(0, 2), (0, 3), (1, 2), (1, 3)}, "abcc", {2, 3}),
        ({(0, 1)}, "aa", set()),
    ],
)
def test_blame_of_nodes(failed: set[tuple[int, int]], nodes: str, blamed: set[int]) -> None:
    verdict = judge_pairs(reports(len(nodes), failed), dict(enumerate(nodes)))
    assert verdict.blamed == blamed


def test_clock_far_apart_fails_and_a_small_skew_is_reported() -> None:
    verdict = judge_pairs(reports(4, set(), {1: 90.0}), OWN_NODES)
    assert verdict.failure is not None
    assert verdict.failure.check is Check.SKEW
    assert "differ by 90.0 s" in verdict.failure.found
    assert "node b" in verdict.failure.hint
    assert verdict.blamed == {1}
    small = judge_pairs(reports(2, set(), {1: 2.5}), OWN_NODES)
    assert small.failure is None
    assert small.warnings == ("the clocks of replica 0 on node a and replica 1 on node b differ by 2.5 s",)


def test_slow_pair_is_reported() -> None:
    found = reports(3, set())
    slow = [
        PairReport(
            report.rank,
            {
                peer: PairProbe("", 0.0, 10e6 if {report.rank, peer} == {0, 2} else 1e9)
                for peer in report.probes
            },
        )
        for report in found
    ]
    assert judge_pairs(found, OWN_NODES).warnings == ()
    (warning,) = judge_pairs(slow, OWN_NODES).warnings
    assert "replica 0 on node a and replica 2 on node c is slow: 9.5 MiB/s" in warning
