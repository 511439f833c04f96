"""Failed checks before scripts start, through a whole server: what users see, and when a node is cordoned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.private_files import remove_tree
from tests.faults.server_home import DEADLINE_S, ServerHome, wait_until

NODES = "nodes:\n" + "".join(f"  - {{id: {name}, cpus: 1, memory: 1G}}\n" for name in "abcd")
# Runs in the server: while the file exists, the other replicas look for the one on node c at a port where no
# program listens, as behind a firewall.
FIREWALL = """
import importlib.util, sys
from dataclasses import replace
from pathlib import Path

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "hopyard.engines.local.replica_specs":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            build = module.ReplicaSpecs.build
            def build_behind_firewall(*arguments):
                spec = build(*arguments)
                if not Path(FLAG).exists() or spec.node.id == "c":
                    return spec
                addresses = [
                    replace(address, port=9) if address.node == "c" else address
                    for address in spec.node.probe_addresses
                ]
                return replace(spec, node=replace(spec.node, probe_addresses=tuple(addresses)))
            module.ReplicaSpecs.build = build_behind_firewall
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def four_nodes(tmp_path: Path) -> Iterator[ServerHome]:
    (tmp_path / "hook").mkdir()
    flag = tmp_path / "firewall"
    (tmp_path / "hook" / "sitecustomize.py").write_text(FIREWALL.replace("FLAG", repr(str(flag))))
    home = ServerHome(tmp_path, settings=NODES)
    home.environment["PYTHONPATH"] = str(tmp_path / "hook")
    try:
        yield home
    finally:
        home.end()
        remove_tree(home.home.trees)


def test_unreachable_node_is_cordoned_after_two_attempts(four_nodes: ServerHome, tmp_path: Path) -> None:
    (tmp_path / "firewall").touch()
    four_nodes.write("main.py", "print('hello')\n")
    name = four_nodes.run_detached("--replicas", "4", "--cpus", "1", "--memory", "100M", "main.py")
    node = wait_until(
        lambda: next((each for each in four_nodes.get("/nodes")["nodes"] if each["cordoned"]), None),
        "a cordoned node",
        deadline_s=3 * DEADLINE_S,  # under load, an attempt may end because a replica has not started in time
    )
    assert node["id"] == "c", "the node that the three others cannot reach"
    assert node["cordon_reason"].startswith("preflight failed in 2 attempts within 6 hours, last `pairs`: ")
    assert "on node c and replicas" in four_nodes.ok("node", "ls").stdout
    run = four_nodes.wait_for_phase(name, "queued")
    failed = wait_until(
        lambda: (
            ended
            if len(
                ended := [each for each in four_nodes.get(f"/runs/{run['id']}")["attempts"] if each["exit"]]
            )
            == 2
            else None
        ),
        "two failed attempts",
    )
    for attempt in failed:
        assert attempt["exit"]["kind"] == "node-fault"
        assert "preflight check `pairs` failed: no connection between replica" in attempt["exit"]["reason"]
        assert "hint: check the network and the firewall of node c" in attempt["exit"]["reason"]
    assert "preflight check `pairs` failed" in four_nodes.ok("info", name).stdout
    assert "node c" in four_nodes.ok("why", name).stdout
    doctor = four_nodes.ok("doctor", "--node", "c")
    assert "hint: run `hop node uncordon c` when the cause is gone (c, cordon)" in doctor.stdout
    (tmp_path / "firewall").unlink()
    four_nodes.ok("node", "uncordon", "c")
    run = four_nodes.wait_for_phase(name, "succeeded")
    assert [four_nodes.log(run, rank=rank) for rank in range(4)] == ["hello\n"] * 4


def test_damaged_dataset_fails_the_attempt_and_is_fetched_again(server_home: ServerHome) -> None:
    server_home.write("data/words.txt", "right\n")
    server_home.write(
        "main.py", "import hopyard as hop\nprint((hop.dataset_path('words') / 'words.txt').read_text())\n"
    )
    server_home.ok("dataset", "push", "words", "data")
    server_home.ok("run", "main.py", "-d", "words")
    for sample in server_home.home.trees.glob(".*.sample"):
        if b"words.txt" in sample.read_bytes():  # the disk now returns other bytes than were stored
            sample.chmod(0o600)
            sample.write_text(json.dumps([["words.txt", 6, "00" * 32]]))
    run = server_home.wait_for_phase(server_home.run_detached("main.py", "-d", "words"), "succeeded")
    first, second = server_home.get(f"/runs/{run['id']}")["attempts"]
    assert "words.txt of dataset words has other bytes than were stored" in first["exit"]["reason"]
    assert (first["exit"]["kind"], second["exit"]["code"]) == ("node-fault", 0)
    assert not server_home.get("/nodes")["nodes"][0]["cordoned"], "one failure is not enough"


def test_script_finds_no_key_of_the_checks(server_home: ServerHome) -> None:
    server_home.write(
        "main.py",
        "import os\n"
        "from pathlib import Path\n"
        "for path in Path(os.environ['HOPYARD_RUN_DIR']).parent.glob('*/spec.json'):\n"
        "    print(path.read_text())\n",
    )
    words = ("--replicas", "2", "--cpus", "0.5", "--memory", "100M", "main.py")
    run = server_home.wait_for_phase(server_home.run_detached(*words), "succeeded")
    specs = [json.loads(line) for line in server_home.log(run).splitlines()]
    assert len(specs) == 2
    assert all(not spec["launch"]["preflight"]["key"] for spec in specs)
    assert all(not spec["launch"]["preflight"]["secret"] for spec in specs)
