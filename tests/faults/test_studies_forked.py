"""A fork continues to train the best model of a study: bit-identical after any kill or deletion."""

from __future__ import annotations

from typing import Any

import pytest

from .server_home import ServerHome, kill, wait_until
from .study_fixtures import (
    MOP,
    SEARCH,
    TRAIN_SCRIPT,
    push_mop_study,
    read_journal,
    start_study,
    wait_for_process,
)
from .test_studies_resumed import digests_of_hops, stop_study_after

ALONE = (
    MOP.replace("workers: 2", "workers: 1")
    .replace("{validation: 0.2}", "{parts: 3, validation: 0.2}")
    .replace("trials: 4", "trials: 2")
    .replace("epochs: 4", "epochs: 2")
)


@pytest.fixture
def mop_home(server_home: ServerHome) -> ServerHome:
    push_mop_study(server_home)
    return server_home


def fork_study(server_home: ServerHome, *words: str) -> Any:
    return server_home.run(server_home.ok("fork", *words, "--detach").stdout.strip())


def start_record(server_home: ServerHome, run: Any) -> dict[str, Any]:
    """Returns the start record of the only trial of a fork."""
    return next(record for record in read_journal(server_home, run) if record["kind"] == "begun")


def best_record(server_home: ServerHome, run: Any) -> dict[str, Any]:
    return [record for record in read_journal(server_home, run) if record["kind"] == "best"][-1]


def reported_steps(server_home: ServerHome, run: Any) -> list[int]:
    return [record["report"]["step"] for record in read_journal(server_home, run) if record["kind"] == "told"]


@pytest.mark.slow
def test_forked_study_is_bit_identical_after_kills(
    mop_home: ServerHome,
) -> None:
    mop_home.write("search.yaml", ALONE)
    study = mop_home.wait_for_phase(start_study(mop_home)["id"], "succeeded")
    best = best_record(mop_home, study)
    uninterrupted = mop_home.wait_for_phase(
        fork_study(mop_home, study["name"], "--checkpoint", "best", "-p", "lr=0.05", "--epochs", "3")["id"],
        "succeeded",
    )
    first = start_record(mop_home, uninterrupted)
    assert (first["epoch"], first["budget"], first["params"]) == (
        best["step"],
        best["step"] + 3,
        {"lr": 0.05},
    )
    assert reported_steps(mop_home, uninterrupted) == [best["step"] + n for n in (1, 2, 3)], "epochs count on"
    assert mop_home.metric_series(uninterrupted, "loss/0")[0] == reported_steps(mop_home, uninterrupted)
    assert uninterrupted["summary"]["loss"] < study["summary"]["loss"]
    run = fork_study(mop_home, f"{study['name']}@best", "-p", "lr=0.05", "--epochs", "3")
    mop_home.ok("rm", "-y", study["name"])  # the fork has its own copy
    for many, role in ((1, "driver"), (3, "parent"), (5, "everything"), (6, "driver")):
        wait_until(
            lambda many=many: sum(record["kind"] == "hop" for record in read_journal(mop_home, run)) >= many,
            f"{many} hops",
        )  # type: ignore[misc]
        if role == "everything":
            mop_home.kill_everything()
        elif pid := wait_for_process(mop_home, run, role):
            kill(pid)
    ended = mop_home.wait_for_phase(run["id"], "succeeded")
    expected = digests_of_hops(read_journal(mop_home, uninterrupted))
    assert digests_of_hops(read_journal(mop_home, ended)) == expected and len(expected) == 9
    assert ended["summary"] == uninterrupted["summary"]
    assert mop_home.metric_series(ended, "loss/0") == mop_home.metric_series(uninterrupted, "loss/0")
    assert mop_home.ok("search", "replay", ended["name"]).stdout.startswith("the same, bit for bit: ")
    assert mop_home.ok("search", "replay", "--trial", "0").code == 0
    board = mop_home.ok("board", "linear", "--metric", "loss").stdout
    assert uninterrupted["name"] in board and ended["name"] in board
    output = mop_home.ok("search", "show", ended["name"]).stdout
    assert (
        f"trains on the best model of {study['name']}: trial {best['trial']} after epoch {best['step']}"
        in output
        and "lr=0.05 in place of" in output
    )
    assert f"forked from {study['name']}" in mop_home.ok("search", "ls", "-a").stdout
    assert f"the best model of {study['name']}" in mop_home.ok("info", ended["name"]).stdout


