"""`hop search` and `hop.search`, as people type them, against a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell

TRIAL = """
import hopyard as hop
p = hop.params(lr=0.1, epochs=2)
if p.lr > 5:
    raise ValueError("lr is too large")
for epoch in hop.loop(range(p.epochs)):
    hop.log(acc=p.lr * (epoch + 1) / 10, step=epoch + 1)
"""
TRIALS = """
name: runs
metric: acc
searcher: grid
epochs: 2
concurrent: 2
space: {lr: [0.1, 0.5, 9.0]}
script: train.py
resources: {cpus: 0.25}
"""
MODEL = """
import numpy as np

class Mean:
    def init(self, config):
        return {"w": np.zeros(1)}

    def train(self, state, partition, config):
        state["w"] = state["w"] + config.lr * (partition["y"].mean() - state["w"])

    def evaluate(self, state, partition, config):
        return {"mse": float(((partition["y"] - state["w"]) ** 2).mean())}
"""
MOP = """
name: means
metric: mse
searcher: grid
epochs: 2
space: {lr: [0.1, 0.9]}
trainable: model.py:Mean
workers: 2
dataset: numbers
partitions: {validation: 0.25}
resources: {cpus: 0.5}
"""


@pytest.fixture(scope="module")
def numbers(served_home: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 80 rows around 3."""
    import numpy as np

    from tests.cli.conftest import shell_in

    shell = shell_in(tmp_path_factory.mktemp("numbers") / "study", served_home)
    (shell.folder / "data").mkdir()
    np.save(shell.folder / "data" / "y.npy", np.random.default_rng(0).normal(3.0, 0.1, 80))
    np.save(shell.folder / "data" / "x.npy", np.arange(80.0))
    assert shell.hop("dataset", "push", "numbers", "data").code == 0
    return "numbers"


def test_study_with_trials_as_runs(shell: Shell) -> None:
    shell.write("train.py", TRIAL)
    shell.write("search.yaml", TRIALS)
    result = shell.hop("search", "search.yaml")
    assert result.code == 0, result.stderr_text
    assert "best acc 0.1 by trial 1 after epoch 2: lr=0.5" in result.text
    assert "trial 2 failed" in result.stderr_text and "lr is too large" in result.stderr_text
    study = shell.hop("search", "show", "--json").json
    assert (study["name"], study["best"], study["done"]) == ("runs", "1", True)
    states = {trial["params"]["lr"]: trial["state"] for trial in study["trials"]}
    assert states == {0.1: "completed", 0.5: "completed", 9.0: "failed"}
    assert study["study"] in shell.hop("search", "ls", "-a").text
    shell.detach("-n", "runs", "--", "true")  # a run of the same name is not taken for the study
    assert shell.hop("search", "show", "--json", "runs").json["study"] == study["study"], (
        "by the name in its file"
    )
    trial_text = shell.hop("search", "show", "--trial", "2").text
    assert "failed" in trial_text and "lr=9" in trial_text and "lr is too large" in trial_text
    assert len(shell.hop("ps", "-a", "--parent", study["study"], "--json").json) >= 3
    assert re.search(r"run \S+/\d+$", shell.hop("search", "show", "--trial", "0").text, re.MULTILINE), (
        "by its run name"
    )
    best = next(trial["run_name"] for trial in study["trials"] if trial["trial"] == "1")
    forked = shell.hop("fork", study["study"], "--checkpoint", "newest")
    assert (
        forked.code == 2
        and f"hint: fork the run of its best trial: `hop fork {best} --checkpoint newest`"
        in forked.stderr_text
    )
    assert (
        "its parameters are those of its space" in shell.hop("fork", study["study"], "-p", "lr=1").stderr_text
    )
    refused = shell.hop("search", "gantt")
    assert refused.code != 0 and "are separate runs" in refused.stderr_text


def test_study_of_a_command_line(shell: Shell) -> None:
    shell.write("train.py", TRIAL)
    words = ("-p", "lr=0.1,0.5", "-p", "epochs=2", "--metric", "acc", "--searcher", "grid", "--cpus", "0.25")
    result = shell.hop("search", *words, "--tag", "team=nlp", "-n", "one-line", "train.py")
    assert result.code == 0, result.stderr_text
    assert "note: the study searches the maximum of acc" in result.stderr_text
    assert "best acc 0.1 by trial 1 after epoch 2: lr=0.5" in result.text
    study = shell.hop("search", "show", "one-line", "--json").json
    trials = shell.hop("ps", "-a", "--parent", study["study"], "--json").json
    assert {trial["spec"]["tags"]["team"] for trial in trials} == {"nlp"}


