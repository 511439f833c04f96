"""A stopped, failed or finished study resumes in a new run from its exact state. Lost or hanging workers are
replaced without a new run."""

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
    push_mop_study,
    read_journal,
    search_decisions,
    start_study,
    wait_for_process,
)

ONE_AT_A_TIME = (
    MOP.replace("workers: 2", "workers: 1\nconcurrent: 1")
    .replace("{validation: 0.2}", "{parts: 3, validation: 0.2}")
    .replace("trials: 4", "trials: 3")
)


@pytest.fixture
def mop_home(server_home: ServerHome) -> ServerHome:
    push_mop_study(server_home)
    return server_home


def resume_study(server_home: ServerHome, *words: str) -> Any:
    return server_home.run(server_home.ok("search", "resume", *words, "--detach").stdout.strip())


def stop_study_after(server_home: ServerHome, run: Any, kind: str, count: int) -> Any:
    wait_until(
        lambda: sum(record["kind"] == kind for record in read_journal(server_home, run)) >= count,
        f"{count} records {kind}",
    )
    driver = wait_for_process(server_home, run, "driver")
    assert driver, "the study has ended before it was stopped"
    os.kill(driver, signal.SIGSTOP)  # or it may finish while the command starts
    server_home.ok("stop", run["name"])
    os.kill(driver, signal.SIGCONT)
    return server_home.wait_for_phase(run["id"], "stopping", "cancelled")  # resume waits for a stopping study


def digests_of_hops(records: list[dict[str, Any]]) -> dict[tuple[str, int, int], set[str]]:
    """Returns the digests of the states after each hop."""
    digests = {record["state"]: record["digest"] for record in records if record["kind"] == "named"}
    digests_by_hop: dict[tuple[str, int, int], set[str]] = {}
    for record in records:
        if record["kind"] == "hop" and record["state"] in digests:
            digests_by_hop.setdefault((record["trial"], record["epoch"], record["partitions"][0]), set()).add(
                digests[record["state"]]
            )
    return digests_by_hop


