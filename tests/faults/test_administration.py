"""Queues, reservations and cordons while the server is killed: applied completely or not at all, and
durable."""

from __future__ import annotations

import time
from typing import Any

from tests.exploration import seeded

from .server_home import ServerHome, seeded_random, wait_until

NAMES = [f"q{i}" for i in range(40)]
TREES = [
    "default: q0\nqueues: {"
    + ", ".join(f"{name}: {{weight: {weight}, maximum: {{cpus: {weight}}}}}" for name in NAMES)
    + "}\n"
    for weight in (1, 2, 3)
]


def declared_queues(server_home: ServerHome) -> Any:
    result = server_home.get("/queues")["queues"]
    return sorted((queue["name"], queue["weight"], queue["maximum"]) for queue in result if queue["declared"])


def kill_server_within(server_home: ServerHome, seconds: float, dead: set[int]) -> None:
    """Kills the current server at a moment that the test chooses."""
    wait_until(lambda: server_home.server_pid() not in dead and server_home.server_pid(), "a server")
    time.sleep(seconds)  # not to wait for something: this is the moment
    dead.add(server_home.kill_server())


@seeded
def test_queue_tree_is_applied_atomically(server_home: ServerHome) -> None:
    moment, dead = seeded_random(41), set[int]()
    legal = []
    for i, tree in enumerate(TREES):
        server_home.write(f"{i}.yaml", tree)
        server_home.ok("queue", "apply", f"{i}.yaml")
        legal.append(declared_queues(server_home))
    before = legal[-1]
    for i in (0, 1, 2):
        command = server_home.start_hop("queue", "apply", f"{i}.yaml")
        kill_server_within(server_home, 0.15 + moment.random() * 0.5, dead)
        done = server_home.finish(command)
        now = declared_queues(server_home)
        assert now == legal[i] or (done.code != 0 and now == before), (done, now)
        before = now
    server_home.kill_server()
    assert declared_queues(server_home) == before
    wait_until(lambda: server_home.get("/nodes")["nodes"], "the node")
    run = server_home.run(server_home.run_detached("true"))
    assert (
        run["spec"]["queue"],
        server_home.wait_for_phase(run["name"], "succeeded")["attempt"]["number"],
    ) == ("q0", 1)


@seeded
def test_reservation_and_cordon_are_applied_once_or_not_at_all(server_home: ServerHome) -> None:
    moment, dead = seeded_random(42), set[int]()
    server_home.ok("up")
    wait_until(lambda: server_home.get("/nodes")["nodes"], "the node")
    granted = set[str]()
    for name in ("one", "two", "three"):
        start = {"one": "+26h", "two": "+50h", "three": "+74h"}[name]
        command = server_home.start_hop(
            "reserve", name, "--from", start, "--for", "4h", "--cpus", "2", "-q", "default"
        )
        kill_server_within(server_home, 0.15 + moment.random() * 0.5, dead)
        done = server_home.finish(command)
        names = [reservation["name"] for reservation in server_home.get("/reservations")["reservations"]]
        assert len(set(names)) == len(names)
        assert set(names) - granted <= {name}
        assert name in names or done.code != 0, done
        granted = set(names)
    command = server_home.start_hop("node", "cordon", "box", "--reason", "a new disk")
    kill_server_within(server_home, 0.3, dead)
    done = server_home.finish(command)
    (box,) = server_home.get("/nodes")["nodes"]
    assert box["cordoned"] or done.code != 0, done
    server_home.ok("node", "cordon", "box", "--reason", "a new disk")
    waits = server_home.run_detached("true")
    server_home.kill_server()
    (box,) = server_home.get("/nodes")["nodes"]
    assert (box["cordoned"], box["cordon_reason"]) == (True, "a new disk")
    assert {
        reservation["name"] for reservation in server_home.get("/reservations")["reservations"]
    } == granted
    assert server_home.run(waits)["phase"] == "queued"
    server_home.kill_server()
    server_home.ok("node", "uncordon", "box")
    assert server_home.wait_for_phase(waits, "succeeded")["attempt"]["number"] == 1
    if granted:
        server_home.ok("reserve", "rm", *sorted(granted))
    assert server_home.get("/reservations")["reservations"] == []