def test_incomplete_command_line_of_a_study_is_refused(shell: Shell) -> None:
    shell.write("train.py", TRIAL)
    shell.write("search.yaml", TRIALS)
    for words, problem in (
        (["-p", "lr=0.1..1.0", "train.py"], "--metric: missing"),
        (["-p", "lr=0.1..1.0", "--metric", "acc", "train.py"], "--trials: missing"),
        (["-p", "lr=0.1", "--metric", "acc", "train.py"], "no parameter has a range"),
        (
            ["-p", "lr=1,2", "-p", "epochs=2", "--epochs", "3", "--metric", "acc", "train.py"],
            "--epochs 3 is another number of epochs",
        ),
        (
            ["-p", "lr=1,2", "--metric", "x", "--searcher", "grid", "train.py"],
            "`x` does not imply a direction",
        ),
        (["--metric", "acc", "search.yaml"], "--metric: search.yaml describes the study"),
        (["-p", "lr=1,2", "-m", "train"], "--metric: missing"),
        (["-p", "lr=1,2", "python", "-m", "train"], "hop search run -p lr=1,2 python -- -m train"),
        (["-p", "lr=1,2", "train.py", "--fast"], "hop search run -p lr=1,2 train.py -- --fast"),
    ):
        refused = shell.hop("search", *words)
        assert refused.code == 2 and problem in refused.stderr_text, refused.stderr_text
        assert "hint: " in refused.stderr_text


def test_unknown_subcommand_or_file_gives_a_suggestion(shell: Shell) -> None:
    shell.write("search.yaml", TRIALS)
    for word, hint in (
        ("sho", "did you mean `hop search show`?"),
        ("serach.yaml", "did you mean `search.yaml`?"),
        ("x", "there is search.yaml"),
    ):
        result = shell.hop("search", word)
        assert (result.code, result.stderr_text) == (2, f"error: there is no file {word}\nhint: {hint}\n")
    assert "is a folder, not a file" in shell.hop("search", ".").stderr_text
    (shell.folder / "st").write_text(TRIALS)
    unnamed = shell.hop("search", "-n", "st")  # a label, not that file
    assert (
        unnamed.code == 2
        and "hint: give a name with -n and the file as well: hop search FILE.yaml -n st"
        in unnamed.stderr_text
    )


def test_study_with_mop(shell: Shell, numbers: str) -> None:
    shell.write("model.py", MODEL)
    shell.write("search.yaml", MOP)
    result = shell.hop("search", "search.yaml", "--json")
    assert result.code == 0, result.stderr_text
    assert result.json["phase"] == "succeeded" and result.json["hops"] == 2 * 2 * 2
    assert next(trial for trial in result.json["trials"] if trial["trial"] == result.json["best"])[
        "params"
    ] == {"lr": 0.9}
    chart = shell.hop("search", "gantt", "--json").json
    assert [row["worker"] for row in chart["workers"]] == ["worker-0", "worker-1"]
    assert (
        shell.hop("search", "gantt", "--png", "g.png").code == 0
        and (shell.folder / "g.png").stat().st_size > 1000
    )
    assert "idle; from a unit's end" in shell.hop("search", "gantt").text
    again = shell.hop("search", "replay")
    assert again.code == 0 and again.text.startswith("the same, bit for bit: 8 hops of 2 trials"), (
        again.stderr_text
    )
    assert shell.hop("search", "replay", "--trial", "7").code == 1
    assert result.json["name"] in shell.hop("dataset", "board", numbers, "--metric", "mse").text


