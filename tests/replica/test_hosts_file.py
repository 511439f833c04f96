"""Replicas of a gang on two nodes find each other by name, and share a workspace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.engines.local.node_detection import LocalNodeSettings
from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

ROLES = (("worker", 0), ("worker", 1), ("ps", 0))
NODES = (LocalNodeSettings("a"), LocalNodeSettings("b"))
# Each replica listens on the same port at an address of its own, and calls the others by name.
MEETS = """
import os, pathlib, socket, time
import hopyard as hop
this, workspace = hop.run(), pathlib.Path(os.environ["HOPYARD_WORKSPACE"])
assert this.workspace == workspace and {this.replica, *hop.peers()} == set(this.hosts), this
server = socket.create_server((this.hosts[this.replica], int(os.environ["MASTER_PORT"])))
scratch = workspace / f".{this.replica}"
scratch.write_text(this.hosts[this.replica])
scratch.rename(workspace / this.replica)
deadline = time.monotonic() + 120
while not all((workspace / name).exists() for name in this.hosts):
    assert time.monotonic() < deadline, os.listdir(workspace)
    time.sleep(0.01)
for name, address in hop.peers().items():
    assert (workspace / name).read_text() == address
    socket.create_connection((name if BY_NAME else address, int(os.environ["MASTER_PORT"])), 60).close()
    print(this.rank, "->", name, flush=True)
print("node", os.environ["NODE_RANK"], "local", os.environ["LOCAL_RANK"], flush=True)
(workspace / f"{this.replica}.done").touch()
while not all((workspace / f"{name}.done").exists() for name in this.hosts):
    assert time.monotonic() < deadline, os.listdir(workspace)
    time.sleep(0.01)
"""


@pytest.mark.parametrize("namespaces", (True, False))
def test_replicas_of_different_roles_meet_by_name(run_scenario: RunScenario, namespaces: bool) -> None:
    by_name = namespaces and detect_isolation_mode() is not IsolationMode.MODES

    async def scenario(fixture: LocalEngineFixture) -> None:
        script = MEETS.replace("BY_NAME", str(by_name))
        launch = await fixture.make_launch("a.1", script, script, script)
        replicas = tuple(
            replace(replica, role=role, role_rank=role_rank)
            for replica, (role, role_rank) in zip(launch.replicas, ROLES, strict=True)
        )
        assignments = tuple(
            replace(assignment, node=NODES[assignment.rank // 2].id)
            for assignment in launch.placement.assignments
        )
        placement = replace(launch.placement, assignments=assignments)
        await fixture.engine.launch(replace(launch, placement=placement, replicas=replicas))
        exits = await fixture.wait_exits("a.1")
        errors = b"".join(fixture.sink.stream("a.1", rank, "stderr") for rank in range(3)).decode()
        assert [exit.reason for exit in exits] == ["finished"] * 3, errors
        assert [fixture.sink.stream("a.1", rank, "stdout").decode().splitlines() for rank in range(3)] == [
            ["0 -> worker-1", "0 -> ps-0", "node 0 local 0"],
            ["1 -> worker-0", "1 -> ps-0", "node 0 local 1"],
            ["2 -> worker-0", "2 -> worker-1", "node 1 local 0"],
        ]

    run_scenario(scenario, namespaces=namespaces, nodes=NODES)
