"""Two servers on one PostgreSQL: one is the leader. When it is killed the other becomes leader, and nothing
starts twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hopyard.private_files import remove_tree
from tests.stores.sql.postgres import PostgreSQL, running_postgres, server_programs

from .server_home import FINAL, ServerHome, expect_error, has_ended, wait_until

pytestmark = pytest.mark.skipif(server_programs() is None, reason="needs PostgreSQL's programs")
WAITS = (
    "import os, sys, time\nopen(sys.argv[1], 'a').write('begun\\n')\n"
    "while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
)


@pytest.fixture
def shared_postgres() -> Iterator[PostgreSQL]:
    with running_postgres() as postgres:
        yield postgres


def age_records(postgres: PostgreSQL, schema: str, killed: ServerHome) -> None:
    """Ages the lease and the heartbeat of a killed server, as if it had been away for a minute."""
    postgres.execute(f"UPDATE {schema}.lease SET expires_at = expires_at - 60000000")
    postgres.execute(
        f"UPDATE {schema}.servers SET seen_at = seen_at - 60000000 WHERE place LIKE '%{killed.home.root}%'"
    )


@pytest.fixture
def two_homes(tmp_path: Path, shared_postgres: PostgreSQL) -> Iterator[tuple[ServerHome, ServerHome, str]]:
    address = shared_postgres.new_database()
    worlds = []
    for name in ("first", "second"):
        root = tmp_path / name
        root.mkdir()
        worlds.append(
            ServerHome(root, settings=f"node: {{id: {name}, cpus: 2, memory: 2G}}\ndatabase: {address}\n")
        )
    try:
        yield worlds[0], worlds[1], address.rpartition("%3D")[2]
    finally:
        for server_home in worlds:
            server_home.end()
            remove_tree(server_home.home.trees)


def test_second_server_becomes_leader_when_leader_is_killed(
    two_homes: tuple[ServerHome, ServerHome, str], shared_postgres: PostgreSQL, tmp_path: Path
) -> None:
    first, second, schema = two_homes

    def holder() -> tuple[str, int]:
        ((name, epoch),) = shared_postgres.execute(f"SELECT holder, epoch FROM {schema}.lease")
        return name, epoch

    started, release = tmp_path / "begun", tmp_path / "let_go"
    first.write("waits.py", WAITS)
    live = first.run_detached("waits.py", "--", str(started), str(release))
    first.wait_for_phase(live, "running")
    leader, epoch = holder()
    second.ok("up")
    assert holder() == (leader, epoch), "it decides, as long as it lives"
    first.kill_server()
    second.write("says.py", "print('from the second')\n")
    later = second.wait_for_phase(second.run_detached("says.py"), "succeeded")
    assert holder()[0] != leader
    assert holder()[1] > epoch
    assert second.log(later) == "from the second\n"
    assert second.run(live)["phase"] == "running", "another machine's run is nobody's to judge"
    first.ok("up")
    release.touch()
    ended = first.wait_for_phase(live, "succeeded")
    assert (ended["attempt"]["number"], started.read_text()) == (1, "begun\n")


@pytest.mark.slow
@pytest.mark.parametrize("ended_meanwhile", [True, False])
def test_run_of_absent_server_ends_as_its_own_server_reports(
    two_homes: tuple[ServerHome, ServerHome, str],
    shared_postgres: PostgreSQL,
    tmp_path: Path,
    *,
    ended_meanwhile: bool,
) -> None:
    first, second, schema = two_homes
    release = tmp_path / "let_go"
    first.write("waits.py", WAITS)
    live = first.run_detached("waits.py", "--", str(tmp_path / "begun"), str(release))
    script = psutil.Process(first.replica_status(first.wait_for_phase(live, "running"))["child_pid"])
    first.kill_server()
    age_records(shared_postgres, schema, first)
    second.write("says.py", "print('from the second')\n")
    second.wait_for_phase(second.run_detached("says.py"), "succeeded")
    ready = {node["id"]: node["ready"] for node in second.ok("node", "ls", "--json").json}
    assert ready == {"first": False, "second": True}, "a node on which it can start nothing"
    second.ok("stop", live)
    second.wait_for_phase(
        second.run_detached("says.py"), "succeeded"
    )  # it has looked after its runs several times
    assert second.run(live)["phase"] == "stopping", "how it ended is known by its own server alone"
    logs_result = second.hop("logs", live)
    assert (logs_result.code, "are stored on the server of first" in logs_result.stderr) == (1, True), (
        logs_result
    )
    if ended_meanwhile:
        release.touch()
        wait_until(lambda: has_ended(script.pid), "the end of the script")
    first.ok("up")  # where the second server is the leader
    ended = wait_until(lambda: (run := second.run(live))["phase"] in FINAL and run, "its end")
    assert (ended["phase"], ended["attempt"]["number"]) == (
        "succeeded" if ended_meanwhile else "cancelled",
        1,
    )
    assert has_ended(script.pid)


@pytest.mark.slow
def test_runs_of_lost_machine_end_when_its_node_is_removed(
    two_homes: tuple[ServerHome, ServerHome, str], shared_postgres: PostgreSQL, tmp_path: Path
) -> None:
    first, second, schema = two_homes
    first.write("waits.py", WAITS)
    release = tmp_path / "let_go"
    runs = [
        first.run_detached("--cpus", "0.5", "waits.py", "--", str(tmp_path / f"begun{number}"), str(release))
        for number in range(2)
    ]
    scripts = [
        psutil.Process(first.replica_status(first.wait_for_phase(run, "running"))["child_pid"])
        for run in runs
    ]
    second.ok("up")
    up = second.hop("node", "rm", "--force", "first")
    assert up.code == 1 and "is up" in up.stderr, up
    first.kill_server()
    age_records(shared_postgres, schema, first)
    second.ok("stop", runs[0])
    wait_until(
        lambda: (
            [node["away_since"] for node in second.ok("node", "ls", "--json").json if node["id"] == "first"]
            != [None]
        ),
        "its absence",
    )
    wait_until(
        lambda: "second" in [node["id"] for node in second.ok("node", "ls", "--json").json],
        "its own node, as it decides now",
    )
    second.ok("node", "cordon", "second")  # the first server stores the code of the runs
    rm_result = second.hop("node", "rm", "first")
    assert rm_result.code == 1 and "hop node rm --force first" in rm_result.stderr, rm_result
    assert set(second.ok("node", "rm", "--force", "first", "--json").json["lost"]) == set(runs)
    assert [node["id"] for node in second.ok("node", "ls", "--json").json] == ["second"]
    assert second.run(runs[0])["phase"] == "cancelled"
    waits = second.run(runs[1])
    assert waits["phase"] == "queued"
    (attempt,) = second.get(f"/runs/{waits['id']}/attempts")["attempts"]
    assert attempt["phase"] == "lost" and "first was declared gone for good" in attempt["exit"]["reason"]
    assert not any(has_ended(script.pid) for script in scripts)
    first.ok("up")  # it was not gone
    wait_until(lambda: all(has_ended(script.pid) for script in scripts), "the end of what was given up")
    assert second.run(runs[0])["phase"] == "cancelled"
    release.touch()
    second.ok("node", "uncordon", "second")
    assert second.wait_for_phase(runs[1], "succeeded")["attempt"]["number"] == 2


def test_second_home_with_used_node_name_is_refused(
    two_homes: tuple[ServerHome, ServerHome, str], tmp_path: Path
) -> None:
    first, second, _ = two_homes
    first.ok("up")
    wait_until(lambda: first.get("/nodes")["nodes"], "its node")
    settings = second.home.settings_file
    settings.write_text(settings.read_text().replace("id: second", "id: first"))
    result = second.hop("up")
    assert result.code == 1
    assert "another server of this database has a node `first`" in result.stderr
    assert "node: {id: NAME}" in result.stderr


def test_copy_of_home_with_running_server_is_refused(
    two_homes: tuple[ServerHome, ServerHome, str], tmp_path: Path
) -> None:
    first, _, _ = two_homes
    first.ok("up")
    wait_until(lambda: first.get("/nodes")["nodes"], "its node")
    root = tmp_path / "copy"
    root.mkdir()
    shutil.copytree(first.home.root, root / "home", ignore=shutil.ignore_patterns("server.sock"))
    copy = ServerHome(root, settings="")
    try:
        result = copy.hop("up")
        assert (result.code, "this home is a copy of its home" in result.stderr) == (1, True), result
    finally:
        copy.end()


def test_every_command_names_unreachable_database(tmp_path: Path) -> None:
    with running_postgres() as postgres:
        root = tmp_path / "only"
        root.mkdir()
        server_home = ServerHome(
            root, settings=f"node: {{id: only, cpus: 2, memory: 2G}}\ndatabase: {postgres.new_database()}\n"
        )
        server_home.ok("up")
        client = server_home.client()
        assert client.get("/ready") == {"status": "ready"}
        findings = {finding["check"]: finding for finding in server_home.hop("doctor", "--json").json}
        assert (findings["database"]["level"], "PostgreSQL" in findings["database"]["text"]) == ("ok", True)
    try:
        assert "database" in expect_error(lambda: client.get("/ready")).message
        assert client.get("/health")["status"] == "ok"
        for command in (("ps",), ("status",)):
            result = server_home.hop(*command)
            assert (result.code, "the database did not answer" in result.stderr) == (1, True), result
        findings = {finding["check"]: finding for finding in server_home.hop("doctor", "--json").json}
        assert findings["database"]["level"] == "fail"
        assert "PostgreSQL does not answer" in findings["database"]["text"]
    finally:
        server_home.end()
        remove_tree(server_home.home.trees)


SAVES = """import hopyard as hop
s = hop.bind(x=0)
for i in hop.loop(range(2)):
    s.x += 1
    print('turn', i, flush=True)