def python_output(shell: Shell) -> dict[str, Any]:
    """Returns the last output of go.py."""
    environment = {**shell.environment, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")}
    done = subprocess.run(
        [sys.executable, "go.py"],
        cwd=shell.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    output: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return output


def test_search_from_python(shell: Shell, numbers: str) -> None:
    shell.write("model.py", MODEL)
    shell.write(
        "go.py",
        """
import json, hopyard as hop, hopyard.errors
from model import Mean
if __name__ == "__main__":
    study = hop.search(Mean, space={"lr": [0.1, 0.9]}, metric="mse", searcher="grid", epochs=1, workers=2,
                       dataset="numbers", partitions={"validation": 0.25}, resources={"cpus": 0.5})
    study.wait(120)
    found = hop.study(study.name)
    try:
        hop.search("functions.py", space={"lr": [0.1, 0.9]}, metric="mse", searcher="grid", workers=2,
                   dataset="nothing")
    except hop.errors.NotFound as refused:  # a trainable, and no script
        missing = refused.message
    refused = []
    for number in (0, 7):
        try:
            found.stop(trial=number)
        except hopyard.errors.HopyardError as error:
            refused.append(error.message)
    chart = found.gantt()
    print(json.dumps({"best": dict(found.best.params), "w": float(found.best_model()["w"][0]),
                      "table": found.table(), "done": found.done, "missing": missing, "refused": refused,
                      "chart": [chart["study"] == found.name, len(chart["workers"])],
                      "schedule": found.schedule(1)}))
""",
    )
    shell.write(
        "functions.py",
        "def init(config): ...\ndef train(state, partition, config): ...\n"
        "def evaluate(state, partition, config): ...\n",
    )
    text = python_output(shell)
    assert text["best"] == {"lr": 0.9} and 2.5 < text["w"] < 3.2 and text["done"] and len(text["table"]) == 2
    assert "no dataset `nothing`" in text["missing"]
    assert "trial 0 of" in text["refused"][0] and "does not train: it is completed" in text["refused"][0]
    assert "has no trial 7" in text["refused"][1]
    assert text["chart"] == [True, 2]
    assert text["schedule"] == [{"from_epoch": 0, "trial": "1", "params": {"lr": 0.9}, "copied": None}]


OBJECTIVE = """
import json
import hopyard as hop

class Model:
    weight = 0.0
    def state_dict(self): return {"weight": self.weight}
    def load_state_dict(self, state): self.weight = state["weight"]

def objective(lr, epochs=2):
    model = Model()
    hop.bind(model=model)
    for epoch in hop.loop(range(epochs)):
        model.weight += lr
        yield model.weight

if __name__ == "__main__":
    own = {"metric": "acc", "searcher": "grid", "epochs": 2, "resources": {"cpus": 0.25}}
    study = hop.search(objective, space={"lr": [0.25, 0.5]}, **own)
    best = study.wait().best
    print(json.dumps({"params": dict(best.params), "best": best.best, "state": study.best_state(),
                      "weight": study.best_model(Model()).weight}))
"""


def test_one_trial_is_stopped_from_python(shell: Shell) -> None:
    """Its value counts, and the study continues."""
    shell.write(
        "train.py",
        """
import time
import hopyard as hop
p = hop.params(endless=False, epochs=2)
for epoch in range(p.epochs):
    hop.log(acc=0.5 + p.endless / 4, step=epoch + 1)
    while p.endless:
        time.sleep(0.1)
""",
    )
    shell.write(
        "go.py",
        """
import json, time, hopyard as hop
study = hop.search("train.py", space={"endless": [True, False]}, searcher="grid", metric="acc", epochs=2,
                   resources={"cpus": 0.25})
while not any(trial.value and trial.params["endless"] for trial in study.refresh()):
    time.sleep(0.1)
study.stop(trial=next(trial.id for trial in study if trial.params["endless"]), grace_s=0.0)
study.wait(240)
print(json.dumps({"states": {str(trial.params["endless"]): trial.state for trial in study},
                  "best": dict(study.best.params)}))
""",
    )
    text = python_output(shell)
    assert text == {"states": {"True": "stopped", "False": "completed"}, "best": {"endless": True}}


def test_objective_is_a_function(shell: Shell) -> None:
    shell.write("go.py", OBJECTIVE)
    found = python_output(shell)
    assert found == {"params": {"lr": 0.5}, "best": 1.0, "state": {"model": {"weight": 1.0}}, "weight": 1.0}


def test_extended_study_trains_and_prints_only_new_trials(shell: Shell) -> None:
    shell.write("train.py", TRIAL)
    shell.write(
        "search.yaml",
        TRIALS.replace("searcher: grid", "trials: 2").replace("[0.1, 0.5, 9.0]", '"uniform(0.1, 0.9)"'),
    )
    first = shell.hop("search", "search.yaml", "--json").json
    assert (first["phase"], len(first["trials"])) == ("succeeded", 2)
    for most in (3, 4):
        extended = shell.hop("search", "resume", "--trials", str(most))
        assert extended.code == 0, extended.stderr_text
        result = [line for line in extended.stderr_text.splitlines() if " completed after " in line]
        assert len(result) == 1 and f"trial {most - 1} " in result[0], extended.stderr_text
    shown = shell.hop("search", "show", "--json").json
    assert len(shown["trials"]) == 4 and {trial["state"] for trial in shown["trials"]} == {"completed"}
    assert len(shell.hop("ps", "-a", "--parent", shown["study"], "--json").json) == 1


def test_finished_study_is_extended_from_python(shell: Shell, numbers: str) -> None:
    shell.write("model.py", MODEL)
    shell.write(
        "go.py",
        """
import json, hopyard as hop, hopyard.errors
from model import Mean
if __name__ == "__main__":
    study = hop.search(Mean, space={"lr": "uniform(0.1, 0.9)"}, metric="mse", trials=2, workers=2,
                       dataset="numbers", partitions={"validation": 0.25}, resources={"cpus": 0.5})
    said = []
    for asks in ({}, {"trials": 2}):
        try:
            study.wait(120).resume(**asks)
        except hop.errors.Conflict as refused:
            said.append(refused.message)
    more = hop.study(study.name).resume(trials=3).wait(120)
    print(json.dumps({"refused": said, "first": study.name, "continues": more.data()["continues"],
                      "w": float(more.best_state()["w"][0]), "trials": len(more.trials),
                      "same": {t.id: t.best for t in study}.items() <= {t.id: t.best for t in more}.items()}))
""",
    )
    text = python_output(shell)
    assert "already finished" in text["refused"][0] and "must be greater (got 2)" in text["refused"][1]
    assert text["continues"] == text["first"] and text["same"] and text["trials"] == 3 and 0 < text["w"] < 3.2


def test_best_model_is_trained_further_from_python(shell: Shell, numbers: str) -> None:
    shell.write("model.py", MODEL)
    shell.write(
        "go.py",
        """
import json, hopyard as hop, hopyard.errors
from model import Mean
if __name__ == "__main__":
    study = hop.search(Mean, space={"lr": [0.1, 0.2]}, metric="mse", searcher="grid", epochs=1, workers=2,
                       dataset="numbers", partitions={"validation": 0.25}, resources={"cpus": 0.5})
    fork = study.wait(120).fork({"lr": 0.5}, epochs=2, name="on").wait(120)
    try:
        study.fork({"momentum": 1})
    except hop.errors.SpecError as wrong:
        refused = wrong.message
    (trial,) = fork.trials
    print(json.dumps({"refused": refused, "before": study.best.best, "after": fork.best.best,
                      "w": float(fork.best_state()["w"][0]), "from": study.name,
                      "beginning": fork.data()["beginning"]["study"],
                      "points": [at for at, _ in trial.points], "params": dict(trial.params)}))
""",
    )
    text = python_output(shell)
    assert text["refused"] == "params.momentum: the study has no such parameter"
    assert text["after"] < text["before"] and 2.5 < text["w"] < 3.2 and text["beginning"] == text["from"]
    assert text["points"] == [2, 3] and text["params"] == {"lr": 0.5}
    assert f"trains on the best model of {text['from']}" in shell.hop("search", "show", "on").text


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("nowhere.yaml", "", "there is no file nowhere.yaml"),
        ("search.yaml", "space: {}\n", "space"),
        ("search.yaml", "sercher: tpe\n", "did you mean `searcher`"),
        ("search.yaml", "workers: 0\n", "workers"),
        ("search.yaml", "trainable: nothing.py:Mean\n", "nothing.py"),
        ("search.yaml", "searcher: {name: asha, ata: 4}\n", "eta"),
        (
            "search.yaml",
            "trainable: broken.py:Mean\n",
            "search.yaml: trainable: broken.py is not Python (line 2)",
        ),
        (
            "search.yaml",
            "searcher: broken.py:Mine\ntrials: 3\n",
            "search.yaml: searcher: broken.py is not Python (line 2)",
        ),
        (
            "search.yaml",
            "space: {lr: 'uniform(0, 1)'}\n",
            "search.yaml: space.lr: a grid needs a number of points",
        ),
    ],
)
def test_invalid_search_is_refused_before_anything_runs(
    shell: Shell, file: str, change: str, words: str
) -> None:
    shell.write("model.py", MODEL)
    shell.write("broken.py", "raise SystemExit\nclass Mean\n")
    key = change.partition(":")[0]
    shell.write(
        "search.yaml",
        "\n".join(line for line in MOP.splitlines() if not line.startswith(f"{key}:")) + "\n" + change,
    )
    refused = shell.hop("search", file)
    assert refused.code == 2 and words in refused.stderr_text
    assert "study " not in refused.stderr_text


