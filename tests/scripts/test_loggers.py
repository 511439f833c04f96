"""Scripts that log with wandb, MLflow and TensorBoard: killed, resumed, forked, compared, ranked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.cli.shell import Shell

TIMEOUT_S = 400  # the libraries take seconds to start, on a busy machine much longer


MODULES = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboardX"}


def _environment(folder: Path) -> list[str]:
    """Returns the options of an environment in which the libraries write into the folder only."""
    variables = {
        "HOME": str(folder),
        "WANDB_API_KEY": "",
        "WANDB_X_SERVICE_WAIT": "300",
        "MLFLOW_TRACKING_URI": "file:./mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "OTHER_LOGS": str(folder / "other"),
    }
    return [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]


@pytest.mark.parametrize("library", MODULES)
def test_runs_are_resumed_forked_and_ranked(library: str, scripts: Shell, tmp_path: Path) -> None:
    pytest.importorskip(MODULES[library])
    environment = _environment(tmp_path)
    scripts.write("data/rows.txt", library)
    assert scripts.hop("dataset", "push", library, "data").code == 0
    common = ("-d", library, *environment, "-p", "lr=0.5")
    words = ("run", *common, "--tag", "team=mine", "-p", "die_at=1", "loggers.py", "--", library)
    killed = scripts.hop(*words, timeout_s=TIMEOUT_S)
    assert killed.code != 0 and "SIGKILL" in killed.stderr_text, killed.stderr_text
    first = scripts.hop("info", "last", "--json").json
    resumed = scripts.hop("resume", "last", timeout_s=TIMEOUT_S)
    assert resumed.code == 0, resumed.stderr_text
    second = scripts.hop("info", "last", "--json").json
    forked = scripts.hop("fork", "last", "-p", "lr=0.25", "-p", "die_at=-1", timeout_s=TIMEOUT_S)
    assert forked.code == 0, forked.stderr_text
    third = scripts.hop("info", "last", "--json").json
    for unexpected in ("could not be stored", "hopyard: "):
        assert unexpected not in killed.stderr_text + resumed.stderr_text + forked.stderr_text

    assert (second["latest"]["val.loss"], third["latest"]["val.loss"]) == ([3, 1.0], [3, 0.5])
    assert third["latest"]["test/loss"][1] == 7.0
    if library != "tensorboard":
        params = {name: third["params"][name] for name in ("lr", "net.width", "clip")}
        assert params == {"lr": 0.25, "net.width": 3, "clip": "inf"}
        assert first["latest"]["val.loss"] == [1, 1.0]
        own = {"baseline": "true", "kind": "true"} if library == "wandb" else {"kind": "small"}
        for run in (first, second, third):
            assert (run["spec"]["tags"], run["note"]) == ({**own, "team": "mine"}, "two\nlines")
        tag = f"kind={own['kind']}"
        assert len(scripts.hop("ps", "-a", "--tag", tag, "--where", "tags.team = mine", "--json").json) == 3
    if library == "mlflow":
        assert third["params"]["code"] == "007"
    assert third["summary"] == ({"final": 0.25} if library == "wandb" else {})

    difference = scripts.hop("diff", second["name"], third["name"], "--json").json
    assert difference["params"] == {"lr": [0.5, 0.25], "die_at": [1, -1]}
    assert difference["results"]["val.loss"] == [1.0, 0.5]

    def board(*words: str) -> list[tuple[str, float, int | None]]:
        rows = scripts.hop("board", library, "-m", "val.loss", "--json", *words).json["rows"]
        return [(row["name"], row["value"], row["step"]) for row in rows if row["name"] != first["name"]]

    assert board() == [(third["name"], 0.5, 3), (second["name"], 1.0, 3)]
    assert board("--best") == [(third["name"], 0.25, 2), (second["name"], 0.5, 2)]
    assert board("--best", "--max") == [(second["name"], 1.0, 3), (third["name"], 0.75, 0)]


@pytest.mark.slow
def test_study_ranks_trials_by_the_metric_of_each_library(scripts: Shell, tmp_path: Path) -> None:
    libraries = [name for name, module in MODULES.items() if importlib.util.find_spec(module)]
    space = ("-p", f"library={','.join(libraries)}", "-p", "lr=0.125,0.25,0.5,1")
    options = ("--searcher", "grid", "--concurrent", "2", "--metric", "val.loss", "--mode", "min")
    words = ("search", *options, *_environment(tmp_path), *space, "loggers.py")
    study = scripts.hop(*words, timeout_s=3 * TIMEOUT_S)
    assert study.code == 0, study.stderr_text
    shown = scripts.hop("search", "show", "--json").json
    values = {
        (trial["params"]["library"], trial["params"]["lr"]): trial["value"] for trial in shown["trials"]
    }
    assert values == {(library, lr): 2 * lr for library in libraries for lr in (0.125, 0.25, 0.5, 1)}
    best = next(trial for trial in shown["trials"] if trial["trial"] == shown["best"])
    assert best["params"]["lr"] == 0.125
