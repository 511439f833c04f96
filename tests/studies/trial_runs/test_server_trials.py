"""Studies whose trials are runs, on a real server: scripts that report, save and fail in many ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hopyard.private_files import remove_tree
from hopyard.studies.journal import read_records
from tests.faults.server_home import ServerHome, wait_until

TRAIN_SCRIPT = """
import math, sys, time
import hopyard as hop
p = hop.params(lr=0.1, {epochs})
state = {{"done": 0}}
{bind}
def measure(done): return 1 - abs(math.log10(p.lr) + 2) / 5 + 0.01 * done
for epoch in hop.loop(range({turns})):
    state["done"] += 1
    {log}
"""


def script(
    *,
    epochs: str = "epochs=1",
    bind: str = "hop.bind(state=state)",
    turns: str = "p.epochs",
    log: str = "hop.log(acc=measure(state['done']), step=epoch)",
) -> str:
    return TRAIN_SCRIPT.format(epochs=epochs, bind=bind, turns=turns, log=log)


# For each study: its script, and the additions to its file.
STUDIES: dict[str, tuple[str, str]] = {
    "partly-nan": (
        script(log="hop.log(acc=float('nan') if p.lr > 0.05 else measure(epoch), other=1.0, step=epoch)"),
        "trials: 3\nepochs: 2\nsearcher: grid\n",
    ),
    "raises": (
        script(
            log=(
                "hop.log(loss=1.0, step=epoch)\n    assert p.lr < 0.05, 'too hot'\n"
                "    hop.log(acc=0.5, step=epoch)"
            )
        ),
        "trials: 3\nepochs: 2\nsearcher: grid\n",
    ),
    "silent": (
        script(log="hop.log(loss=1.0, val=2.0, step=epoch)"),
        "trials: 3\nepochs: 2\nconcurrent: 3\nsearcher: grid\n",
    ),
    "saves-nothing": (script(bind=""), "trials: 4\nepochs: 4\nsearcher: {name: halving, eta: 2}\n"),
    "population": (script(), "trials: 4\nepochs: 3\nsearcher: {name: pbt, interval: 1, quantile: 0.5}\n"),
    "staggered": (
        script(log="time.sleep(0.3 * (p.lr > 0.01)); hop.log(acc=state['done'], step=epoch)"),
        "trials: 4\nepochs: 4\nsearcher: {name: pbt, interval: 1, quantile: 0.5}\n",
    ),
    "deaf": (
        script(
            epochs="width=1",
            turns="10_000",
            log="time.sleep(0.02); hop.log(acc=measure(state['done']), step=epoch)",
        ),
        "trials: 2\nepochs: 2\nsearcher: grid\n",
    ),
    "runs-on": (
        script(
            epochs="width=1", turns="10_000", log="time.sleep(0.02); hop.log(acc=state['done'], step=epoch)"
        ),
        "trials: 2\nepochs: 4\nsearcher: {name: halving, eta: 2}\n",
    ),
    "as-it-is": (script(epochs="epochs=5"), "trials: 2\nsearcher: grid\n"),
    "no-steps": (
        script(log="hop.log(acc=measure(state['done']))"),
        "trials: 3\nepochs: 4\nsearcher: {name: halving, eta: 2}\n",
    ),
    "reports-often": (
        "import hopyard as hop\np = hop.params(lr=0.1, epochs=4)\n"
        "for step in range(30 * p.epochs):\n    if step % 10 == 9: hop.log(acc=p.lr * step, step=step + 1)\n",
        "trials: 2\nepochs: 4\nsearcher: grid\n",
    ),
    "killed": (
        script(
            log=(
                "if epoch == 2 and hop.run().restored_step is None: import os; os.kill(os.getpid(), 9)\n"
                "    hop.log(acc=state['done'], step=epoch)"
            )
        ),
        "trials: 1\nepochs: 4\n",
    ),
    # reads the searched parameter after its first reports
    "late": (
        script(log="hop.log(acc=state['done'], step=epoch)").replace("lr=0.1, ", "").replace("p.lr", "0.1")
        + "time.sleep(1)\nhop.params(lr=0.1)\n",
        "trials: 2\nepochs: 2\nsearcher: grid\n",
    ),
    # writes its own checkpoints, and is killed once
    "own-files": (
        "import os\nimport pathlib\nimport hopyard as hop\np = hop.params(lr=0.1, epochs=1)\n"
        "kept = pathlib.Path(os.environ['HOPYARD_RUN_DIR']) / 'kept'\n"
        "first = int(kept.read_text()) if kept.exists() else 0\n"
        "for epoch in range(first, p.epochs):\n    hop.log(acc=epoch + 1, step=epoch)\n"
        "    kept.write_text(str(epoch + 1))\n"
        "    if epoch == 2 and not first: os.kill(os.getpid(), 9)\n",
        "trials: 1\nepochs: 6\n",
    ),
    "untaken": (
        script(epochs="epochs=1, rate=1").replace("p.lr", "p.rate").replace("lr=0.1, ", ""),
        "trials: 2\nepochs: 2\n",
    ),
    "own": (script(), "trials: 2\nepochs: 2\nsearcher: mine.py:Mine\n"),
    "uneven": (
        script(log="hop.log(acc=state['done'], step=epoch)"),
        "trials: 2\nepochs: 6\nsearcher: mine.py:Uneven\n",
    ),
}
OWN = """
from hopyard.domain.trial import Proposal, SearchState, Verdict
class Mine:
    def __init__(self, *, space, goal, trials, max_epochs, seed):
        self.trials, self.budget, self.asked = trials, max_epochs, 0
    def ask(self):
        if self.asked == self.trials: return SearchState.DONE
        self.asked += 1
        return Proposal(str(self.asked - 1), {"lr": 0.01 * self.asked}, self.budget)
    def tell(self, report): return Verdict.CONTINUE
