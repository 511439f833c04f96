"""A study that was stopped, has failed or has finished goes on in a new run, exactly where it was; one that
lost its workers, or whose workers hang, by itself."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import psutil
import pytest

from .server_home import ServerHome, kill, wait_until
from .study_fixtures import (
    MOP,
    SEARCH,
    TRAIN_SCRIPT,
    TRAINABLE,
    decisions,
    journal,
    process_of,
    push_mop_study,
    start,
)

ONE_AT_A_TIME = (
    MOP.replace("workers: 2", "workers: 1\nconcurrent: 1")
    .replace("{validation: 0.2}", "{parts: 3, validation: 0.2}")
    .replace("trials: 4", "trials: 3")
)


@pytest.fixture
def linear(server_home: ServerHome) -> ServerHome:
    push_mop_study(server_home)
    return server_home


def resume(server_home: ServerHome, *words: str) -> Any:
    return server_home.run(server_home.ok("search", "resume", *words, "--detach").stdout.strip())


def stop_after(server_home: ServerHome, run: Any, kind: str, many: int) -> Any:
    wait_until(
        lambda: sum(record["kind"] == kind for record in journal(server_home, run)) >= many,
        f"{many} records {kind}",
    )
    server_home.ok("stop", run["name"])
    return server_home.wait_for_phase(
        run["id"], "stopping", "cancelled"
    )  # one that is being stopped is waited for


def states(records: list[dict[str, Any]]) -> dict[tuple[str, int, int], set[str]]:
    """The digests of what each hop came to."""
    digests = {record["state"]: record["digest"] for record in records if record["kind"] == "named"}
    made: dict[tuple[str, int, int], set[str]] = {}
    for record in records:
        if record["kind"] == "hop" and record["state"] in digests:
            made.setdefault((record["trial"], record["epoch"], record["partitions"][0]), set()).add(
                digests[record["state"]]
            )
    return made


def test_resumed_study_is_bit_identical_to_uninterrupted_study(linear: ServerHome) -> None:
    linear.write("search.yaml", ONE_AT_A_TIME)
    shared_home = linear.wait_for_phase(start(linear)["id"], "succeeded")
    run = start(linear)
    first = stop_after(linear, run, "hop", 5)
    second = stop_after(linear, resume(linear, first["name"]), "hop", 15)  # in the middle of the second trial
    last = resume(linear)
    assert last["spec"]["forked_from"] == second["id"]
    wait_until(
        lambda: [
            record
            for record in journal(linear, last)
            if record["kind"] == "continued" and record["run"] == second["id"]
        ],
        "its beginning",
    )
    linear.ok("rm", "-y", first["name"], second["name"])  # nothing of them is needed then
    ended = linear.wait_for_phase(last["id"], "succeeded")
    records = journal(linear, ended)
    assert decisions(records) == decisions(journal(linear, shared_home))
    assert states(records) == states(journal(linear, shared_home))
    assert len(states(records)) == 3 * 4 * 3
    assert all(len(found) == 1 for found in states(records).values())
    assert Counter(record["kind"] for record in records)["hop"] <= 3 * 4 * 3 + 2, (
        "what was under way, and nothing else"
    )
    assert ended["summary"] == shared_home["summary"]
    assert linear.metric_series(ended, "loss/1") == linear.metric_series(shared_home, "loss/1")
    assert linear.ok("search", "replay", ended["name"]).stdout.startswith("the same, bit for bit")


def test_stopped_study_on_two_workers_is_replayed_bit_for_bit(linear: ServerHome) -> None:
    linear.write("search.yaml", MOP)
    stopped = stop_after(linear, start(linear), "hop", 9)
    ended = linear.wait_for_phase(resume(linear, stopped["name"])["id"], "succeeded")
    assert linear.ok("search", "replay").stdout.startswith("the same, bit for bit")
    told = [
        (r["report"]["trial"], r["report"]["step"]) for r in journal(linear, ended) if r["kind"] == "told"
    ]
    assert sorted(told) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    shown = linear.ok("search", "show", ended["name"]).stdout
    assert f"continues {stopped['name']}" in shown
    assert f"continues {stopped['name']}" in linear.ok("search", "ls", "-a").stdout
    best = linear.ok("search", "show", ended["name"], "--json").json
    assert (best["continues"], best["done"], best["resumed"]) == (stopped["name"], True, 1)


def test_study_cancelled_before_start_can_be_resumed(linear: ServerHome) -> None:
    linear.write("search.yaml", MOP)
    first = stop_after(linear, start(linear), "told", 4)
    linear.wait_for_phase(first["id"], "cancelled")
    linear.write("sleep.py", "import time\ntime.sleep(3600)\n")
    full = linear.wait_for_phase(linear.run_detached("sleep.py", "--cpus", "4"), "running")
    waits = resume(linear, first["name"])
    linear.ok("stop", waits["name"])
    assert linear.wait_for_phase(waits["id"], "cancelled")["attempts"] == []
    last = resume(linear, waits["name"])
    linear.ok("stop", full["name"])
    records = journal(linear, linear.wait_for_phase(last["id"], "succeeded"))
    mark = next(at for at, record in enumerate(records) if record["kind"] == "continued")
    assert records[:mark] == journal(linear, first)
    assert told_of(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    full = linear.wait_for_phase(linear.run_detached("sleep.py", "--cpus", "4"), "running")
    late = resume(linear, waits["name"])
    linear.ok("rm", "-y", first["name"])
    linear.ok("stop", full["name"])
    assert (
        "was deleted before this study started"
        in linear.wait_for_phase(late["id"], "failed")["exit"]["reason"]
    )


def test_finished_study_accepts_more_trials_unless_grid(linear: ServerHome) -> None:
    linear.write("search.yaml", MOP)
    done = linear.wait_for_phase(start(linear)["id"], "succeeded")
    expect_error = linear.hop("search", "resume")
    assert (
        expect_error.code != 0
        and "already finished" in expect_error.stderr
        and "--trials" in expect_error.stderr
    )
    assert "must be greater (got 4)" in linear.hop("search", "resume", "--trials", "4").stderr
    assert "4 trials were begun" in linear.hop("search", "resume", "--trials", "2").stderr
    more = linear.wait_for_phase(resume(linear, "--trials", "6")["id"], "succeeded")
    records = journal(linear, more)
    assert decisions(records)[: len(decisions(journal(linear, done)))] == decisions(journal(linear, done))
    assert {record["answer"]["trial"] for record in records if record["kind"] == "asked"} == {
        str(n) for n in range(6)
    }
    assert linear.ok("search", "replay").stdout.startswith("the same, bit for bit: 48 hops of 6 trials")
    linear.write("search.yaml", MOP.replace("random", "{name: grid, points: 2}").replace("trials: 4\n", ""))
    linear.wait_for_phase(start(linear)["id"], "succeeded")
    assert "nothing more to propose after 2 trials" in linear.hop("search", "resume", "--trials", "6").stderr


def test_resume_waits_for_stopping_study_and_may_change_queue(
    server_home: ServerHome,
) -> None:
    server_home.write("train.py", TRAIN_SCRIPT)
    server_home.write("search.yaml", SEARCH)
    run = start(server_home)
    server_home.write("queues.yaml", "queues: {default: {}, night: {}}\n")
    server_home.ok("queue", "apply", "queues.yaml")
    driver = process_of(server_home, run, "driver")
    os.kill(driver, signal.SIGSTOP)
    server_home.ok("stop", run["name"])
    assert server_home.run(run["id"])["phase"] == "stopping"
    asked = server_home.start_hop(
        "search", "resume", run["name"], "--queue", "night", "--priority", "70", "--detach"
    )
    assert asked.stderr is not None
    assert (
        asked.stderr.readline().decode() == f"{run['name']} is still stopping; it goes on once that is over\n"
    )
    os.kill(driver, signal.SIGCONT)
    done = server_home.finish(asked)
    assert done.code == 0, done.stderr
    on = server_home.run(done.stdout.strip())
    assert (on["spec"]["queue"], on["spec"]["priority"], on["spec"]["forked_from"]) == (
        "night",
        70,
        run["id"],
    )
    assert (
        "--priority: 600 is not from 0 to 100"
        in server_home.hop("search", "resume", run["name"], "--priority", "600").stderr
    )
    assert "no queue" in server_home.hop("search", "resume", run["name"], "--queue", "nihgt").stderr
    (trial, *_) = wait_until(lambda: server_home.get("/runs", parent=on["id"])["runs"], "a trial")
    assert (trial["spec"]["queue"], trial["spec"]["priority"]) == ("night", 70)


def test_trial_runs_resume_from_their_checkpoints(server_home: ServerHome) -> None:
    server_home.write("train.py", TRAIN_SCRIPT.replace("0.03", "0.15"))
    server_home.write("search.yaml", SEARCH)
    shared_home = server_home.wait_for_phase(start(server_home)["id"], "succeeded")
    run = start(server_home)
    live = server_home.hop("search", "resume", run["name"])
    assert live.code != 0 and "has not ended" in live.stderr
    first = stop_after(server_home, run, "told", 3)
    second = stop_after(server_home, resume(server_home, first["name"]), "told", 6)
    ended = server_home.wait_for_phase(resume(server_home)["id"], "succeeded")
    assert decisions(journal(server_home, ended)) == decisions(journal(server_home, shared_home))
    assert ended["summary"] == shared_home["summary"]
    for trial in range(5):
        assert server_home.metric_series(ended, f"acc/{trial}") == server_home.metric_series(
            shared_home, f"acc/{trial}"
        )
    made = [
        one
        for study in (first, second, ended)
        for one in server_home.get("/runs", parent=study["id"])["runs"]
    ]
    assert {one["phase"] for one in made} <= {"succeeded", "cancelled"}
    assert any(one["spec"]["resume"] for one in server_home.get("/runs", parent=second["id"])["runs"]) or any(
        one["spec"]["resume"] for one in server_home.get("/runs", parent=ended["id"])["runs"]
    )
    assert "decides by how many trials" in server_home.hop("search", "resume", "--trials", "50").stderr
    assert "no study" in server_home.hop("search", "resume", server_home.run_detached("train.py")).stderr


RUNS_ON = """
import os, time
import hopyard as hop

