"""kill -9 of any process of a study at any moment: its trials, parameters and verdicts equal those of an
uninterrupted study."""

from __future__ import annotations

import json
import time

import pytest

from tests.exploration import seeded

from .server_home import ServerHome, kill, seeded_random, wait_until
from .study_fixtures import (
    MOP,
    SEARCH,
    TRAIN_SCRIPT,
    push_mop_study,
    read_journal,
    search_decisions,
    start_study,
    wait_for_process,
)


@pytest.mark.slow
@seeded
def test_study_is_identical_after_any_kill(server_home: ServerHome) -> None:
    moment = seeded_random(31)
    server_home.write("train.py", TRAIN_SCRIPT)
    server_home.write("search.yaml", SEARCH)
    uninterrupted = server_home.wait_for_phase(start_study(server_home)["id"], "succeeded")
    expected = search_decisions(read_journal(server_home, uninterrupted))
    assert {
        record["answer"]["trial"]
        for record in read_journal(server_home, uninterrupted)
        if record["kind"] == "asked"
    } == {str(n) for n in range(5)}
    run = start_study(server_home)
    killed = []
    for role in ("driver", "server", "replica", "parent", "everything", "driver", "server"):
        time.sleep(moment.random())
        if role == "everything":
            server_home.kill_everything()
        else:
            pid = wait_for_process(server_home, run, role)
            if not pid:
                break
            kill(pid)
        killed.append(role)
    print("killed:", killed)
    assert len(killed) >= 4
    ended = server_home.wait_for_phase(run["id"], "succeeded")
    records = read_journal(server_home, ended)
    assert search_decisions(records) == expected
    assert ended["summary"] == uninterrupted["summary"]
    assert sum(record["kind"] == "done" for record in records) == 1
    for trial in range(5):  # curves have every point exactly once
        assert server_home.metric_series(ended, f"acc/{trial}") == server_home.metric_series(
            uninterrupted, f"acc/{trial}"
        )
    assert server_home.metric_series(ended, "best/acc") == server_home.metric_series(
        uninterrupted, "best/acc"
    )
    trials = server_home.get("/runs", parent=ended["id"])["runs"]
    assert len(trials) == len(server_home.get("/runs", parent=uninterrupted["id"])["runs"])
    assert {run["phase"] for run in trials} == {"succeeded"}


def test_stopped_study_leaves_no_trial(server_home: ServerHome) -> None:
    server_home.write("train.py", TRAIN_SCRIPT.replace("0.03", "30"))
    server_home.write("search.yaml", SEARCH.replace("concurrent: 1", "concurrent: 2"))
    run = start_study(server_home)
    wait_until(
        lambda: len(server_home.get("/runs", parent=run["id"], phase="running")["runs"]) == 2, "two trials"
    )
    server_home.ok("stop", run["name"])
    server_home.wait_for_phase(run["id"], "cancelled")
    wait_until(
        lambda: all(
            trial["phase"] == "cancelled" for trial in server_home.get("/runs", parent=run["id"])["runs"]
        ),
        "the end of the trials",
    )
    second_study = start_study(server_home)
    wait_until(
        lambda: server_home.get("/runs", parent=second_study["id"], phase="running")["runs"], "a trial"
    )
    kill(wait_for_process(server_home, second_study, "driver"))
    kill(server_home.server_pid())
    server_home.ok("stop", second_study["name"])
    server_home.wait_for_phase(second_study["id"], "cancelled")
    wait_until(
        lambda: all(
            trial["phase"] == "cancelled"
            for trial in server_home.get("/runs", parent=second_study["id"])["runs"]
        ),
        "the end of the trials",
    )
    assert json.loads(server_home.ok("ps", "--json").stdout) == []


@seeded
def test_mop_study_continues_after_any_kill(server_home: ServerHome) -> None:
    moment = seeded_random(47)
    push_mop_study(server_home)
    server_home.write("search.yaml", MOP)
    run = start_study(server_home)

    def hops(many: int) -> bool:
        return sum(record["kind"] == "hop" for record in read_journal(server_home, run)) >= many

    killed = []
    for number, role in enumerate(("worker", "driver", "everything", "driver"), 1):
        wait_until(lambda number=number: hops(4 * number), "some hops")  # type: ignore[misc]
        time.sleep(moment.random() * 0.3)
        if role == "everything":
            server_home.kill_everything()
        elif role == "worker":
            kill(server_home.replica_status(server_home.run(run["id"]), rank=2)["child_pid"])
        else:
            pid = wait_for_process(server_home, run, role)
            if not pid:
                break
            kill(pid)
        killed.append(role)
    print("killed:", killed)
    assert len(killed) >= 3
    ended = server_home.wait_for_phase(run["id"], "succeeded")
    assert ended["attempt"]["number"] == 2, (
        "the loss of a worker, or of the driver's process, costs no attempt"
    )
    reports = [
        (r["report"]["trial"], r["report"]["step"])
        for r in read_journal(server_home, ended)
        if r["kind"] == "told"
    ]
    assert sorted(reports) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    assert ended["summary"]["loss"] == min(
        r["report"]["value"] for r in read_journal(server_home, ended) if r["kind"] == "told"
    )
    assert ended["summary"]["trials_failed"] == 0


def test_preempted_mop_study_repeats_no_epoch(server_home: ServerHome) -> None:
    push_mop_study(server_home)
    server_home.write("search.yaml", MOP)
    run = start_study(server_home)
    wait_until(
        lambda: sum(record["kind"] == "hop" for record in read_journal(server_home, run)) >= 6, "some hops"
    )
    server_home.ok("node", "drain", "box")
    wait_until(lambda: server_home.run(run["id"])["phase"] == "queued", "a study that waits")
    server_home.ok("node", "uncordon", "box")
    ended = server_home.wait_for_phase(run["id"], "succeeded")
    records = read_journal(server_home, ended)
    assert [attempt["exit"] and attempt["exit"]["kind"] for attempt in ended["attempts"]] == [
        "preempted",
        "exit-code",
    ]
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
