"""Reservations in the file of a cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hopyard.config.cluster_file import read_cluster
from hopyard.domain.gang import NodeSelector
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import SINGLE_QUEUE_TREE, Queue, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.errors import SpecError
from hopyard.simulator.reservations import admit_reservations

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday
POOLS = "pools: [{name: a100, count: 2, cpus: 64, memory: 512G, gpus: A100:8}]\n"
TREE = QueueTree(
    {**SINGLE_QUEUE_TREE.queues, QueueName("vision"): Queue(QueueName("vision"))}, SINGLE_QUEUE_TREE.default
)


def read_reservations(folder: Path, *entries: str) -> tuple[Reservation, ...]:
    file = folder / "cluster.yaml"
    file.write_text(POOLS + "reservations:\n" + "".join(f"  - {entry}\n" for entry in entries))
    cluster = read_cluster(file)
    return admit_reservations(cluster.reservations, cluster.nodes, TREE, BEGIN)


def test_reservation_of_nodes_relative_to_the_start(tmp_path: Path) -> None:
    (one,) = read_reservations(
        tmp_path, "{name: exam, from: +2h, for: 4h, nodes: [a100-0001], users: [alice, bob]}"
    )
    assert (one.name, one.users, one.queue, one.nodes, one.resources) == (
        "exam",
        ("alice", "bob"),
        None,
        ("a100-0001",),
        None,
    )
    assert (one.start_at - BEGIN, one.end_at - BEGIN, one.every_s) == (
        timedelta(hours=2),
        timedelta(hours=6),
        0,
    )


def test_recurring_reservation_of_pieces(tmp_path: Path) -> None:
    (one,) = read_reservations(
        tmp_path,
        "{name: class, from: monday 09:00, for: 2h, every: week, until: 2026-03-01, resources: {gpus: "
        "A100:4}, count: 3, pool: a100, queue: vision}",
    )
    assert (one.start_at, one.until) == (
        datetime(2026, 1, 5, 9, tzinfo=UTC),
        datetime(2026, 3, 1, tzinfo=UTC),
    )
    assert (one.every_s, one.queue, one.where) == (7 * 86400.0, "vision", NodeSelector(("a100",)))
    assert one.resources == Resources(4000, 0, 4, ("A100",))
    assert dict(zip(one.nodes, one.pieces, strict=True)) == {"a100-0000": 2, "a100-0001": 1}


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("+90m", 1.5),
        ("now", 0),
        ("2026-01-02", 24),
        ("2026-01-01T02:00:00", 2),
        ('"2026-01-01 02:00"', 2),
        ('"10:00"', 10),
        ("2026-01-01 02:00:00+01:00", 1),
        ("2026-01-01T03:00+01:00", 2),
    ],
)
def test_reservation_times_are_utc(tmp_path: Path, text: str, hours: float) -> None:
    """A time without a zone is UTC, as in workloads, for any zone of the machine."""
    (one,) = read_reservations(
        tmp_path, f"{{name: e, from: {text}, for: 1h, nodes: [a100-0000], users: [a]}}"
    )
    assert one.start_at == BEGIN + timedelta(hours=hours)


def test_reservation_without_a_start_begins_with_the_workload(tmp_path: Path) -> None:
    (one,) = read_reservations(tmp_path, "{name: e, to: +1h, nodes: [a100-0000], users: [a]}")
    assert (one.start_at, one.end_at) == (BEGIN, BEGIN + timedelta(hours=1))


def test_two_reservations_share_a_node_if_both_fit(tmp_path: Path) -> None:
    pieces = "for: 1h, resources: {gpus: 4}, count: 2, users: [a]"
    first, second = read_reservations(tmp_path, f"{{name: e, {pieces}}}", f"{{name: f, {pieces}}}")
    assert sum(first.pieces) == sum(second.pieces) == 2
    assert all(
        sum(
            reservation.pieces[reservation.nodes.index(node)]
            for reservation in (first, second)
            if node in reservation.nodes
        )
        <= 2
        for node in ("a100-0000", "a100-0001")
    )


NODE = "nodes: [a100-0000], users: [a]"


@pytest.mark.parametrize(
    ("entry", "says", "hint"),
    [
        ("x", "0: `x` is not a mapping", "mapping"),
        (f"{{for: 1h, {NODE}}}", "0.name: missing", "name: exam"),
        (f"{{name: a b, for: 1h, {NODE}}}", "0.name: ", ""),
        (f"{{name: e, for: 1h, gpus: 2, {NODE}}}", "0: there is no key `gpus`", "allowed"),
        (f"{{name: e, {NODE}}}", "0.for: the duration is missing", "for: 4h"),
        (f"{{name: e, for: 1h, to: +1h, {NODE}}}", "0.for: the duration is missing", "for: 4h"),
        (f"{{name: e, for: 10s, {NODE}}}", "0.for: it is shorter than 60 seconds", "for: 4h"),
        (f"{{name: e, for: 400d, {NODE}}}", "0.for: it is longer than a year", "guarantee"),
        (f"{{name: e, for: soon, {NODE}}}", "0.for: `soon` is not a time", "90m"),
        (f"{{name: e, to: now, {NODE}}}", "0.to: it ends before it begins", "to: +6h"),
        (f"{{name: e, from: 10, for: 1h, {NODE}}}", "0.from: `10` is not a time", ""),
        (f"{{name: e, from: soon, for: 1h, {NODE}}}", "0.from: `soon` is not a time", "+2h"),
        (f"{{name: e, from: 2025-12-31, for: 1h, {NODE}}}", "0.from: it is before the workload", "+2h"),
        (
            f"{{name: e, from: 9999-12-31, for: 5d, {NODE}}}",
            "0.from: it begins more than five years ahead",
            "+2h",
        ),
        (
            f"{{name: e, from: 2036-12-31, for: 5d, {NODE}}}",
            "0.from: it begins more than five years ahead",
            "",
        ),
        (f"{{name: e, for: 2h, every: hour, {NODE}}}", "0.every: it begins again after 1h", "every: week"),
        (f"{{name: e, for: 2h, every: often, {NODE}}}", "0.every: `often` is not a time", "day, week"),
        (f"{{name: e, for: 2h, until: +1d, {NODE}}}", "0.until: it does not repeat", "every"),
        (
            f"{{name: e, for: 2h, every: day, until: now, {NODE}}}",
            "0.until: it is before the first begin",
            "",
        ),
        ("{name: e, for: 1h, nodes: [a100-0000]}", "0.users: it has no owner", "users: [alice]"),
        ("{name: e, for: 1h, nodes: [a100-0000], users: [3]}", "0.users.0: `3` is not a name", "quotes"),
        (
            "{name: e, for: 1h, nodes: [a100-0000], queue: vison}",
            "0.queue: there is no queue `vison`",
            "`vision`",
        ),
        (
            "{name: e, for: 1h, nodes: [a100-0000], queue: x}",
            "0.queue: there is no queue `x`",
            "queues: default, vision",
        ),
        ("{name: e, for: 1h, users: [a]}", "0.nodes: it reserves no capacity", "resources"),
        ("{name: e, for: 1h, resources: {}, users: [a]}", "0.resources: it reserves no capacity", "nodes"),
        (
            "{name: e, for: 1h, resources: {gpus: 1}, nodes: [a100-0000], users: [a]}",
            "0.nodes: whole nodes and",
            "nodes",
        ),
        (
            "{name: e, for: 1h, nodes: [a100-0000], count: 2, users: [a]}",
            "0.count: whole nodes are named",
            "count",
        ),
        (
            "{name: e, for: 1h, nodes: [a100-0009], users: [a]}",
            "0.nodes.0: there is no node `a100-0009`",
            "did you mean",
        ),
        (
            "{name: e, for: 1h, nodes: [a100-0000, a100-0000], users: [a]}",
            "0.nodes.1: `a100-0000` is given twice",
            "nodes",
        ),
        ("{name: e, for: 1h, resources: {gpus: x:y}, users: [a]}", "0.resources.gpus: ", "A100:8"),
        ("{name: e, for: 1h, resources: {gpus: 1}, count: 0, users: [a]}", "0.count: `0` is not", ""),
        (
            "{name: e, for: 1h, resources: {gpus: 1}, pool: a10, users: [a]}",
            "0.pool: there is no pool `a10`",
            "`a100`",
        ),
        (
            "{name: e, for: 1h, resources: {gpus: 1}, pool: [a10], users: [a]}",
            "0.pool.0: there is no pool `a10`",
            "`a100`",
        ),
        (
            "{name: e, for: 1h, resources: {gpus: 9}, users: [a]}",
            "0: it cannot be honoured: one piece needs 9 GPUs on one node",
            "",
        ),
        (
            "{name: e, for: 1h, resources: {gpus: 1}, count: 999, users: [a]}",
            "0: it cannot be honoured: the nodes it may use hold only 16 of the 999 pieces",
            "fewer",
        ),
    ],
)
def test_invalid_reservation_is_refused_with_its_path(
    tmp_path: Path, entry: str, says: str, hint: str
) -> None:
    with pytest.raises(SpecError) as refused:
        read_reservations(tmp_path, entry)
    assert f"cluster.yaml: reservations.{says}" in refused.value.message
    assert any(hint in line for line in refused.value.hints) or not hint
    assert not any("--" in hint or "`hop " in hint for hint in refused.value.hints)


def test_overlapping_reservations_are_refused_with_the_time(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError,
        match=r"reservations\.1: it cannot be honoured: a100-0000 is reserved at 2026-01-03 00:00 UTC: e",
    ):
        read_reservations(
            tmp_path,
            f"{{name: e, for: 1h, every: day, {NODE}}}",
            f"{{name: f, from: +47h30m, for: 1h, {NODE}}}",
        )
    with pytest.raises(SpecError, match=r"reservations\.1\.name: there are two reservations `e`"):
        read_reservations(
            tmp_path, f"{{name: e, for: 1h, {NODE}}}", f"{{name: e, from: +1d, for: 1h, {NODE}}}"
        )