hop.params(lr=0.1, width=8)
state = {"done": 0}
hop.bind(state=state)
for epoch in hop.loop(range(10_000)):
    time.sleep(0.1)
    state["done"] += 1
    hop.log(acc=state["done"], step=epoch)
    if epoch == 2 and not os.path.exists(MARK):
        for more in (3, 4, 5):
            state["done"] += 1
            hop.log(acc=state["done"], step=more)
            hop.save(step=more + 1)
        open(MARK, "w")
        time.sleep(3600)  # no safe point comes any more
"""


def test_trial_never_resumes_beyond_reported_epoch(server_home: ServerHome) -> None:
    """Its script goes on beyond its budget, and only checkpoints from there are left when its study is
    stopped."""
    mark = server_home.root / "mark"
    server_home.write("train.py", RUNS_ON.replace("MARK", repr(str(mark))))
    server_home.write(
        "search.yaml",
        SEARCH.replace("{name: asha, eta: 2}", "random")
        .replace("trials: 5", "trials: 1")
        .replace("epochs: 4", "epochs: 2"),
    )
    run = start(server_home)
    wait_until(mark.exists, "a script that is beyond its budget")
    stopped = stop_after(server_home, run, "told", 2)
    (trial,) = server_home.get("/runs", parent=run["id"])["runs"]
    server_home.wait_for_phase(trial["id"], "cancelled")
    assert min(one["step"] for one in server_home.get(f"/runs/{trial['id']}/checkpoints")["checkpoints"]) > 2
    ended = server_home.wait_for_phase(resume(server_home, stopped["name"])["id"], "succeeded")
    assert (
        "trial 0: all remaining checkpoints are from after epoch 2; it starts from the beginning"
        in server_home.log(ended, "stderr")
    )
    assert [
        (r["report"]["step"], r["report"]["value"])
        for r in journal(server_home, ended)
        if r["kind"] == "told"
    ] == [(1, 1), (2, 2)]
    assert [one["spec"]["resume"] for one in server_home.get("/runs", parent=ended["id"])["runs"]] == [None]


def test_trial_with_deleted_checkpoint_restarts_with_warning(server_home: ServerHome) -> None:
    """The run that was cut short had saved nothing itself, and what it went on from went with its study."""
    go = server_home.root / "go"
    go.touch()
    waits = f"while state['done'] == 3 and not os.path.exists({str(go)!r}): time.sleep(0.02)"
    server_home.write(
        "train.py",
        TRAIN_SCRIPT.replace("import math, time", "import math, os, time").replace("time.sleep(0.03)", waits),
    )
    server_home.write(
        "search.yaml", SEARCH.replace("{name: asha, eta: 2}", "random").replace("trials: 5", "trials: 2")
    )
    shared_home = server_home.wait_for_phase(start(server_home)["id"], "succeeded")
    go.unlink()
    first = stop_after(server_home, start(server_home), "told", 3)
    run = resume(server_home, first["name"])
    wait_until(
        lambda: server_home.get("/runs", parent=run["id"], phase="running")["runs"], "a trial that goes on"
    )
    (trial,) = server_home.get("/runs", parent=run["id"])["runs"]
    assert trial["spec"]["resume"]
    server_home.ok("stop", run["name"])
    server_home.wait_for_phase(run["id"], "cancelled")
    server_home.wait_for_phase(trial["id"], "cancelled")
    go.touch()
    server_home.ok("rm", "-y", first["name"])
    ended = server_home.wait_for_phase(resume(server_home, run["name"])["id"], "succeeded")
    assert "that it went on from was deleted; it starts from the beginning" in server_home.log(
        ended, "stderr"
    )
    assert decisions(journal(server_home, ended)) == decisions(journal(server_home, shared_home))


def test_failed_study_resumes_with_fixed_code(linear: ServerHome) -> None:
    linear.write("search.yaml", MOP)
    broken = TRAINABLE.replace(
        "def evaluate(state, partition, config):",
        "def evaluate(state, partition, config):\n    partition['z']",
    )
    linear.write("linear.py", broken)
    failed = linear.wait_for_phase(start(linear)["id"], "failed")
    linear.write("linear.py", TRAINABLE)
    mended = resume(linear, failed["name"], "--code", ".", "--trials", "6")
    ended = linear.wait_for_phase(mended["id"], "succeeded")
    found = {
        trial["trial"]: trial["state"]
        for trial in linear.ok("search", "show", ended["name"], "--json").json["trials"]
    }
    assert found == {**dict.fromkeys("0123", "failed"), "4": "completed", "5": "completed"}


def parents(server_home: ServerHome, run: Any) -> list[int]:
    """What watches the processes of both workers."""
    return [server_home.replica_status(run, rank=rank)["child_pid"] for rank in (1, 2)]


def told_of(records: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((r["report"]["trial"], r["report"]["step"]) for r in records if r["kind"] == "told")


def test_killed_workers_are_restarted_without_new_attempt(linear: ServerHome) -> None:
    linear.write("search.yaml", MOP)
    run = start(linear)
    wait_until(lambda: sum(record["kind"] == "hop" for record in journal(linear, run)) >= 4, "some hops")
    for parent in parents(linear, linear.run(run["id"])):
        kill(psutil.Process(parent).children()[0].pid)
    ended = linear.wait_for_phase(run["id"], "succeeded")
    assert ended["attempt"]["number"] == 1
    records = journal(linear, ended)
    assert told_of(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    joined = Counter(
        record["worker"] for record in records if record["kind"] == "worker" and record["event"] == "joined"
    )
    assert joined == {"worker-0": 2, "worker-1": 2}
    assert linear.ok("search", "replay").stdout.startswith("the same, bit for bit")


def test_loss_of_all_workers_costs_one_attempt(linear: ServerHome) -> None:
    linear.write("search.yaml", MOP)
    run = start(linear)
    wait_until(lambda: sum(record["kind"] == "hop" for record in journal(linear, run)) >= 6, "some hops")
    for parent in parents(linear, linear.run(run["id"])):
        kill(parent)
    ended = linear.wait_for_phase(run["id"], "succeeded")
    assert [one["exit"]["kind"] for one in ended["attempts"]] == ["lost", "exit-code"]
    assert "all 2 workers exited" in ended["attempts"][0]["exit"]["reason"]
    records = journal(linear, ended)
    assert told_of(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    hops = Counter(
        (r["trial"], r["epoch"], part) for r in records if r["kind"] == "hop" for part in r["partitions"]
    )
    assert sum(hops.values()) <= 4 * 4 * 2 + 2, "what was under way, and nothing else"
    assert linear.ok("search", "replay").stdout.startswith("the same, bit for bit")


def test_repeated_worker_losses_fail_study_with_reason(linear: ServerHome) -> None:
    linear.write(
        "linear.py",
        TRAINABLE.replace(
            "    time.sleep(0.15)", "    import os\n    os.kill(os.getppid(), 9)\n    time.sleep(60)"
        ),
    )
    linear.write("search.yaml", MOP)
    ended = linear.wait_for_phase(start(linear)["id"], "failed")
    assert (
        "all 2 workers exited" in ended["exit"]["reason"] and "killed by signal 9" in ended["exit"]["reason"]
    )
    assert [one["exit"]["kind"] for one in ended["attempts"]] == ["lost", "lost", "lost", "exit-code"]


HANGS = (
    TRAINABLE.replace("    time.sleep(0.15)", "    hang(config)")
    + """