open('made', 'w').write('x')
"""


def test_commands_name_absent_server_that_stores_output(
    two_homes: tuple[ServerHome, ServerHome, str], shared_postgres: PostgreSQL, tmp_path: Path
) -> None:
    first, second, schema = two_homes
    first.write("saves.py", SAVES)
    run = first.run_detached("saves.py")
    first.wait_for_phase(run, "succeeded")
    first.kill_server()
    age_records(shared_postgres, schema, first)
    second.write("says.py", "print('from the second')\n")
    second.wait_for_phase(second.run_detached("says.py"), "succeeded")

    def away() -> list[dict[str, str]]:
        return [
            node
            for node in second.ok("node", "ls", "--json").json
            if node["id"] == "first" and node["away_since"]
        ]

    (node,) = wait_until(away, "that its server counts as away")
    assert str(first.home.root) in node["server"]
    for command in (("node", "ls"), ("node", "info", "first"), ("pool", "ls")):
        assert f"{first.home.root}) has been away since " in second.ok(*command).stdout, command
    commands = (
        ("logs", run),
        ("logs", "-f", run),
        ("logs", "--attempt", "1", run),
        ("plot", run),
        ("pull", run, str(tmp_path / "pulled")),
        ("pull", run, "--checkpoint", str(tmp_path / "saved")),
        ("fork", run, "--checkpoint", "newest", "--detach"),
    )
    for command in commands:
        result = second.hop(*command)
        output = "on the server of first (" in result.stderr and "which has been away since" in result.stderr
        assert (result.code, output) == (1, True), (command, result)
    assert "which has been away since" in second.ok("info", run).stdout


COUNTS = """import os, sys, time
import hopyard as hop
s = hop.bind(x=0)
for i in hop.loop(range(6), every=1):
    s.x += 1
    print('turn', i, s.x, flush=True)
    hop.log(loss=1.0 / (i + 1), step=i)
    while i == 3 and not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
