from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hopyard.config.cluster_file import added_nodes, max_node_gpus, read_cluster
from hopyard.domain.cluster import Node
from hopyard.domain.resources import Gpu
from hopyard.errors import SpecError

GIB = 2**30
TWO_POOLS = """
pools:
  - {name: a100, count: 4, cpus: 64, memory: 512G, gpus: A100:8, gpu_memory: 80G, racks: 2,
     labels: {zone: a}, extras: {fpga: 1}}
  - {name: cpu, count: 2, cpus: 96, memory: 256G}
"""


def write_cluster(folder: Path, text: str) -> Path:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return file


def test_pools_become_nodes(tmp_path: Path) -> None:
    cluster = read_cluster(write_cluster(tmp_path, TWO_POOLS))
    assert [node.id for node in cluster.nodes] == [
        "a100-0000",
        "a100-0001",
        "a100-0002",
        "a100-0003",
        "cpu-0000",
        "cpu-0001",
    ]
    first, last = cluster.nodes[0], cluster.nodes[-1]
    assert (first.cpu_milli, first.memory_bytes, first.pool, dict(first.extras)) == (
        64_000,
        512 * GIB,
        "a100",
        {"fpga": 1},
    )
    assert first.gpus == tuple(Gpu(index, "A100", 80 * GIB) for index in range(8))
    assert [node.labels for node in cluster.nodes[:4]] == [
        {"zone": "a", "rack": f"a100-{rack}"} for rack in (0, 0, 1, 1)
    ]
    assert (last.gpus, dict(last.labels), cluster.queues) == ((), {}, None)
    assert max_node_gpus(cluster.nodes) == 8


def test_queues_are_inline_or_in_another_file(tmp_path: Path) -> None:
    inline = read_cluster(
        write_cluster(tmp_path, TWO_POOLS + "queues: {vision: {weight: 2}, nlp: {}}\ndefault: nlp\n")
    )
    (tmp_path / "queues.yaml").write_text("queues: {vision: {weight: 2}, nlp: {}}\ndefault: nlp\n")
    beside = read_cluster(write_cluster(tmp_path, TWO_POOLS + "queues: queues.yaml\n"))
    assert inline.queues == beside.queues
    assert inline.queues is not None
    assert (inline.queues.default, sorted(inline.queues.queues)) == ("nlp", ["nlp", "vision"])


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("pools: []", "pools"),
        ("pool: []", "`pool`"),
        ("pools: [{name: a, memory: 1G}]", r"pools\.0\.cpus"),
        ("pools: [{name: a, cpus: 4}]", r"pools\.0\.memory"),
        ("pools: [{name: a, cpus: 4, memory: 1G, gpus: 'A100:x'}]", r"pools\.0\.gpus"),
        ("pools: [{name: a, cpus: 4, memory: 1G, count: 0}]", r"pools\.0\.count"),
        ("pools: [{name: a b, cpus: 4, memory: 1G}]", r"pools\.0\.name"),
        ("pools: [{name: a, cpus: 4, memory: 1G, gpus: 2000}]", r"pools\.0\.gpus"),
        ("pools: [{name: a, cpus: 4, memory: 1G, gpu: 2}]", r"pools\.0: .*`gpu`"),
        ("pools: [{name: a, cpus: 4, memory: 1G}, {name: a, cpus: 4, memory: 1G}]", r"pools\.1\.name"),
        ("pools: [{name: a, cpus: 4, memory: 1G}]\nqueues: {a: {weight: -1}}", r"queues\.a\.weight"),
        ("pools: [{name: a, cpus: 4, memory: 1G}]\nqueues: none.yaml", r"none\.yaml"),
    ],
)
def test_invalid_file_is_refused_with_its_path(tmp_path: Path, text: str, path: str) -> None:
    with pytest.raises(SpecError, match=path):
        read_cluster(write_cluster(tmp_path, text))


class TestAddedNodes:
    @pytest.fixture
    def nodes(self, tmp_path: Path) -> Sequence[Node]:
        return read_cluster(write_cluster(tmp_path, TWO_POOLS)).nodes

    def test_add_nodes_of_a_pool(self, nodes: Sequence[Node]) -> None:
        added = added_nodes("2 x a100", nodes)
        assert [node.id for node in added] == ["a100-more-0000", "a100-more-0001"]
        assert (added[0].gpus, added[0].memory_bytes, added[0].pool) == (
            nodes[0].gpus,
            nodes[0].memory_bytes,
            "a100",
        )
        again = added_nodes("1 x a100", (*nodes, *added))
        assert [node.id for node in again] == ["a100-more-0002"]

    def test_add_nodes_by_gpu_model_and_count(self, nodes: Sequence[Node]) -> None:
        four, other = added_nodes("1 x A100:4", nodes)[0], added_nodes("3x H100:8", nodes)[0]
        assert (four.gpus, four.cpu_milli) == (nodes[0].gpus[:4], 64_000)
        assert ([gpu.model for gpu in other.gpus], other.pool) == (["H100"] * 8, "a100")

    def test_add_nodes_by_resources(self, nodes: Sequence[Node]) -> None:
        (node,) = added_nodes("1 x cpus=32,memory=128G,pool=new", nodes)
        assert (node.cpu_milli, node.memory_bytes, node.gpus, node.pool) == (32_000, 128 * GIB, (), "new")

    @pytest.mark.parametrize(
        "text",
        ["", "two x a100", "0 x a100", "2 x", "2 a100", "2 x a10", "2 x cpus=", "2 x cpu=4", "1 x 99999"],
    )
    def test_invalid_addition_is_refused(self, nodes: Sequence[Node], text: str) -> None:
        with pytest.raises(SpecError, match="--add"):
            added_nodes(text, nodes)

    def test_mistyped_pool_gives_a_suggestion(self, nodes: Sequence[Node]) -> None:
        with pytest.raises(SpecError) as raised:
            added_nodes("2 x a10", nodes)
        assert "did you mean `a100`?" in raised.value.hints