def hang(config):
    import os
    if config.trial == "1" and config.epoch == 1 and HOW:
        open(MARK, "a").write("x")
        time.sleep(3600)
"""
)


def test_hanging_unit_is_retried_elsewhere_and_killed(linear: ServerHome) -> None:
    mark = str(linear.root / "mark")
    linear.write("linear.py", HANGS.replace("HOW", "not os.path.exists(MARK)").replace("MARK", repr(mark)))
    linear.write("search.yaml", MOP + "unit_timeout: 2s\n")
    ended = linear.wait_for_phase(start(linear)["id"], "succeeded")
    records = journal(linear, ended)
    assert told_of(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    (frozen,) = [record for record in records if record["kind"] == "worker" and record["event"] == "frozen"]
    assert "on one unit of trial 1, in epoch 2: its process is killed" in frozen["detail"]
    rank = int(frozen["worker"].removeprefix("worker-")) + 1
    assert "in hang" in linear.log(ended, "stderr", rank), "where it was"
    joined = [
        record
        for record in records
        if record["kind"] == "worker" and record["event"] == "joined" and record["worker"] == frozen["worker"]
    ]
    assert len(joined) == 2
    assert ended["attempt"]["number"] == 1


def test_hanging_unit_is_killed_after_driver_kill(linear: ServerHome) -> None:
    mark = linear.root / "mark"
    linear.write(
        "linear.py", HANGS.replace("HOW", "not os.path.exists(MARK)").replace("MARK", repr(str(mark)))
    )
    linear.write("search.yaml", MOP + "unit_timeout: 5s\n")
    run = start(linear)
    wait_until(mark.exists, "a unit that hangs")
    kill(process_of(linear, run, "driver"))
    ended = linear.wait_for_phase(run["id"], "succeeded")
    records = journal(linear, ended)
    assert sum(record["kind"] == "worker" and record["event"] == "frozen" for record in records) == 1
    assert sum(record["kind"] == "hopper" for record in records) == 2, "two drivers"
    assert told_of(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]


def test_trial_that_always_hangs_fails_alone(linear: ServerHome) -> None:
    linear.write("linear.py", HANGS.replace("HOW", "True").replace("MARK", repr(str(linear.root / "mark"))))
    linear.write("search.yaml", MOP + "unit_timeout: 1s\n")
    ended = linear.wait_for_phase(start(linear)["id"], "succeeded")
    trials = {
        trial["trial"]: trial for trial in linear.ok("search", "show", ended["name"], "--json").json["trials"]
    }
    assert {trial["state"] for name, trial in trials.items() if name != "1"} == {"completed"}
    assert trials["1"]["state"] == "failed" and trials["1"]["epoch"] == 1
    assert "it hangs, or `unit_timeout` is too short" in trials["1"]["error"]