@pytest.mark.slow
def test_resumed_study_is_bit_identical_to_uninterrupted_study(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", ONE_AT_A_TIME)
    uninterrupted = mop_home.wait_for_phase(start_study(mop_home)["id"], "succeeded")
    run = start_study(mop_home)
    first = stop_study_after(mop_home, run, "hop", 5)
    second = stop_study_after(
        mop_home, resume_study(mop_home, first["name"]), "hop", 15
    )  # in the middle of the second trial
    last = resume_study(mop_home)
    assert last["spec"]["forked_from"] == second["id"]
    wait_until(
        lambda: [
            record
            for record in read_journal(mop_home, last)
            if record["kind"] == "continued" and record["run"] == second["id"]
        ],
        "its beginning",
    )
    mop_home.ok("rm", "-y", first["name"], second["name"])  # no longer needed then
    ended = mop_home.wait_for_phase(last["id"], "succeeded")
    records = read_journal(mop_home, ended)
    assert search_decisions(records) == search_decisions(read_journal(mop_home, uninterrupted))
    assert digests_of_hops(records) == digests_of_hops(read_journal(mop_home, uninterrupted))
    assert len(digests_of_hops(records)) == 3 * 4 * 3
    assert all(len(digests) == 1 for digests in digests_of_hops(records).values())
    assert Counter(record["kind"] for record in records)["hop"] <= 3 * 4 * 3 + 2, (
        "what was under way, and nothing else"
    )
    assert ended["summary"] == uninterrupted["summary"]
    assert mop_home.metric_series(ended, "loss/1") == mop_home.metric_series(uninterrupted, "loss/1")
    assert mop_home.ok("search", "replay", ended["name"]).stdout.startswith("the same, bit for bit")


@pytest.mark.slow
def test_stopped_study_on_two_workers_is_replayed_bit_for_bit(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", MOP)
    stopped = stop_study_after(mop_home, start_study(mop_home), "hop", 9)
    ended = mop_home.wait_for_phase(resume_study(mop_home, stopped["name"])["id"], "succeeded")
    assert mop_home.ok("search", "replay").stdout.startswith("the same, bit for bit")
    reports = [
        (r["report"]["trial"], r["report"]["step"])
        for r in read_journal(mop_home, ended)
        if r["kind"] == "told"
    ]
    assert sorted(reports) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    output = mop_home.ok("search", "show", ended["name"]).stdout
    assert f"continues {stopped['name']}" in output
    assert f"continues {stopped['name']}" in mop_home.ok("search", "ls", "-a").stdout
    best = mop_home.ok("search", "show", ended["name"], "--json").json
    assert (best["continues"], best["done"], best["resumed"]) == (stopped["name"], True, 1)


@pytest.mark.slow
def test_study_cancelled_before_start_can_be_resumed(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", MOP)
    first = stop_study_after(mop_home, start_study(mop_home), "told", 4)
    mop_home.wait_for_phase(first["id"], "cancelled")
    mop_home.write("sleep.py", "import time\ntime.sleep(3600)\n")
    full = mop_home.wait_for_phase(mop_home.run_detached("sleep.py", "--cpus", "4"), "running")
    waits = resume_study(mop_home, first["name"])
    mop_home.ok("stop", waits["name"])
    assert mop_home.wait_for_phase(waits["id"], "cancelled")["attempts"] == []
    last = resume_study(mop_home, waits["name"])
    mop_home.ok("stop", full["name"])
    records = read_journal(mop_home, mop_home.wait_for_phase(last["id"], "succeeded"))
    mark = next(at for at, record in enumerate(records) if record["kind"] == "continued")
    assert records[:mark] == read_journal(mop_home, first)
    assert reported_steps(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    full = mop_home.wait_for_phase(mop_home.run_detached("sleep.py", "--cpus", "4"), "running")
    late = resume_study(mop_home, waits["name"])
    mop_home.ok("rm", "-y", first["name"])
    mop_home.ok("stop", full["name"])
    assert (
        "was deleted before this study started"
        in mop_home.wait_for_phase(late["id"], "failed")["exit"]["reason"]
    )


@pytest.mark.slow
def test_finished_study_accepts_more_trials_unless_grid(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", MOP)
    done = mop_home.wait_for_phase(start_study(mop_home)["id"], "succeeded")
    result = mop_home.hop("search", "resume")
    assert result.code != 0 and "already finished" in result.stderr and "--trials" in result.stderr
    assert "must be greater (got 4)" in mop_home.hop("search", "resume", "--trials", "4").stderr
    assert "4 trials have already begun" in mop_home.hop("search", "resume", "--trials", "2").stderr
    more = mop_home.wait_for_phase(resume_study(mop_home, "--trials", "6")["id"], "succeeded")
    records = read_journal(mop_home, more)
    assert search_decisions(records)[
        : len(search_decisions(read_journal(mop_home, done)))
    ] == search_decisions(read_journal(mop_home, done))
    assert {record["answer"]["trial"] for record in records if record["kind"] == "asked"} == {
        str(n) for n in range(6)
    }
    assert mop_home.ok("search", "replay").stdout.startswith("the same, bit for bit: 48 hops of 6 trials")
    mop_home.write("search.yaml", MOP.replace("random", "{name: grid, points: 2}").replace("trials: 4\n", ""))
    mop_home.wait_for_phase(start_study(mop_home)["id"], "succeeded")
    assert "cannot propose more than 2 trials" in mop_home.hop("search", "resume", "--trials", "6").stderr


def test_resume_waits_for_stopping_study_and_may_change_queue(
    server_home: ServerHome,
) -> None:
    server_home.write("train.py", TRAIN_SCRIPT)
    server_home.write("search.yaml", SEARCH)
    run = start_study(server_home)
    server_home.write("queues.yaml", "queues: {default: {}, night: {}}\n")
    server_home.ok("queue", "apply", "queues.yaml")
    driver = wait_for_process(server_home, run, "driver")
    os.kill(driver, signal.SIGSTOP)
    server_home.ok("stop", run["name"])
    assert server_home.run(run["id"])["phase"] == "stopping"
    resume_command = server_home.start_hop(
        "search", "resume", run["name"], "--queue", "night", "--priority", "70", "--detach"
    )
    assert resume_command.stderr is not None
    assert (
        resume_command.stderr.readline().decode()
        == f"{run['name']} is still stopping; it is resumed when it has stopped\n"
    )
    os.kill(driver, signal.SIGCONT)
    done = server_home.finish(resume_command)
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
    uninterrupted = server_home.wait_for_phase(start_study(server_home)["id"], "succeeded")
    run = start_study(server_home)
    live = server_home.hop("search", "resume", run["name"])
    assert live.code != 0 and "has not ended" in live.stderr
    first = stop_study_after(server_home, run, "told", 3)
    second = stop_study_after(server_home, resume_study(server_home, first["name"]), "told", 6)
    ended = server_home.wait_for_phase(resume_study(server_home)["id"], "succeeded")
    assert search_decisions(read_journal(server_home, ended)) == search_decisions(
        read_journal(server_home, uninterrupted)
    )
    assert ended["summary"] == uninterrupted["summary"]
    for trial in range(5):
        assert server_home.metric_series(ended, f"acc/{trial}") == server_home.metric_series(
            uninterrupted, f"acc/{trial}"
        )
    trials = [
        trial
        for study in (first, second, ended)
        for trial in server_home.get("/runs", parent=study["id"])["runs"]
    ]
    assert {run["phase"] for run in trials} <= {"succeeded", "cancelled"}
    assert any(
        trial["spec"]["resume"] for trial in server_home.get("/runs", parent=second["id"])["runs"]
    ) or any(trial["spec"]["resume"] for trial in server_home.get("/runs", parent=ended["id"])["runs"])
    assert "depend on the number of trials" in server_home.hop("search", "resume", "--trials", "50").stderr
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
    """The script trains beyond its budget, and only checkpoints from beyond the budget exist when the study
    is stopped."""
    mark = server_home.root / "mark"
    server_home.write("train.py", RUNS_ON.replace("MARK", repr(str(mark))))
    server_home.write(
        "search.yaml",
        SEARCH.replace("{name: asha, eta: 2}", "random")
        .replace("trials: 5", "trials: 1")
        .replace("epochs: 4", "epochs: 2"),
    )
    run = start_study(server_home)
    wait_until(mark.exists, "a script that is beyond its budget")
    stopped = stop_study_after(server_home, run, "told", 2)
    (trial,) = server_home.get("/runs", parent=run["id"])["runs"]
    server_home.wait_for_phase(trial["id"], "cancelled")
    assert (
        min(
            checkpoint["step"]
            for checkpoint in server_home.get(f"/runs/{trial['id']}/checkpoints")["checkpoints"]
        )
        > 2
    )
    ended = server_home.wait_for_phase(resume_study(server_home, stopped["name"])["id"], "succeeded")
    assert (
        "trial 0: all remaining checkpoints are from after epoch 2; it starts from the beginning"
        in server_home.log(ended, "stderr")
    )
    assert [
        (r["report"]["step"], r["report"]["value"])
        for r in read_journal(server_home, ended)
        if r["kind"] == "told"
    ] == [(1, 1), (2, 2)]
    assert [trial["spec"]["resume"] for trial in server_home.get("/runs", parent=ended["id"])["runs"]] == [
        None
    ]


@pytest.mark.slow
def test_trial_with_deleted_checkpoint_restarts_with_warning(server_home: ServerHome) -> None:
    """The interrupted run had saved no checkpoint, and its source checkpoint was deleted with the study."""
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
    uninterrupted = server_home.wait_for_phase(start_study(server_home)["id"], "succeeded")
    go.unlink()
    first = stop_study_after(server_home, start_study(server_home), "told", 3)
    run = resume_study(server_home, first["name"])
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
    ended = server_home.wait_for_phase(resume_study(server_home, run["name"])["id"], "succeeded")
    assert "that it went on from was deleted; it starts from the beginning" in server_home.log(
        ended, "stderr"
    )
    assert search_decisions(read_journal(server_home, ended)) == search_decisions(
        read_journal(server_home, uninterrupted)
    )


def test_failed_study_resumes_with_fixed_code(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", MOP)
    broken = TRAINABLE.replace(
        "def evaluate(state, partition, config):",
        "def evaluate(state, partition, config):\n    partition['z']",
    )
    mop_home.write("linear.py", broken)
    failed = mop_home.wait_for_phase(start_study(mop_home)["id"], "failed")
    mop_home.write("linear.py", TRAINABLE)
    mended = resume_study(mop_home, failed["name"], "--code", ".", "--trials", "6")
    ended = mop_home.wait_for_phase(mended["id"], "succeeded")
    result = {
        trial["trial"]: trial["state"]
        for trial in mop_home.ok("search", "show", ended["name"], "--json").json["trials"]
    }
    assert result == {**dict.fromkeys("0123", "failed"), "4": "completed", "5": "completed"}


def parent_pids(server_home: ServerHome, run: Any) -> list[int]:
    """Returns the pids of the supervisors of both workers."""
    return [server_home.replica_status(run, rank=rank)["child_pid"] for rank in (1, 2)]


def reported_steps(records: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((r["report"]["trial"], r["report"]["step"]) for r in records if r["kind"] == "told")


@pytest.mark.slow
def test_killed_workers_are_restarted_without_new_attempt(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", MOP)
    run = start_study(mop_home)
    wait_until(
        lambda: sum(record["kind"] == "hop" for record in read_journal(mop_home, run)) >= 4, "some hops"
    )
    for parent in parent_pids(mop_home, mop_home.run(run["id"])):
        kill(psutil.Process(parent).children()[0].pid)
    ended = mop_home.wait_for_phase(run["id"], "succeeded")
    assert ended["attempt"]["number"] == 1
    records = read_journal(mop_home, ended)
    assert reported_steps(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    joined = Counter(
        record["worker"] for record in records if record["kind"] == "worker" and record["event"] == "joined"
    )
    assert joined == {"worker-0": 2, "worker-1": 2}
    assert mop_home.ok("search", "replay").stdout.startswith("the same, bit for bit")


@pytest.mark.slow
def test_loss_of_all_workers_costs_one_attempt(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", MOP)
    run = start_study(mop_home)
    wait_until(
        lambda: sum(record["kind"] == "hop" for record in read_journal(mop_home, run)) >= 6, "some hops"
    )
    for parent in parent_pids(mop_home, mop_home.run(run["id"])):
        kill(parent)
    ended = mop_home.wait_for_phase(run["id"], "succeeded")
    assert [attempt["exit"]["kind"] for attempt in ended["attempts"]] == ["lost", "exit-code"]
    assert "all 2 workers exited" in ended["attempts"][0]["exit"]["reason"]
    records = read_journal(mop_home, ended)
    assert reported_steps(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]
    hops = Counter(
        (r["trial"], r["epoch"], part) for r in records if r["kind"] == "hop" for part in r["partitions"]
    )
    assert sum(hops.values()) <= 4 * 4 * 2 + 2, "what was under way, and nothing else"
    assert mop_home.ok("search", "replay").stdout.startswith("the same, bit for bit")


@pytest.mark.slow
def test_repeated_worker_losses_fail_study_with_reason(mop_home: ServerHome) -> None:
    mop_home.write(
        "linear.py",
        TRAINABLE.replace(
            "    time.sleep(0.15)", "    import os\n    os.kill(os.getppid(), 9)\n    time.sleep(60)"
        ),
    )
    mop_home.write("search.yaml", MOP)
    ended = mop_home.wait_for_phase(start_study(mop_home)["id"], "failed")
    assert (
        "all 2 workers exited" in ended["exit"]["reason"] and "killed by signal 9" in ended["exit"]["reason"]
    )
    assert [attempt["exit"]["kind"] for attempt in ended["attempts"]] == ["lost", "lost", "lost", "exit-code"]


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


def events_of_worker(records: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == "worker" and record["event"] == event]


def test_hanging_unit_is_retried_elsewhere_and_killed(mop_home: ServerHome) -> None:
    mark, rejoined = mop_home.root / "mark", mop_home.root / "rejoined"
    # the units of trial 1 take a second until its worker is back, or the study may end before
    waits = HANGS + (
        "    until = time.monotonic() + 1\n"
        "    while os.path.exists(MARK) and not os.path.exists(REJOINED) and time.monotonic() < until:\n"
        "        time.sleep(0.01)\n"
    )
    mop_home.write(
        "linear.py",
        waits.replace("HOW", "not os.path.exists(MARK)")
        .replace("MARK", repr(str(mark)))
        .replace("REJOINED", repr(str(rejoined))),
    )
    mop_home.write("search.yaml", MOP.replace("epochs: 4", "epochs: 20") + "unit_timeout: 2s\n")
    run = start_study(mop_home)
    wait_until(lambda: events_of_worker(read_journal(mop_home, run), "frozen"), "a frozen worker")
    (frozen,) = events_of_worker(read_journal(mop_home, run), "frozen")

    def count_joins() -> int:
        joins = events_of_worker(read_journal(mop_home, run), "joined")
        return sum(record["worker"] == frozen["worker"] for record in joins)

    wait_until(lambda: count_joins() == 2, "the worker that was killed")
    rejoined.touch()
    ended = mop_home.wait_for_phase(run["id"], "succeeded")
    records = read_journal(mop_home, ended)
    assert reported_steps(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 21)]
    assert events_of_worker(records, "frozen") == [frozen]
    assert "on one unit of trial 1, in epoch 2: its process is killed" in frozen["detail"]
    rank = int(frozen["worker"].removeprefix("worker-")) + 1
    assert "in hang" in mop_home.log(ended, "stderr", rank), "where it was"
    assert count_joins() == 2
    assert ended["attempt"]["number"] == 1


def test_hanging_unit_is_killed_after_driver_kill(mop_home: ServerHome) -> None:
    mark = mop_home.root / "mark"
    mop_home.write(
        "linear.py", HANGS.replace("HOW", "not os.path.exists(MARK)").replace("MARK", repr(str(mark)))
    )
    mop_home.write("search.yaml", MOP + "unit_timeout: 5s\n")
    run = start_study(mop_home)
    wait_until(mark.exists, "a unit that hangs")
    kill(wait_for_process(mop_home, run, "driver"))
    ended = mop_home.wait_for_phase(run["id"], "succeeded")
    records = read_journal(mop_home, ended)
    assert sum(record["kind"] == "worker" and record["event"] == "frozen" for record in records) == 1
    assert sum(record["kind"] == "hopper" for record in records) == 2, "two drivers"
    assert reported_steps(records) == [(str(trial), epoch) for trial in range(4) for epoch in range(1, 5)]


@pytest.mark.slow
def test_trial_that_always_hangs_fails_alone(mop_home: ServerHome) -> None:
    mop_home.write(
        "linear.py", HANGS.replace("HOW", "True").replace("MARK", repr(str(mop_home.root / "mark")))
    )
    mop_home.write("search.yaml", MOP + "unit_timeout: 1s\n")
    ended = mop_home.wait_for_phase(start_study(mop_home)["id"], "succeeded")
    trials = {
        trial["trial"]: trial
        for trial in mop_home.ok("search", "show", ended["name"], "--json").json["trials"]
    }
    assert {trial["state"] for name, trial in trials.items() if name != "1"} == {"completed"}
    assert trials["1"]["state"] == "failed" and trials["1"]["epoch"] == 1
    assert "it hangs, or `unit_timeout` is too short" in trials["1"]["error"]