def test_import_error_is_reported_once_before_training(shell: Shell, numbers: str) -> None:
    shell.write("deep.py", "import no_such_package.inner\n")
    shell.write("model.py", "import deep\n" + MODEL)
    shell.write("search.yaml", MOP)
    result = shell.hop("search", "search.yaml")
    assert result.code == 1 and result.text == "", "there is no table of unstarted trials"
    assert result.stderr_text.count("ModuleNotFoundError") == 2, (
        "once when it happened, and once as the reason of the failure"
    )
    assert (
        '  File "deep.py", line 1, in <module>' in result.stderr_text
        and str(shell.folder) not in result.stderr_text
    )
    assert "hint: name `no_such_package` in the study's `requirements:`" in result.stderr_text
    assert result.stderr_text.splitlines()[-1].endswith(
        " failed: ModuleNotFoundError: No module named 'no_such_package'; nothing was trained"
    )


def test_ctrl_c_detaches_from_the_study_and_names_the_next_command(shell: Shell) -> None:
    shell.write("train.py", "import time\ntime.sleep(600)\n")
    shell.write("search.yaml", TRIALS)
    with shell.terminal("search", "search.yaml") as screen:
        name = re.search(rb"study (\S+) ", screen.expect(b"TRIAL"))
        assert name is not None
        screen.type(b"\x03")
        screen.expect(b"continues.  Its trials: hop search show " + name[1])
        assert screen.wait() == 130
    assert shell.hop("stop", "--grace", "0", name[1].decode()).code == 0


