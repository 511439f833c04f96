"""Judges what the replicas of a gang found about the connections between them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from hopyard.domain.byte_text import format_bytes
from hopyard.domain.preflight import Check, CheckFailure

MAX_SKEW_S = 30.0  # between the clocks of two replicas; more fails
SKEW_WARNING_S = 1.0
# of the median bandwidth; less is reported, unless it is still fast: short measurements vary
SLOW_PAIR_SHARE, FAST_BYTES_PER_S = 0.2, 125e6
_MIN_PAIRS = 3  # of which one can be slower than the others

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PairProbe:
    """What a replica found when it connected to another one. error: why that failed, "" if it did not.
    skew_s: how much later the clock of the other one is. bytes_per_s: to the other one; 0 if unknown.
    is_absent: no program listened at the address of the other one, and it never connected either."""

    error: str = ""
    skew_s: float = 0.0
    bytes_per_s: float = 0.0
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class PairReport:
    """What one replica found. probes: by the rank of the other replica."""

    rank: int
    probes: Mapping[int, PairProbe] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """failure: None if all pairs are good. blamed: the ranks to blame for it. warnings: sentences."""

    failure: CheckFailure | None = None
    blamed: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()

    def failure_for(self, rank: int) -> CheckFailure | None:
        """Returns the failure as this replica reports it: it blames only its own node."""
        if self.failure is None:
            return None
        return CheckFailure(
            self.failure.check, self.failure.found, self.failure.hint, blames_node=rank in self.blamed
        )


def judge_pairs(reports: Sequence[PairReport], nodes: Mapping[int, str]) -> PairVerdict:
    """Returns the verdict on the pairs of a gang.

    A replica that did not start blames no node: neither its own, nor those of the replicas that did start.

    reports: of the replicas that could be reached. nodes: the node of each replica.
    """
    absent = _absent_ranks(reports)
    errors = {
        (report.rank, peer): probe.error
        for report in reports
        for peer, probe in report.probes.items()
        if probe.error and peer not in absent
    }
    if errors:
        return _failed_connections(_without(absent, reports), errors, nodes)
    if absent:
        return _not_started(absent, reports, nodes)
    skews = {(report.rank, peer): probe.skew_s for report in reports for peer, probe in report.probes.items()}
    apart = {pair for pair, skew_s in skews.items() if abs(skew_s) > MAX_SKEW_S}
    if apart:
        return _failed_clocks(reports, skews, apart, nodes)
    return PairVerdict(warnings=(*_skew_warnings(skews, nodes), *_bandwidth_warnings(reports, nodes)))


def find_blamed(
    failed: Collection[Pair], checked: Collection[Pair], nodes: Mapping[int, str]
) -> frozenset[int]:
    """Returns the ranks to blame for failed pairs; none if that is unclear.

    A replica is to blame if it failed with several others, and with more than half of all that were checked
    with it. The others are on two or more nodes, or one of them is on its own node: otherwise their node may
    be to blame as well. Such replicas must explain every failure, and must be fewer than half of all. If no
    replica is to blame in this way, the same rule is applied to nodes. A single failed pair blames none of
    the two.
    """
    blamed = _majority_failures(failed, checked)
    failed_peers = _peers_of(failed)
    if blamed:
        is_clear = all(
            nodes[rank] in (found := {nodes[peer] for peer in failed_peers[rank]}) or len(found) > 1
            for rank in blamed
        )
        return blamed if is_clear else frozenset()
    if any(nodes[one] == nodes[other] for one, other in failed):
        return frozenset()
    faulty = _majority_failures(_between_nodes(failed, nodes), _between_nodes(checked, nodes))
    return frozenset(rank for rank in _peers_of(checked) if nodes[rank] in faulty)


Member = TypeVar("Member", int, str)


def _majority_failures(
    failed: Collection[tuple[Member, Member]], checked: Collection[tuple[Member, Member]]
) -> frozenset[Member]:
    failed_peers, peers = _peers_of(failed), _peers_of(checked)
    blamed = frozenset(
        member
        for member, others in failed_peers.items()
        if len(others) >= 2 and 2 * len(others) > len(peers[member])
    )
    explains_all = all(one in blamed or other in blamed for one, other in failed)
    return blamed if explains_all and 2 * len(blamed) < len(peers) else frozenset()


def _peers_of(pairs: Collection[tuple[Member, Member]]) -> dict[Member, set[Member]]:
    peers: dict[Member, set[Member]] = {}
    for one, other in pairs:
        peers.setdefault(one, set()).add(other)
        peers.setdefault(other, set()).add(one)
    return peers


def _between_nodes(pairs: Collection[Pair], nodes: Mapping[int, str]) -> set[tuple[str, str]]:
    return {(nodes[one], nodes[other]) for one, other in pairs if nodes[one] != nodes[other]}


def _absent_ranks(reports: Sequence[PairReport]) -> frozenset[int]:
    """Returns the replicas of which no other one found a sign."""
    seen = {report.rank for report in reports}
    for report in reports:
        seen |= {peer for peer, probe in report.probes.items() if not probe.is_absent}
    return frozenset(peer for report in reports for peer in report.probes) - seen


def _without(absent: Collection[int], reports: Sequence[PairReport]) -> list[PairReport]:
    return [
        PairReport(report.rank, {peer: probe for peer, probe in report.probes.items() if peer not in absent})
        for report in reports
    ]


def _checked(reports: Sequence[PairReport]) -> set[Pair]:
    return {(report.rank, peer) for report in reports for peer in report.probes}


def _failed_connections(
    reports: Sequence[PairReport], errors: Mapping[Pair, str], nodes: Mapping[int, str]
) -> PairVerdict:
    blamed = find_blamed(errors.keys(), _checked(reports), nodes)
    (one, other), error = min(errors.items())
    if not blamed:
        found = f"{_name(one, nodes)} cannot connect to {_name(other, nodes)}: {error}"
        if len(errors) > 1:
            found += f", and {len(errors) - 1} more connections failed"
        hint = "check the network and the firewall between the two nodes"
        return PairVerdict(CheckFailure(Check.PAIRS, found, hint))
    where = _node_names(blamed, nodes)
    others = {rank for pair in errors for rank in pair} - blamed
    found = f"no connection between {_names(blamed)} on {where} and {_names(others)}: {error}"
    hint = f"check the network and the firewall of {where}"
    return PairVerdict(CheckFailure(Check.PAIRS, found, hint), blamed)


def _not_started(
    absent: Collection[int], reports: Sequence[PairReport], nodes: Mapping[int, str]
) -> PairVerdict:
    error = min(
        (report.rank, peer, probe.error)
        for report in reports
        for peer, probe in report.probes.items()
        if peer in absent
    )[2]
    found = f"{_names(absent)} on {_node_names(absent, nodes)} did not start: {error}"
    hint = "the next attempt starts all replicas; if this repeats, check that no firewall refuses connections"
    return PairVerdict(CheckFailure(Check.PAIRS, found, hint))


def _failed_clocks(
    reports: Sequence[PairReport],
    skews: Mapping[Pair, float],
    apart: Collection[Pair],
    nodes: Mapping[int, str],
) -> PairVerdict:
    blamed = find_blamed(apart, _checked(reports), nodes)
    one, other = min(apart, key=lambda pair: (-abs(skews[pair]), pair))
    found = _skew_text((one, other), skews, nodes)
    hint = f"synchronise the clock of {_node_names(blamed or {one, other}, nodes)} with NTP"
    return PairVerdict(CheckFailure(Check.SKEW, found, hint), blamed)


def _skew_warnings(skews: Mapping[Pair, float], nodes: Mapping[int, str]) -> list[str]:
    if not skews:
        return []
    one, other = min(skews, key=lambda pair: (-abs(skews[pair]), pair))
    is_small = abs(skews[one, other]) <= SKEW_WARNING_S
    return [] if is_small else [_skew_text((one, other), skews, nodes)]


def _skew_text(pair: Pair, skews: Mapping[Pair, float], nodes: Mapping[int, str]) -> str:
    one, other = pair
    return f"the clocks of {_name(one, nodes)} and {_name(other, nodes)} differ by {abs(skews[pair]):.1f} s"


def _bandwidth_warnings(reports: Sequence[PairReport], nodes: Mapping[int, str]) -> list[str]:
    measured: dict[Pair, float] = {}
    for report in reports:
        for peer, probe in report.probes.items():
            if probe.bytes_per_s > 0:
                pair = (min(report.rank, peer), max(report.rank, peer))
                measured[pair] = max(measured.get(pair, 0.0), probe.bytes_per_s)
    if len(measured) < _MIN_PAIRS:
        return []
    middle = median(measured.values())
    slow = min(measured, key=lambda pair: (measured[pair], pair))
    if measured[slow] >= min(SLOW_PAIR_SHARE * middle, FAST_BYTES_PER_S):
        return []
    return [
        f"the connection between {_name(slow[0], nodes)} and {_name(slow[1], nodes)} is slow: "
        f"{format_bytes(int(measured[slow]))}/s, the median of all pairs is {format_bytes(int(middle))}/s"
    ]


def _name(rank: int, nodes: Mapping[int, str]) -> str:
    return f"replica {rank} on node {nodes[rank]}"


def _names(ranks: Collection[int]) -> str:
    texts = [str(rank) for rank in sorted(ranks)]
    return f"replica{'s' if len(texts) > 1 else ''} {_joined(texts)}"


def _node_names(ranks: Collection[int], nodes: Mapping[int, str]) -> str:
    names = sorted({nodes[rank] for rank in ranks})
    return f"node {names[0]}" if len(names) == 1 else f"nodes {_joined(names)}"


def _joined(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
