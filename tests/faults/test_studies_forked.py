"""The best model of a study is trained on in a fork: the same bits, whatever is killed or deleted
meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from .server_home import ServerHome, kill, wait_until
from .study_fixtures import MOP, SEARCH, TRAIN_SCRIPT, journal, process_of, push_mop_study, start
from .test_studies_resumed import states, stop_after

ALONE = (
    MOP.replace("workers: 2", "workers: 1")
    .replace("{validation: 0.2}", "{parts: 3, validation: 0.2}")
    .replace("trials: 4", "trials: 2")
    .replace("epochs: 4", "epochs: 2")
)


@pytest.fixture
def linear(server_home: ServerHome) -> ServerHome:
    push_mop_study(server_home)
    return server_home


def fork(server_home: ServerHome, *words: str) -> Any:
    return server_home.run(server_home.ok("fork", *words, "--detach").stdout.strip())


def begun(server_home: ServerHome, run: Any) -> dict[str, Any]:
    """What the only trial of a fork began with."""
    return next(record for record in journal(server_home, run) if record["kind"] == "begun")


def best(server_home: ServerHome, run: Any) -> dict[str, Any]:
    return [record for record in journal(server_home, run) if record["kind"] == "best"][-1]


def steps(server_home: ServerHome, run: Any) -> list[int]:
    return [record["report"]["step"] for record in journal(server_home, run) if record["kind"] == "told"]


def test_forked_study_is_bit_identical_after_kills(
    linear: ServerHome,
) -> None:
    linear.write("search.yaml", ALONE)
    study = linear.wait_for_phase(start(linear)["id"], "succeeded")
    told = best(linear, study)
    shared_home = linear.wait_for_phase(
        fork(linear, study["name"], "--checkpoint", "best", "-p", "lr=0.05", "--epochs", "3")["id"],
        "succeeded",
    )
    first = begun(linear, shared_home)
    assert (first["epoch"], first["budget"], first["params"]) == (
        told["step"],
        told["step"] + 3,
        {"lr": 0.05},
    )
    assert steps(linear, shared_home) == [told["step"] + n for n in (1, 2, 3)], "epochs count on"
    assert linear.metric_series(shared_home, "loss/0")[0] == steps(linear, shared_home)
    assert shared_home["summary"]["loss"] < study["summary"]["loss"]
    run = fork(linear, f"{study['name']}@best", "-p", "lr=0.05", "--epochs", "3")
    linear.ok("rm", "-y", study["name"])  # the fork has what it needs of it
    for many, what in ((1, "driver"), (3, "parent"), (5, "everything"), (6, "driver")):
        wait_until(
            lambda many=many: sum(one["kind"] == "hop" for one in journal(linear, run)) >= many,
            f"{many} hops",
        )  # type: ignore[misc]
        if what == "everything":
            linear.kill_everything()
        elif pid := process_of(linear, run, what):
            kill(pid)
    ended = linear.wait_for_phase(run["id"], "succeeded")
    assert (
        states(journal(linear, ended)) == states(journal(linear, shared_home))
        and len(states(journal(linear, shared_home))) == 9
    )
    assert ended["summary"] == shared_home["summary"]
    assert linear.metric_series(ended, "loss/0") == linear.metric_series(shared_home, "loss/0")
    assert linear.ok("search", "replay", ended["name"]).stdout.startswith("the same, bit for bit: ")
    assert linear.ok("search", "replay", "--trial", "0").code == 0
    board = linear.ok("board", "linear", "--metric", "loss").stdout
    assert shared_home["name"] in board and ended["name"] in board
    shown = linear.ok("search", "show", ended["name"]).stdout
    assert (
        f"trains on the best model of {study['name']}: trial {told['trial']} after epoch {told['step']}"
        in shown
        and "lr=0.05 in place of" in shown
    )
    assert f"forked from {study['name']}" in linear.ok("search", "ls", "-a").stdout
    assert f"the best model of {study['name']}" in linear.ok("info", ended["name"]).stdout


def test_forked_study_can_be_stopped_resumed_forked_and_replayed(linear: ServerHome) -> None:
    linear.write("search.yaml", ALONE.replace("trials: 2", "trials: 3").replace("epochs: 2", "epochs: 6"))
    first = stop_after(linear, start(linear), "told", 2)
    linear.wait_for_phase(first["id"], "cancelled")
    on = linear.run(linear.ok("search", "resume", first["name"], "--detach").stdout.strip())
    # it has saved nothing itself yet, unless it was quick
    asked = linear.ok("fork", f"{on['name']}@best", "--epochs", "8", "--detach")
    one = linear.run(asked.stdout.strip())
    assert f"from the best model of {on['name']}: trial " in asked.stderr
    stopped = stop_after(linear, one, "hop", 2)
    linear.wait_for_phase(stopped["id"], "cancelled")
    linear.ok("stop", on["name"])
    ended = linear.wait_for_phase(
        linear.run(linear.ok("search", "resume", stopped["name"], "--detach").stdout.strip())["id"],
        "succeeded",
    )
    begin = ended["spec"]["study"]["beginning"]
    assert steps(linear, ended) == [begin["epoch"] + n for n in range(1, 9)]
    assert linear.ok("search", "replay", ended["name"]).stdout.startswith("the same, bit for bit: 24 hops")
    assert f"continues {stopped['name']}" in linear.ok("search", "show", ended["name"]).stdout
    # as it was, from what it began with
    again = linear.wait_for_phase(fork(linear, ended["name"])["id"], "succeeded")
    assert again["spec"]["study"]["beginning"]["study"] == begin["study"]
    assert states(journal(linear, again)) == states(journal(linear, ended))
    third = linear.wait_for_phase(
        fork(linear, again["name"], "--checkpoint", "best", "--epochs", "1")["id"], "succeeded"
    )
    told = best(linear, again)
    assert (
        steps(linear, third) == [told["step"] + 1]
        and third["spec"]["study"]["beginning"]["value"] == told["value"]
    )
    assert linear.ok("search", "replay").stdout.startswith("the same, bit for bit: 3 hops")
    assert "there are no more trials" in linear.hop("search", "resume", third["name"], "--trials", "3").stderr


def test_fork_trains_on_two_workers_and_refuses_invalid_forks(linear: ServerHome) -> None:
    linear.write("search.yaml", MOP.replace("trials: 4", "trials: 2").replace("epochs: 4", "epochs: 2"))
    linear.write("sleep.py", "import time\ntime.sleep(3600)\n")
    full = linear.wait_for_phase(linear.run_detached("sleep.py", "--cpus", "4"), "running")
    study = start(linear)
    early = linear.hop("fork", study["name"], "--checkpoint", "best")
    assert early.code != 0 and "has saved no best model yet" in early.stderr and "up to 30 s" in early.stderr
    linear.ok("stop", full["name"])
    study = linear.wait_for_phase(study["id"], "succeeded")
    for words, said in (
        (("-p", "lrr=1"), "did you mean `lr`?"),
        (("-p", "lr=fast"), "params.lr: fast is not a number"),
        (("--epochs", "0"), "--epochs"),
    ):
        expect_error = linear.hop("fork", f"{study['name']}@best", *words)
        assert expect_error.code == 2 and said in expect_error.stderr, expect_error.stderr
    for words, said in (
        (("--checkpoint", "newest"), "--checkpoint best` to continue its best model"),
        (("-p", "lr=1"), "--checkpoint best -p K=V` to continue its best model with changes"),
        (("--epochs", "2"), "only the best model of a study"),
    ):
        expect_error = linear.hop("fork", study["name"], *words)
        assert expect_error.code == 2 and said in expect_error.stderr, expect_error.stderr
    done = linear.hop("fork", f"{study['name']}@best", "-p", "lr=0.05")
    assert done.code == 0, done.stderr
    assert linear.ok("search", "replay").stdout.startswith("the same, bit for bit: 4 hops of 1 trials")
    hops = [record for record in journal(linear, linear.run("last")) if record["kind"] == "hop"]
    assert {tuple(record["workers"]) for record in hops} == {("worker-0",), ("worker-1",)}
    told = linear.ok("diff", study["name"], "last").stdout
    assert "begins with" in told and "space.lr" in told and "-> 0.05" in told.replace("  ", " ")
    assert linear.run("last")["spec"]["label"] == "" and linear.run("linear")["id"] == study["id"], (
        "`linear@best` is the study's"
    )
    anew = linear.ok("fork", study["name"], "--detach")
    assert (
        "is searched anew; use `--checkpoint best` to continue the training of its best model" in anew.stderr
    )
    assert linear.run(anew.stdout.strip())["spec"]["study"]["beginning"] is None


def test_best_trial_of_study_with_runs_is_a_run(server_home: ServerHome) -> None:
    server_home.write("train.py", TRAIN_SCRIPT)
    server_home.write(
        "search.yaml", SEARCH.replace("trials: 5", "trials: 2").replace("{name: asha, eta: 2}", "random")
    )
    study = server_home.wait_for_phase(start(server_home)["id"], "succeeded")
    expect_error = server_home.hop("fork", f"{study['name']}@best")
    assert expect_error.code == 2 and "fork the run of its best trial: `hop fork " in expect_error.stderr
    trial = server_home.get("/runs", parent=study["id"])["runs"][0]
    assert (
        "`best` is the best model of a study, and " in server_home.hop("fork", f"{trial['name']}@best").stderr
    )
    step = server_home.get(f"/runs/{trial['id']}/checkpoints")["checkpoints"][-1]["step"]
    assert fork(server_home, f"{trial['name']}@{step}")["spec"]["resume"]["step"] == step
