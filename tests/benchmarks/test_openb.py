"""The openb benchmark on small clusters of which the right answer is known, and on bad files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.openb import gpu_milli, read_nodes, read_pods, replay, seeds, sequence
from hopyard.errors import SpecError

ROOT = Path(__file__).parents[2]
NODES = "sn,cpu_milli,memory_mib,gpu,model\nb,64000,262144,4,T4\na,64000,262144,2,P100\nc,8000,61440,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
    "p0,4000,1024,1,1000,,LS\np1,4000,1024,1,500,T4,LS\np2,4000,1024,1,500,T4|P100|T4,BE\n"
    "p3,6000,2048,0,0,,BE\np4,1000,1024,2,1000,,LS\n"
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    return nodes, pods


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.openb", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_pod_requests_are_read(files: tuple[Path, Path]) -> None:
    pods = read_pods(files[1])
    assert [gpu_milli(pod) for pod in pods] == [1000, 500, 500, 0, 2000]
    assert [pod.gpu_models for pod in pods] == [(), ("T4",), ("T4", "P100"), (), ()]
    assert [len(node.gpus) for node in read_nodes(files[0])] == [4, 2, 0]


def test_list_without_gpu_models_is_read(files: tuple[Path, Path]) -> None:
    files[1].write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,1,1,1000\n")
    assert read_pods(files[1])[0].gpus == 1


def test_pods_are_shuffled_until_demand_is_reached(files: tuple[Path, Path]) -> None:
    pods = read_pods(files[1])
    result = sequence(pods, 7, 6000)
    assert sorted(map(repr, result[: len(pods)])) == sorted(map(repr, pods))
    assert set(result) <= set(pods)
    assert sum(map(gpu_milli, result[:-1])) < 1.3 * 6000 <= sum(map(gpu_milli, result))
    assert result == sequence(pods, 7, 6000)
    assert result != sequence(pods, 8, 6000)


def test_cluster_with_room_for_all_pods_is_filled(files: tuple[Path, Path]) -> None:
    files[1].write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,1024,1,500\n")
    line = replay(read_nodes(files[0]), read_pods(files[1]), "fragmentation", 1)
    assert (line.allocated_at_100, line.allocated_at_130) == (100.0, 100.0)
    assert line.decisions_per_s > 0


def test_json_line_per_seed_is_independent_of_node_order(files: tuple[Path, Path]) -> None:
    arguments = ("--nodes", files[0], "--pods", files[1], "--seeds", "3-5", "--json")
    done, shuffled = command(*arguments), command(*arguments, "--shuffle-nodes")
    assert (done.returncode, done.stderr) == (0, "")
    lines, others = ([json.loads(line) for line in result.stdout.splitlines()] for result in (done, shuffled))
    assert [set(line) for line in lines] == [
        {"policy", "seed", "allocated_at_100", "allocated_at_130", "decisions_per_s"}
    ] * 3
    assert [line["seed"] for line in lines] == [3, 4, 5]
    assert {line["policy"] for line in lines} == {"fragmentation"}
    assert all(0 < line["allocated_at_100"] <= 100 and 0 < line["allocated_at_130"] <= 100 for line in lines)
    for line, other in zip(lines, others, strict=True):
        assert {**line, "decisions_per_s": 0} == {**other, "decisions_per_s": 0}


@pytest.mark.parametrize("policy", ["fgd", "best-fit", "packed", "dot-product", "first-fit"])
def test_every_rule_can_be_compared(files: tuple[Path, Path], policy: str) -> None:
    line = replay(read_nodes(files[0]), read_pods(files[1]), policy, 1)
    assert line.policy == policy
    assert 0 < line.allocated_at_130 <= 100


@pytest.mark.parametrize(
    ("nodes", "pods", "expected"),
    [
        ("sn,cpu_milli\na,1\n", PODS, "nodes.csv: no column `memory_mib`"),
        (NODES + "a,1,1,1,T4\n", PODS, "nodes.csv: two nodes have the same name"),
        (NODES + "d,1,-4,1,T4\n", PODS, "nodes.csv:5: memory_mib: `-4` is no whole number"),
        (NODES, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n", "pods.csv: holds no line"),
        (
            NODES,
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,x,0\n",
            "pods.csv:2: num_gpu: `x` is no whole number",
        ),
        (
            NODES,
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,2,500\n",
            "pods.csv:2: 2 GPUs of 500 thousandths each",
        ),
        (
            NODES,
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1\n",
            "pods.csv:2: num_gpu: `` is no whole number",
        ),
        (NODES, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\n", "no pod asks for a GPU"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\n", PODS, "nodes.csv: no node has a GPU"),
    ],
)
def test_invalid_files_are_refused(files: tuple[Path, Path], nodes: str, pods: str, expected: str) -> None:
    files[0].write_text(nodes)
    files[1].write_text(pods)
    with pytest.raises(SpecError) as error:
        replay(read_nodes(files[0]), read_pods(files[1]), "fragmentation", 1)
    assert expected in str(error.value)


def test_errors_are_printed_to_stderr(files: tuple[Path, Path]) -> None:
    done = command("--nodes", files[0].with_name("none.csv"), "--pods", files[1], "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "none.csv: cannot be read" in done.stderr
    assert command("--nodes", files[0], "--pods", files[1], "--seeds", "9-3").returncode == 2


def test_seeds_are_parsed() -> None:
    assert seeds("42-44") == [42, 43, 44]
    assert seeds("1,5,7-8") == [1, 5, 7, 8]
