"""Queues, reservations and cordons while the server is killed: there whole or not at all, and still there
afterwards."""

from __future__ import annotations

import time
from typing import Any

from tests.exploring import seeded

from .world import World, chance, until

NAMES = [f"q{i}" for i in range(40)]
TREES = [
    "default: q0\nqueues: {"
    + ", ".join(f"{name}: {{weight: {weight}, maximum: {{cpus: {weight}}}}}" for name in NAMES)
    + "}\n"
    for weight in (1, 2, 3)
]


def declared(world: World) -> Any:
    found = world.get("/queues")["queues"]
    return sorted((one["name"], one["weight"], one["maximum"]) for one in found if one["declared"])


def kill_within(world: World, seconds: float, dead: set[int]) -> None:
    """The server that there is now, at a moment of the test's choice."""
    until(lambda: world.server_pid() not in dead and world.server_pid(), "a server")
    time.sleep(seconds)  # not to wait for something: this is the moment
    dead.add(world.kill_server())


@seeded
def test_a_tree_of_queues_is_applied_whole_or_not_at_all(world: World) -> None:
    moment, dead = chance(41), set[int]()
    legal = []
    for i, tree in enumerate(TREES):
        world.write(f"{i}.yaml", tree)
        world.ok("queue", "apply", f"{i}.yaml")
        legal.append(declared(world))
    before = legal[-1]
    for i in (0, 1, 2):
        command = world.begin("queue", "apply", f"{i}.yaml")
        kill_within(world, 0.15 + moment.random() * 0.5, dead)
        done = world.finish(command)
        now = declared(world)
        assert now == legal[i] or (done.code != 0 and now == before), (done, now)
        before = now
    world.kill_server()
    assert declared(world) == before
    until(lambda: world.get("/nodes")["nodes"], "the node")
    run = world.run(world.detach("true"))
    assert (run["spec"]["queue"], world.reaches(run["name"], "succeeded")["attempt"]["number"]) == ("q0", 1)


@seeded
def test_a_reservation_and_a_cordon_are_there_once_or_not_at_all(world: World) -> None:
    moment, dead = chance(42), set[int]()
    world.ok("up")
    until(lambda: world.get("/nodes")["nodes"], "the node")
    granted = set[str]()
    for name in ("one", "two", "three"):
        start = {"one": "+26h", "two": "+50h", "three": "+74h"}[name]
        command = world.begin("reserve", name, "--from", start, "--for", "4h", "--cpus", "2", "-q", "default")
        kill_within(world, 0.15 + moment.random() * 0.5, dead)
        done = world.finish(command)
        told = [one["name"] for one in world.get("/reservations")["reservations"]]
        assert len(set(told)) == len(told)
        assert set(told) - granted <= {name}
        assert name in told or done.code != 0, done
        granted = set(told)
    command = world.begin("node", "cordon", "box", "--reason", "a new disk")
    kill_within(world, 0.3, dead)
    done = world.finish(command)
    (box,) = world.get("/nodes")["nodes"]
    assert box["cordoned"] or done.code != 0, done
    world.ok("node", "cordon", "box", "--reason", "a new disk")
    waits = world.detach("true")
    world.kill_server()
    (box,) = world.get("/nodes")["nodes"]
    assert (box["cordoned"], box["cordon_reason"]) == (True, "a new disk")
    assert {one["name"] for one in world.get("/reservations")["reservations"]} == granted
    assert world.run(waits)["phase"] == "queued"
    world.kill_server()
    world.ok("node", "uncordon", "box")
    assert world.reaches(waits, "succeeded")["attempt"]["number"] == 1
    if granted:
        world.ok("reserve", "rm", *sorted(granted))
    assert world.get("/reservations")["reservations"] == []
