"""The resources of a machine, and their distribution."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from hopyard.domain.resources import Gpu
from hopyard.engines.local.cgroups import find_cgroups
from hopyard.engines.local.cores import choose_cores
from hopyard.engines.local.node_detection import LocalNodeSettings, find_memory_bytes, find_node, find_nodes
from hopyard.engines.local.ports import PortClaims, choose_port


def test_node_resources_are_detected() -> None:
    node, _ = find_node()
    assert 0 < node.cpu_milli <= (os.cpu_count() or 1) * 1000
    assert 0 < node.memory_bytes < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert node.memory_bytes <= find_memory_bytes()
    assert node.id


def test_declared_resources_override_detection() -> None:
    gpus = (Gpu(0, "A100", 80 * 1024**3), Gpu(1, "A100", 80 * 1024**3))
    node, real = find_node(
        LocalNodeSettings(
            id="big", cpu_milli=64_000, memory_bytes=10**12, gpus=gpus, pool="a100", labels={"room": "2"}
        )
    )
    assert (node.id, node.cpu_milli, node.memory_bytes, node.gpus, node.pool) == (
        "big",
        64_000,
        10**12,
        gpus,
        "a100",
    )
    assert not real
    assert find_node(LocalNodeSettings(gpus=()))[0].gpus == ()


def test_cores_are_distributed_within_available_count() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert choose_cores(len(cores) * 1000, []) is None
    if len(cores) > 1:
        assert choose_cores(500, []) == (cores[0],)
        assert choose_cores(1000, [cores[0]]) == (cores[1],)


def test_ports_are_free_and_outside_the_ephemeral_range() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    first = choose_port(())
    assert not low <= first <= high
    with socket.socket() as busy:
        busy.bind(("", first))
        busy.listen()
        assert choose_port(()) != first
    assert choose_port({first}) != first


def test_engines_of_one_machine_claim_different_ports() -> None:
    first, second, number = PortClaims(), PortClaims(), choose_port(())
    try:
        assert first.assign([number]) == {number: number}
        (other,) = second.assign([number]).values()
        assert other not in (number, first.choose())
        first.keep_only([])
        second.keep_only([other])
        assert first.assign([other])[other] != other
        assert second.assign([number]) == {number: number}
    finally:
        first.close()
        second.close()


def test_only_writable_cgroups_are_used() -> None:
    for folder in find_cgroups().values():
        assert folder.name == "hopyard"
        assert os.access(folder, os.W_OK)


def test_nodes_of_one_machine_share_its_amounts() -> None:
    whole, _ = find_node()
    cards = tuple(Gpu(index, "A100") for index in range(2))
    parts = (
        LocalNodeSettings("a", gpus=cards),
        LocalNodeSettings("b", cpu_milli=500, gpus=cards[:1]),
        LocalNodeSettings("c"),
    )
    nodes, is_reported = find_nodes(parts)
    assert [(node.id, [gpu.index for gpu in node.gpus]) for node in nodes] == [
        ("a", [0, 1]),
        ("b", [2]),
        ("c", []),
    ]
    assert [node.cpu_milli for node in nodes] == [whole.cpu_milli // 3, 500, whole.cpu_milli // 3]
    assert [node.memory_bytes for node in nodes] == [whole.memory_bytes // 3] * 3 and not is_reported
    assert len(find_nodes(())[0]) == 1