def test_dry_run_shows_the_first_trials(shell: Shell) -> None:
    shell.write("train.py", TRIAL)
    shell.write("search.yaml", TRIALS)
    result = shell.hop("search", "search.yaml", "--dry-run", "-p", "momentum=0.9")
    assert result.code == 0 and "trial 0, 2 epochs: lr=0.1 momentum=0.9" in result.text


@pytest.mark.parametrize(
    ("options", "searcher"),
    [
        ((), "grid"),
        (("--searcher", "random"), "random"),
        (("--trials", "2"), "random"),
        (("-p", "d=0.0..1.0"), "random"),
    ],
)
def test_few_combinations_are_tried_once_each(shell: Shell, options: tuple[str, ...], searcher: str) -> None:
    shell.write("train.py", TRIAL)
    command = ("search", "-p", "lr=0.1,0.2,0.3", "--metric", "acc", "--trials", "3", *options)
    result = shell.hop(*command, "--dry-run", "train.py")
    assert result.code == 0 and f"train: {searcher}, max acc" in result.text
    note = "note: the 3 combinations are tried once each (searcher: grid; `random` draws them instead)"
    assert (note in result.stderr_text) is (searcher == "grid")
    if searcher == "grid":
        assert [f"lr=0.{n}" in result.text for n in (1, 2, 3)] == [True] * 3


def test_unsplittable_dataset_fails_the_study_with_the_reason(shell: Shell, numbers: str) -> None:
    shell.write("model.py", MODEL)
    shell.write("search.yaml", MOP.replace("partitions: {", "partitions: {stratify: colour, "))
    ended = shell.hop("search", "search.yaml", "--json")
    assert ended.code == 1 and ended.json["phase"] == "failed"
    assert "no column `colour`" in ended.stderr_text


def test_study_appears_on_the_leaderboard_of_its_dataset(shell: Shell, numbers: str) -> None:
    """The driver reads none of the data; some of its trials are paused for good in the end."""
    shell.write("train.py", TRIAL + "assert hop.dataset_path('numbers')\n")
    shell.write(
        "search.yaml",
        TRIALS.replace("searcher: grid", "searcher: {name: halving, eta: 2}\ndatasets: [numbers]").replace(
            "9.0", "0.3, 0.2"
        ),
    )
    result = shell.hop("search", "search.yaml", "--trials", "4", "--json")
    assert result.code == 0, result.stderr_text
    board = shell.hop("board", "numbers", "--metric", "acc", "--json").json
    assert result.json["study"] in [row["name"] for row in board["rows"]]
    info = shell.hop("info", result.json["study"]).text
    assert "numbers" in info and "progress    trial 4/4" in info
