"""kill -9 of whatever drives a study, at any moment: it ends with the trials, params and verdicts of one to
which nothing happened."""

from __future__ import annotations

import json
import time

from tests.exploring import seeded

from .study import MOP, SEARCH, TRAINS, decisions, hopping, journal, process_of, start
from .world import World, chance, kill, until


@seeded
def test_a_study_ends_as_an_undisturbed_one_whatever_is_killed(world: World) -> None:
    moment = chance(31)
    world.write("train.py", TRAINS)
    world.write("search.yaml", SEARCH)
    calm = world.reaches(start(world)["id"], "succeeded")
    wanted = decisions(journal(world, calm))
    assert {record["answer"]["trial"] for record in journal(world, calm) if record["kind"] == "asked"} == {
        str(n) for n in range(5)
    }
    run = start(world)
    killed = []
    for what in ("driver", "server", "replica", "parent", "everything", "driver", "server"):
        time.sleep(moment.random())
        if what == "everything":
            world.kill_everything()
        else:
            pid = process_of(world, run, what)
            if not pid:
                break
            kill(pid)
        killed.append(what)
    print("killed:", killed)
    assert len(killed) >= 4
    ended = world.reaches(run["id"], "succeeded")
    records = journal(world, ended)
    assert decisions(records) == wanted
    assert ended["summary"] == calm["summary"]
    assert sum(record["kind"] == "done" for record in records) == 1
    for trial in range(5):  # curves have every point once
        assert world.series(ended, f"acc/{trial}") == world.series(calm, f"acc/{trial}")
    assert world.series(ended, "best/acc") == world.series(calm, "best/acc")
    made = world.get("/runs", parent=ended["id"])["runs"]
    assert len(made) == len(world.get("/runs", parent=calm["id"])["runs"])
    assert {one["phase"] for one in made} == {"succeeded"}


def test_a_stopped_study_leaves_no_trial_behind(world: World) -> None:
    world.write("train.py", TRAINS.replace("0.03", "30"))
    world.write("search.yaml", SEARCH.replace("concurrent: 1", "concurrent: 2"))
    run = start(world)
    until(lambda: len(world.get("/runs", parent=run["id"], phase="running")["runs"]) == 2, "two trials")
    world.ok("stop", run["name"])
    world.reaches(run["id"], "cancelled")
    until(
        lambda: all(one["phase"] == "cancelled" for one in world.get("/runs", parent=run["id"])["runs"]),
        "the end of the trials",
    )
    again = start(world)
    until(lambda: world.get("/runs", parent=again["id"], phase="running")["runs"], "a trial")
    kill(process_of(world, again, "driver"))
    kill(world.server_pid())
    world.ok("stop", again["name"])
    world.reaches(again["id"], "cancelled")
    until(
        lambda: all(one["phase"] == "cancelled" for one in world.get("/runs", parent=again["id"])["runs"]),
        "the end of the trials",
    )
    assert json.loads(world.ok("ps", "--json").out) == []


@seeded
def test_hopping_trials_go_on_whatever_is_killed(world: World) -> None:
    moment = chance(47)
    hopping(world)
    world.write("search.yaml", MOP)
    run = start(world)

    def hops(many: int) -> bool:
        return sum(record["kind"] == "hop" for record in journal(world, run)) >= many

    killed = []
    for number, what in enumerate(("worker", "driver", "everything", "driver"), 1):
        until(lambda number=number: hops(4 * number), "some hops")  # type: ignore[misc]
        time.sleep(moment.random() * 0.3)
        if what == "everything":
            world.kill_everything()
        elif what == "worker":
            kill(world.state(world.run(run["id"]), rank=2)["child_pid"])
        else:
            pid = process_of(world, run, what)
            if not pid:
                break
            kill(pid)
        killed.append(what)
    print("killed:", killed)
    assert len(killed) >= 3
    ended = world.reaches(run["id"], "succeeded")
    assert ended["attempt"]["number"] == 2, (
        "the loss of a worker, or of the driver's process, costs no attempt"
    )
    told = [(r["report"]["trial"], r["report"]["step"]) for r in journal(world, ended) if r["kind"] == "told"]
    assert sorted(told) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    assert ended["summary"]["loss"] == min(
        r["report"]["value"] for r in journal(world, ended) if r["kind"] == "told"
    )
    assert ended["summary"]["trials_failed"] == 0


def test_hopping_trials_make_room_and_no_epoch_is_repeated(world: World) -> None:
    hopping(world)
    world.write("search.yaml", MOP)
    run = start(world)
    until(lambda: sum(record["kind"] == "hop" for record in journal(world, run)) >= 6, "some hops")
    world.ok("node", "drain", "box")
    until(lambda: world.run(run["id"])["phase"] == "queued", "a study that waits")
    world.ok("node", "uncordon", "box")
    ended = world.reaches(run["id"], "succeeded")
    records = journal(world, ended)
    assert [one["exit"] and one["exit"]["kind"] for one in ended["attempts"]] == ["preempted", "exit-code"]
    hops = [(r["trial"], r["epoch"], part) for r in records if r["kind"] == "hop" for part in r["partitions"]]
    assert set(hops) == {
        (str(trial), epoch, part) for trial in range(4) for epoch in range(4) for part in range(2)
    }
    chart = world.ok("search", "gantt", run["name"], "--json").json
    (pause,) = chart["breaks"]
    assert all(
        unit["to_s"] <= pause["from_s"] or unit["from_s"] >= pause["to_s"]
        for worker in chart["workers"]
        for unit in worker["units"]
    )
    assert len(hops) <= len(set(hops)) + 4, "of each trial, at most what it had done of the epoch under way"
    assert not (world.home.root / "partitions").exists(), (
        "indexes that one run writes lie where no other reads them"
    )