class Uneven:  # trial 1 copies one that is ahead of it, and then goes on with its own
    PLAN = [("0", 4, None), ("1", 2, None), ("1", 4, "0"), ("1", 6, "1")]
    def __init__(self, **_):
        self.asked = self.reached = 0
    def ask(self):
        if self.asked == len(self.PLAN): return SearchState.DONE
        if self.asked > self.reached: return SearchState.WAIT
        trial, budget, origin = self.PLAN[self.asked]
        self.asked += 1
        return Proposal(trial, {"lr": 0.01}, budget, origin)
    def tell(self, report):
        if report.step < self.PLAN[self.asked - 1][1]: return Verdict.CONTINUE
        self.reached += 1
        return Verdict.PAUSE if self.asked < len(self.PLAN) else Verdict.CONTINUE
"""
FILE = """
name: {name}
metric: acc
goal: max
concurrent: 2
seed: 3
space: {{lr: {{loguniform: [0.001, 0.1], points: {points}}}}}
script: {name}.py
resources: {{cpus: 0.2}}
{more}
"""


class FinishedStudy:
    """A finished study with its journal, output and trials."""

    def __init__(self, server_home: ServerHome, run: Any) -> None:
        self.run, self.server_home = run, server_home

        def read(client: Any) -> bytes:
            with client.open("GET", f"/runs/{run['id']}/journal") as response:
                return bytes(response.read())

        self.records = list(read_records(server_home.retry_while_unavailable(read)))
        self.stderr = server_home.log(run, "stderr")
        self.trials = server_home.get("/runs", parent=run["id"], limit=200)["runs"]

    def of_kind(self, kind: str) -> list[Any]:
        return [record for record in self.records if record["kind"] == kind]

    def reported(self, trial: str) -> list[tuple[int, float]]:
        return [
            (r["report"]["step"], r["report"]["value"])
            for r in self.of_kind("told")
            if r["report"]["trial"] == trial
        ]


@pytest.fixture(scope="module")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHome]:
    result = ServerHome(tmp_path_factory.mktemp("studies"), settings="node: {id: box, cpus: 8, memory: 8G}\n")
    try:
        result.write("mine.py", OWN)
        result.ok("up")
        yield result
    finally:
        result.end()
        remove_tree(result.home.trees)


@pytest.fixture(scope="module")
def studies(server_home: ServerHome) -> dict[str, FinishedStudy]:
    """Runs all studies at once."""
    names = {}
    for name, (text, more) in STUDIES.items():
        server_home.write(f"{name}.py", text)
        own = more if "concurrent" not in more else more.replace("concurrent: 3\n", "")
        file = FILE.format(name=name, points=3 if "trials: 3" in more else 2, more=own)
        server_home.write(
            f"{name}.yaml", file.replace("concurrent: 2", "concurrent: 3") if own != more else file
        )
        names[name] = server_home.ok("search", f"{name}.yaml", "--detach").stdout.strip()

    def ended(name: str) -> Any:
        result = server_home.run(name)
        return result if result["phase"] in ("succeeded", "failed", "cancelled") else None

    return {
        name: FinishedStudy(server_home, wait_until(lambda ref=ref: ended(ref), f"the end of {name}"))
        for name, ref in names.items()
    }  # type: ignore[misc]


def test_nan_metric_fails_only_its_trial(studies: dict[str, FinishedStudy]) -> None:
    study = studies["partly-nan"]
    (failed,) = study.of_kind("failed")
    assert failed["error"] == "its `acc` was not a number (NaN) after epoch 1"
    assert study.run["phase"] == "succeeded"
    assert study.run["summary"]["trials_failed"] == 1
    assert study.of_kind("done")[0]["best"]["params"]["lr"] == pytest.approx(0.01)
    assert f"trial {failed['trial']} failed" in study.server_home.log(study.run)


def test_exception_and_last_output_become_trial_error(studies: dict[str, FinishedStudy]) -> None:
    study = studies["raises"]
    (failed,) = study.of_kind("failed")
    assert failed["error"].endswith("exit code 1: AssertionError: too hot")
    assert "assert p.lr < 0.05" in failed["traceback"]
    assert study.run["phase"] == "succeeded"


def test_unreported_metric_is_named_with_reported_metrics(studies: dict[str, FinishedStudy]) -> None:
    study = studies["silent"]
    assert study.run["phase"] == "failed"
    assert "all of the first 3 trials failed" in study.run["exit"]["reason"]
    assert "never reported `acc`; it reported `loss`, `val`" in study.run["exit"]["reason"]


def test_script_without_checkpoints_restarts_with_one_warning(studies: dict[str, FinishedStudy]) -> None:
    study = studies["saves-nothing"]
    assert study.run["phase"] == "succeeded"
    assert study.stderr.count("the script saves no checkpoints") == 1
    best = study.of_kind("done")[0]["best"]["trial"]
    assert [step for step, _ in study.reported(best)] == [1, 2, 3, 4]
    assert all(trial["spec"]["resume"] is None for trial in study.trials)


def test_population_copies_and_resumes_from_checkpoints(studies: dict[str, FinishedStudy]) -> None:
    study = studies["population"]
    assert study.run["phase"] == "succeeded"
    copies = [
        r["answer"]
        for r in study.of_kind("asked")
        if r["answer"]["start_from"] not in (None, r["answer"]["trial"])
    ]
    assert copies
    source = {record["run"]: record["trial"] for record in study.of_kind("run")}
    for record in study.of_kind("run"):
        answers = [
            r["answer"]
            for r in study.of_kind("asked")
            if (r["answer"]["trial"], r["answer"]["budget"]) == (record["trial"], record["budget"])
        ]
        expected = answers[0]["start_from"]
        assert (None if record["resume"] is None else source[record["resume"]["run"]]) == expected
    for trial in map(str, range(4)):
        assert [step for step, _ in study.reported(trial)] == [1, 2, 3]


def test_copy_of_more_trained_member_has_state_at_own_epoch(studies: dict[str, FinishedStudy]) -> None:
    assert studies["uneven"].reported("1") == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]
    assert {trial["spec"]["params"]["epochs"] for trial in studies["uneven"].trials} == {2, 4, 6}


def test_population_values_match_trained_epochs(studies: dict[str, FinishedStudy]) -> None:
    study = studies["staggered"]
    assert study.run["phase"] == "succeeded"
    assert [
        r for r in study.of_kind("asked") if r["answer"]["start_from"] not in (None, r["answer"]["trial"])
    ], "none copied"
    for trial in map(str, range(4)):
        assert study.reported(trial) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_script_ignoring_its_budget_is_stopped_at_budget(studies: dict[str, FinishedStudy]) -> None:
    study = studies["deaf"]
    assert study.run["phase"] == "succeeded"
    assert study.stderr.count("the script has no parameter `epochs`") == 1
    assert [step for step, _ in study.reported("0")] == [1, 2]
    ends = [(trial["phase"], trial["exit"]["reason"]) for trial in study.trials]
    assert all(phase == "cancelled" and "checkpoint saved" in reason for phase, reason in ends), ends


def test_trial_beyond_budget_resumes_from_checkpoint_within_budget(studies: dict[str, FinishedStudy]) -> None:
    study = studies["runs-on"]
    assert len(study.of_kind("run")) > 2
    assert study.reported(study.of_kind("done")[0]["best"]["trial"]) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_script_that_reports_several_times_an_epoch_ends_by_itself(studies: dict[str, FinishedStudy]) -> None:
    study = studies["reports-often"]
    assert {trial["phase"] for trial in study.trials} == {"succeeded"}
    assert study.of_kind("done")[0]["best"]["value"] == pytest.approx(0.1 * 119)
    assert study.stderr.count("the reports of trials carry no epoch") == 1


def test_killed_trial_is_repeated_from_its_newest_checkpoint(studies: dict[str, FinishedStudy]) -> None:
    study = studies["killed"]
    assert study.run["phase"] == "succeeded"
    assert study.reported("0") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert [(r["retry"], r["resume"] is None) for r in study.of_kind("run")] == [(0, True), (1, False)]
    assert not study.of_kind("failed")
    assert "retry 1 of 3" in study.stderr


def test_killed_trial_begins_with_the_files_that_its_script_wrote(studies: dict[str, FinishedStudy]) -> None:
    study = studies["own-files"]
    assert study.run["phase"] == "succeeded"
    first, second = study.of_kind("run")
    assert (first["folder"], second["resume"]) == (None, None)
    # what the script reports in its second run is counted as in the first
    assert study.reported("0") == [(n, n) for n in range(1, 7)]
    (repeated,) = [trial for trial in study.trials if trial["id"] == second["run"]]
    assert repeated["spec"]["initial_folder"] == second["folder"] is not None
    # absolute paths of the first run lead to its files
    assert (first["continued"], second["continued"]) == ([], [first["run"]])
    assert repeated["spec"]["continued_runs"] == [first["run"]]
    assert study.server_home.metric_series(repeated, "acc")[0] == [3, 4, 5]


def test_parameter_may_be_read_after_the_first_report(studies: dict[str, FinishedStudy]) -> None:
    study = studies["late"]
    assert study.run["phase"] == "succeeded", study.run["exit"]
    assert not study.of_kind("failed")


def test_searched_parameter_that_no_trial_takes_ends_study(studies: dict[str, FinishedStudy]) -> None:
    study = studies["untaken"]
    assert study.run["phase"] == "failed"
    reason = "the study searches the parameter `lr`, but the script takes only epochs, rate"
    assert reason in study.run["exit"]["reason"]
    assert reason in study.of_kind("failed")[0]["error"]
    assert not study.of_kind("done")


def test_script_is_unchanged_without_epochs_in_study(studies: dict[str, FinishedStudy]) -> None:
    study = studies["as-it-is"]
    assert [trial["params"]["epochs"] for trial in study.trials] == [5, 5]
    assert [step for step, _ in study.reported("0")] == [1]
    steps, values = study.server_home.metric_series(study.trials[0], "acc")
    assert len(steps) == 5
    trial = study.trials[0]["spec"]["tags"]["trial"]
    assert study.reported(trial)[0][1] == values[-1]


def test_reports_without_steps_are_counted_across_runs_of_trial(studies: dict[str, FinishedStudy]) -> None:
    study = studies["no-steps"]
    best = study.of_kind("done")[0]["best"]
    values = [value for _, value in study.reported(best["trial"])]
    assert [step for step, _ in study.reported(best["trial"])] == [1, 2, 3, 4]
    assert values == sorted(values)


def test_custom_searcher_drives_study(studies: dict[str, FinishedStudy]) -> None:
    study = studies["own"]
    assert [r["answer"]["params"]["lr"] for r in study.of_kind("asked")] == [0.01, 0.02]
    assert study.run["phase"] == "succeeded"


def test_trial_curves_are_metrics_of_study(studies: dict[str, FinishedStudy]) -> None:
    study = studies["population"]
    for trial in map(str, range(4)):
        steps, values = study.server_home.metric_series(study.run, f"acc/{trial}")
        assert list(zip(steps, values, strict=True)) == study.reported(trial)
    best = study.server_home.metric_series(study.run, "best/acc")[1]
    assert best == sorted(best)
    assert best[-1] == study.run["summary"]["acc"]


def test_a_study_and_its_trials_are_listed(
    server_home: ServerHome, studies: dict[str, FinishedStudy]
) -> None:
    listed = server_home.ok("ps", "-a", "--json").json
    assert {run["id"] for run in listed} == {study.run["id"] for study in studies.values()}
    own = studies["own"]
    assert len(server_home.ok("ps", "-a", "--json", "--parent", own.run["name"]).json) == 2
    assert len(server_home.ok("ps", "-a", "--json", "--trials").json) > len(listed)
    text = server_home.ok("ps", "-a").stdout
    assert "2 runs of its trials" in next(
        line for line in text.splitlines() if line.startswith(own.run["name"])
    )
    server_home.ok("rm", "-y", own.run["name"])
    assert server_home.get("/runs", parent=own.run["id"])["runs"] == []


def test_preempted_study_resumes(server_home: ServerHome) -> None:
    server_home.write(
        "slow.py", script(log="time.sleep(0.1); hop.log(acc=measure(state['done']), step=epoch)")
    )
    more = "trials: 3\nepochs: 4\nsearcher: {name: asha, eta: 2}\n"
    server_home.write(
        "slow.yaml", FILE.format(name="slow", points=3, more=more).replace("concurrent: 2", "concurrent: 1")
    )
    run = server_home.run(server_home.ok("search", "slow.yaml", "--detach").stdout.strip())

    def reported() -> bool:
        def read(client: Any) -> bytes:
            with client.open("GET", f"/runs/{run['id']}/journal") as response:
                return bytes(response.read())

        return (
            sum(
                record["kind"] == "told" for record in read_records(server_home.retry_while_unavailable(read))
            )
            >= 2
        )

    wait_until(reported, "two reports")
    server_home.ok("node", "drain", "box")
    wait_until(lambda: server_home.run(run["id"])["phase"] == "queued", "a study that waits")
    server_home.ok("node", "uncordon", "box")
    ended = FinishedStudy(server_home, server_home.wait_for_phase(run["id"], "succeeded"))
    assert len(ended.of_kind("study")) >= 2
    shared_home = FinishedStudy(
        server_home,
        server_home.wait_for_phase(
            server_home.ok("search", "slow.yaml", "--detach").stdout.strip(), "succeeded"
        ),
    )
    assert [
        (r["kind"], r.get("answer"), r.get("report"), r.get("verdict"))
        for r in ended.records
        if r["kind"] in ("asked", "told")
    ] == [
        (r["kind"], r.get("answer"), r.get("report"), r.get("verdict"))
        for r in shared_home.records
        if r["kind"] in ("asked", "told")
    ]