@pytest.mark.slow
def test_forked_study_can_be_stopped_resumed_forked_and_replayed(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", ALONE.replace("trials: 2", "trials: 3").replace("epochs: 2", "epochs: 6"))
    first = stop_study_after(mop_home, start_study(mop_home), "told", 2)
    mop_home.wait_for_phase(first["id"], "cancelled")
    on = mop_home.run(mop_home.ok("search", "resume", first["name"], "--detach").stdout.strip())
    # it has saved nothing itself yet, unless it was quick
    forked = mop_home.ok("fork", f"{on['name']}@best", "--epochs", "8", "--detach")
    one = mop_home.run(forked.stdout.strip())
    assert f"from the best model of {on['name']}: trial " in forked.stderr
    stopped = stop_study_after(mop_home, one, "hop", 2)
    mop_home.wait_for_phase(stopped["id"], "cancelled")
    mop_home.ok("stop", on["name"])
    ended = mop_home.wait_for_phase(
        mop_home.run(mop_home.ok("search", "resume", stopped["name"], "--detach").stdout.strip())["id"],
        "succeeded",
    )
    begin = ended["spec"]["study"]["beginning"]
    assert reported_steps(mop_home, ended) == [begin["epoch"] + n for n in range(1, 9)]
    assert mop_home.ok("search", "replay", ended["name"]).stdout.startswith("the same, bit for bit: 24 hops")
    assert f"continues {stopped['name']}" in mop_home.ok("search", "show", ended["name"]).stdout
    # unchanged, from its initial state
    again = mop_home.wait_for_phase(fork_study(mop_home, ended["name"])["id"], "succeeded")
    assert again["spec"]["study"]["beginning"]["study"] == begin["study"]
    assert digests_of_hops(read_journal(mop_home, again)) == digests_of_hops(read_journal(mop_home, ended))
    third = mop_home.wait_for_phase(
        fork_study(mop_home, again["name"], "--checkpoint", "best", "--epochs", "1")["id"], "succeeded"
    )
    best = best_record(mop_home, again)
    assert (
        reported_steps(mop_home, third) == [best["step"] + 1]
        and third["spec"]["study"]["beginning"]["value"] == best["value"]
    )
    assert mop_home.ok("search", "replay").stdout.startswith("the same, bit for bit: 3 hops")
    assert (
        "it has no further trials" in mop_home.hop("search", "resume", third["name"], "--trials", "3").stderr
    )


def test_fork_trains_on_two_workers_and_refuses_invalid_forks(mop_home: ServerHome) -> None:
    mop_home.write("search.yaml", MOP.replace("trials: 4", "trials: 2").replace("epochs: 4", "epochs: 2"))
    mop_home.write("sleep.py", "import time\ntime.sleep(3600)\n")
    full = mop_home.wait_for_phase(mop_home.run_detached("sleep.py", "--cpus", "4"), "running")
    study = start_study(mop_home)
    early = mop_home.hop("fork", study["name"], "--checkpoint", "best")
    assert early.code != 0 and "has saved no best model yet" in early.stderr and "up to 30 s" in early.stderr
    mop_home.ok("stop", full["name"])
    study = mop_home.wait_for_phase(study["id"], "succeeded")
    for words, expected in (
        (("-p", "lrr=1"), "did you mean `lr`?"),
        (("-p", "lr=fast"), "params.lr: fast is not a number"),
        (("--epochs", "0"), "--epochs"),
    ):
        result = mop_home.hop("fork", f"{study['name']}@best", *words)
        assert result.code == 2 and expected in result.stderr, result.stderr
    for words, expected in (
        (("--checkpoint", "newest"), "--checkpoint best` to continue its best model"),
        (("-p", "lr=1"), "--checkpoint best -p K=V` to continue its best model with changes"),
        (("--epochs", "2"), "only the best model of a study"),
    ):
        result = mop_home.hop("fork", study["name"], *words)
        assert result.code == 2 and expected in result.stderr, result.stderr
    done = mop_home.hop("fork", f"{study['name']}@best", "-p", "lr=0.05")
    assert done.code == 0, done.stderr
    assert mop_home.ok("search", "replay").stdout.startswith("the same, bit for bit: 4 hops of 1 trials")
    hops = [record for record in read_journal(mop_home, mop_home.run("last")) if record["kind"] == "hop"]
    assert {tuple(record["workers"]) for record in hops} == {("worker-0",), ("worker-1",)}
    output = mop_home.ok("diff", study["name"], "last").stdout
    assert "begins with" in output and "space.lr" in output and "-> 0.05" in output.replace("  ", " ")
    assert mop_home.run("last")["spec"]["label"] == "" and mop_home.run("linear")["id"] == study["id"], (
        "`linear@best` is the study's"
    )
    new_fork = mop_home.ok("fork", study["name"], "--detach")
    assert (
        "starts its search from the beginning; use `--checkpoint best` to continue the training"
        in new_fork.stderr
    )
    assert mop_home.run(new_fork.stdout.strip())["spec"]["study"]["beginning"] is None


def test_best_trial_of_study_with_runs_is_a_run(server_home: ServerHome) -> None:
    server_home.write("train.py", TRAIN_SCRIPT)
    server_home.write(
        "search.yaml", SEARCH.replace("trials: 5", "trials: 2").replace("{name: asha, eta: 2}", "random")
    )
    study = server_home.wait_for_phase(start_study(server_home)["id"], "succeeded")
    result = server_home.hop("fork", f"{study['name']}@best")
    assert result.code == 2 and "fork the run of its best trial: `hop fork " in result.stderr
    trial = server_home.get("/runs", parent=study["id"])["runs"][0]
    assert "no metric decides which checkpoint of " in server_home.hop("fork", f"{trial['name']}@best").stderr
    step = server_home.get(f"/runs/{trial['id']}/checkpoints")["checkpoints"][-1]["step"]
    assert fork_study(server_home, f"{trial['name']}@{step}")["spec"]["resume"]["step"] == step
