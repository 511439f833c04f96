"""kill -9 of whatever drives a study, at any moment: it ends with the trials, params and verdicts of one to
which nothing happened."""

from __future__ import annotations

import json
import time

from tests.exploration import seeded

from .server_home import ServerHome, kill, seeded_random, wait_until
from .study_fixtures import MOP, SEARCH, TRAIN_SCRIPT, decisions, journal, process_of, push_mop_study, start


@seeded
def test_study_is_identical_after_any_kill(server_home: ServerHome) -> None:
    moment = seeded_random(31)
    server_home.write("train.py", TRAIN_SCRIPT)
    server_home.write("search.yaml", SEARCH)
    shared_home = server_home.wait_for_phase(start(server_home)["id"], "succeeded")
    wanted = decisions(journal(server_home, shared_home))
    assert {
        record["answer"]["trial"] for record in journal(server_home, shared_home) if record["kind"] == "asked"
    } == {str(n) for n in range(5)}
    run = start(server_home)
    killed = []
    for what in ("driver", "server", "replica", "parent", "everything", "driver", "server"):
        time.sleep(moment.random())
        if what == "everything":
            server_home.kill_everything()
        else:
            pid = process_of(server_home, run, what)
            if not pid:
                break
            kill(pid)
        killed.append(what)
    print("killed:", killed)
    assert len(killed) >= 4
    ended = server_home.wait_for_phase(run["id"], "succeeded")
    records = journal(server_home, ended)
    assert decisions(records) == wanted
    assert ended["summary"] == shared_home["summary"]
    assert sum(record["kind"] == "done" for record in records) == 1
    for trial in range(5):  # curves have every point once
        assert server_home.metric_series(ended, f"acc/{trial}") == server_home.metric_series(
            shared_home, f"acc/{trial}"
        )
    assert server_home.metric_series(ended, "best/acc") == server_home.metric_series(shared_home, "best/acc")
    made = server_home.get("/runs", parent=ended["id"])["runs"]
    assert len(made) == len(server_home.get("/runs", parent=shared_home["id"])["runs"])
    assert {one["phase"] for one in made} == {"succeeded"}


def test_stopped_study_leaves_no_trial(server_home: ServerHome) -> None:
    server_home.write("train.py", TRAIN_SCRIPT.replace("0.03", "30"))
    server_home.write("search.yaml", SEARCH.replace("concurrent: 1", "concurrent: 2"))
    run = start(server_home)
    wait_until(
        lambda: len(server_home.get("/runs", parent=run["id"], phase="running")["runs"]) == 2, "two trials"
    )
    server_home.ok("stop", run["name"])
    server_home.wait_for_phase(run["id"], "cancelled")
    wait_until(
        lambda: all(
            one["phase"] == "cancelled" for one in server_home.get("/runs", parent=run["id"])["runs"]
        ),
        "the end of the trials",
    )
    again = start(server_home)
    wait_until(lambda: server_home.get("/runs", parent=again["id"], phase="running")["runs"], "a trial")
    kill(process_of(server_home, again, "driver"))
    kill(server_home.server_pid())
    server_home.ok("stop", again["name"])
    server_home.wait_for_phase(again["id"], "cancelled")
    wait_until(
        lambda: all(
            one["phase"] == "cancelled" for one in server_home.get("/runs", parent=again["id"])["runs"]
        ),
        "the end of the trials",
    )
    assert json.loads(server_home.ok("ps", "--json").stdout) == []


@seeded
def test_mop_study_continues_after_any_kill(server_home: ServerHome) -> None:
    moment = seeded_random(47)
    push_mop_study(server_home)
    server_home.write("search.yaml", MOP)
    run = start(server_home)

    def hops(many: int) -> bool:
        return sum(record["kind"] == "hop" for record in journal(server_home, run)) >= many

    killed = []
    for number, what in enumerate(("worker", "driver", "everything", "driver"), 1):
        wait_until(lambda number=number: hops(4 * number), "some hops")  # type: ignore[misc]
        time.sleep(moment.random() * 0.3)
        if what == "everything":
            server_home.kill_everything()
        elif what == "worker":
            kill(server_home.replica_status(server_home.run(run["id"]), rank=2)["child_pid"])
        else:
            pid = process_of(server_home, run, what)
            if not pid:
                break
            kill(pid)
        killed.append(what)
    print("killed:", killed)
    assert len(killed) >= 3
    ended = server_home.wait_for_phase(run["id"], "succeeded")
    assert ended["attempt"]["number"] == 2, (
        "the loss of a worker, or of the driver's process, costs no attempt"
    )
    told = [
        (r["report"]["trial"], r["report"]["step"])
        for r in journal(server_home, ended)
        if r["kind"] == "told"
    ]
    assert sorted(told) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    assert ended["summary"]["loss"] == min(
        r["report"]["value"] for r in journal(server_home, ended) if r["kind"] == "told"
    )
    assert ended["summary"]["trials_failed"] == 0


def test_preempted_mop_study_repeats_no_epoch(server_home: ServerHome) -> None:
    push_mop_study(server_home)
    server_home.write("search.yaml", MOP)
    run = start(server_home)
    wait_until(lambda: sum(record["kind"] == "hop" for record in journal(server_home, run)) >= 6, "some hops")
    server_home.ok("node", "drain", "box")
    wait_until(lambda: server_home.run(run["id"])["phase"] == "queued", "a study that waits")
    server_home.ok("node", "uncordon", "box")
    ended = server_home.wait_for_phase(run["id"], "succeeded")
    records = journal(server_home, ended)
    assert [one["exit"] and one["exit"]["kind"] for one in ended["attempts"]] == ["preempted", "exit-code"]
    hops = [(r["trial"], r["epoch"], part) for r in records if r["kind"] == "hop" for part in r["partitions"]]
    assert set(hops) == {
        (str(trial), epoch, part) for trial in range(4) for epoch in range(4) for part in range(2)
    }
    chart = server_home.ok("search", "gantt", run["name"], "--json").json
    (pause,) = chart["breaks"]
    assert all(
        unit["to_s"] <= pause["from_s"] or unit["from_s"] >= pause["to_s"]
        for worker in chart["workers"]
        for unit in worker["units"]
    )
    assert len(hops) <= len(set(hops)) + 4, "of each trial, at most what it had done of the epoch under way"
    assert not (server_home.home.root / "partitions").exists(), (
        "indexes that one run writes lie where no other reads them"
    )