"""


@pytest.mark.slow
def test_code_and_data_are_fetched_from_server_that_stores_them(
    two_homes: tuple[ServerHome, ServerHome, str], tmp_path: Path
) -> None:
    first, second, _ = two_homes
    first.write("waits.py", WAITS)
    # so that it stays the leader
    first.wait_for_phase(
        first.run_detached("waits.py", "--", str(tmp_path / "begun"), str(tmp_path / "never")), "running"
    )
    second.write(
        "reads.py", "import hopyard as hop\nprint((hop.dataset_path('rows') / 'a.txt').read_text())\n"
    )
    second.write("data/a.txt", "many rows")
    second.ok("dataset", "push", "rows", "data")
    run = first.wait_for_phase(second.run_detached("-d", "rows", "reads.py"), "succeeded")
    assert (run["attempt"]["number"], run["attempt"]["nodes"]) == (1, ["first"])
    assert first.log(run) == "many rows\n"
    first.ok("pull", run["name"], str(first.root / "pulled"))
    assert (first.root / "pulled" / "code" / "reads.py").exists()
    scrubbed = first.ok("doctor", "--verify").stdout + second.ok("doctor", "--verify").stdout
    assert "missing" not in scrubbed, "what lies with the other server is not lost"


def test_run_with_code_on_absent_server_waits(
    two_homes: tuple[ServerHome, ServerHome, str], tmp_path: Path
) -> None:
    first, second, _ = two_homes
    first.write("waits.py", WAITS)
    # so that it stays the leader
    first.wait_for_phase(
        first.run_detached("waits.py", "--", str(tmp_path / "begun"), str(tmp_path / "never")), "running"
    )
    first.ok("node", "cordon", "first")
    second.write("says.py", "print('from the second')\n")
    run = second.run_detached("says.py")
    second.kill_server()
    first.ok("node", "uncordon", "first")

    def told() -> str:
        output = first.ok("why", run).stdout
        return (
            output
            if f"{second.home.root}), which" in output or f"{second.home.root}, which" in output
            else ""
        )

    assert "a blob is not on this server; it is stored on the server" in wait_until(
        told, "where its code lies"
    )
    assert first.run(run)["phase"] == "queued"
    second.ok("up")
    ended = first.wait_for_phase(run, "succeeded")
    assert first.log(ended) == "from the second\n"


def test_run_resumes_from_checkpoint_on_node_of_another_server(
    two_homes: tuple[ServerHome, ServerHome, str], shared_postgres: PostgreSQL, tmp_path: Path
) -> None:
    first, second, schema = two_homes
    release = tmp_path / "let_go"
    first.write("counts.py", COUNTS)
    run = first.wait_for_phase(first.run_detached("counts.py", "--", str(release)), "running")
    first.wait_for_output(run, "turn 3")
    wait_until(
        lambda: [
            checkpoint
            for checkpoint in first.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]
            if checkpoint["step"] == 3
        ],
        "the checkpoint",
    )
    first.kill_everything()
    age_records(shared_postgres, schema, first)
    second.write("waits.py", WAITS)
    never = str(tmp_path / "never")
    # so that it becomes and stays the leader
    second.wait_for_phase(second.run_detached("waits.py", "--", str(tmp_path / "begun"), never), "running")
    first.ok("up")
    release.touch()
    ended = second.wait_for_phase(run["name"], "succeeded")
    assert (ended["attempt"]["nodes"], ended["attempt"]["resumed_from_step"]) == (["second"], 3)
    assert second.log(ended).splitlines() == ["turn 3 4", "turn 4 5", "turn 5 6"]
    assert "attempt 1, are stored on the server of first (" in second.ok("logs", run["name"]).stderr
    fork = second.wait_for_phase(
        second.ok("fork", run["name"], "--checkpoint", "3", "--detach").stdout.strip(), "succeeded"
    )
    assert second.log(fork).splitlines() == ["turn 3 4", "turn 4 5", "turn 5 6"]
