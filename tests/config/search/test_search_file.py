"""`search.yaml`: its meaning, and refusals of invalid values with file, path and allowed values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopyard.config.metric_goal import infer_goal
from hopyard.config.schemas.study_json import study_from_json, study_to_json
from hopyard.config.search.search_file import SEARCH_KEYS, read_search_file, search_from_mapping
from hopyard.config.search.study_request import StudyRequest
from hopyard.domain.study import Goal, MopSpec, Parallel, PartitionPlan, SearcherSpec
from hopyard.errors import SpecError

TRIALS = """
name: digits
project: mnist
metric: val_acc
searcher: {name: asha, eta: 4}
trials: 50
concurrent: 4
epochs: 27
seed: 7
budget_param: rounds
tensorboard: true
mlflow: http://mlflow.example.com:5000
space:
  lr: loguniform(1e-5, 1e-1)
  batch_size: [16, 32, 64]
script: train.py
arguments: [--fast, 3]
replicas: 2
resources: {cpus: 2, gpus: 1}
pool: fast
datasets: [mnist:3]
params: {classes: 10}
env: {OMP: 2}
tags: {team: vision}
queue: research
priority: 70
topology: same:node
time: 2h
"""
MOP = """
metric: eval/loss
searcher: hyperband
epochs: 27
space: {lr: [0.1, 0.01]}
trainable: train.py:Digits
workers: 4
dataset: mnist:3
partitions: {validation: 0.2, stratify: label, columns: [x, y], files: "*.parquet", seed: 5, \
format: parquet, parts: 8}
resources: {cpus: 2}
threads: 2
deterministic: false
time: 2h
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("class Digits:\n    pass\nmodel = Digits()\n")
    (tmp_path / "plain.py").write_text("def init(config): ...\ndef train(state, partition, config): ...\n")
    return tmp_path


def read(folder: Path, text: str) -> StudyRequest:
    file = folder / "search.yaml"
    file.write_text(text)
    return read_search_file(file, folder)


def edited(text: str, **changes: str | None) -> str:
    """Returns the text with other lines for these keys; None removes a key."""
    lines = [line for line in text.splitlines() if line.partition(":")[0] not in changes]
    return "\n".join([*lines, *(f"{key}: {value}" for key, value in changes.items() if value is not None)])


def test_search_with_trials_as_runs(folder: Path) -> None:
    requested = read(folder, TRIALS)
    study, run, trial = requested.study, requested.run, requested.trial
    assert (study.name, study.metric, study.goal, study.parallel) == (
        "digits",
        "val_acc",
        Goal.MAX,
        Parallel.TRIALS,
    )
    assert study.searcher == SearcherSpec("asha", {"eta": 4})
    assert (study.trials, study.concurrent, study.max_epochs, study.seed, study.budget_param) == (
        50,
        4,
        27,
        7,
        "rounds",
    )
    assert (study.tensorboard, study.mlflow, study.mop, study.trial) == (
        True,
        "http://mlflow.example.com:5000",
        None,
        None,
    )
    assert [role.name for role in run.roles] == ["driver"]
    assert (run.project, run.label, run.queue, run.priority, run.datasets, run.params, run.time_limit_s) == (
        "mnist",
        "digits",
        "research",
        70,
        (("mnist", 3, ""),),
        {},
        None,
    )
    assert trial is not None
    (role,) = trial.roles
    assert role.command == ("python", "-u", "train.py", "--fast", "3")
    assert (role.replicas, role.cpu_milli, role.gpus, role.pools) == (2, 2000, 1, ("fast",))
    assert (trial.datasets, trial.params, trial.env, trial.time_limit_s, trial.queue, trial.label) == (
        (("mnist", 3, ""),),
        {"classes": 10},
        {"OMP": "2"},
        7200,
        "research",
        "",
    )
    assert trial.topology is not None and run.topology is None


def test_search_with_mop(folder: Path) -> None:
    requested = read(folder, MOP)
    plan = PartitionPlan(8, 5, 0.2, "", "label", ("x", "y"), "*.parquet", "parquet")
    assert requested.study.mop == MopSpec(
        "train.py:Digits", 4, "mnist", plan, deterministic=False, threads=2, hybrid=True
    )
    assert (requested.study.name, requested.study.goal, requested.study.parallel, requested.trial) == (
        "search",
        Goal.MIN,
        Parallel.MOP,
        None,
    )
    driver, worker = requested.run.roles
    assert (driver.name, driver.replicas, driver.cpu_milli, driver.essential) == ("driver", 1, 100, True)
    assert (worker.name, worker.replicas, worker.cpu_milli, worker.essential) == ("worker", 4, 2000, False)
    assert (requested.run.datasets, requested.run.time_limit_s) == ((("mnist", 3, ""),), 7200)


def test_defaults(folder: Path) -> None:
    requested = read(folder, "metric: loss\ntrials: 3\nspace: {x: [1, 2]}\ncommand: torchrun train.py")
    assert requested.study == replace(
        requested.study,
        name="search",
        searcher=SearcherSpec("random"),
        max_epochs=1,
        seed=0,
        concurrent=0,
        budget_param="epochs",
    )
    assert requested.trial is not None and requested.trial.roles[0].command == ("torchrun", "train.py")
    assert not requested.study.has_budget
    for line in ("epochs: 1", "max_epochs: 1", "steps: 1"):  # the script gets it, unlike the default
        single = read(
            folder, f"metric: loss\ntrials: 3\nspace: {{x: [1, 2]}}\nscript: train.py\n{line}"
        ).study
        assert (single.max_epochs, single.has_budget) == (1, True)
    mop = read(
        folder,
        "metric: acc\ntrials: 3\nspace: {x: [1, 2]}\ntrainable: plain.py\nworkers: 2\ndataset: d\n"
        "partitions: {validation: held_out}\nseed: 4",
    )
    assert mop.study.mop == MopSpec("plain.py", 2, "d", PartitionPlan(2, 4, validation_from="held_out"))


@pytest.mark.parametrize("text", [TRIALS, MOP])
def test_spec_round_trips_through_json(folder: Path, text: str) -> None:
    requested = read(folder, text)
    spec_json = requested.spec(code="c" * 64, git=None, environment={"python": "3.11"})
    study = study_from_json(json.loads(json.dumps(spec_json["study"], sort_keys=True)))
    assert replace(study, trial=None) == requested.study
    assert json.loads(json.dumps(study_to_json(study))) == json.loads(json.dumps(spec_json["study"]))
    if requested.trial is None:
        assert study.trial is None
    else:
        assert study.trial is not None
        assert (study.trial["code"], study.trial["params"], study.trial["queue"]) == (
            "c" * 64,
            {"classes": 10},
            "research",
        )
    with pytest.raises(SpecError, match="not the spec of a study"):
        study_from_json({"name": "x"})


def test_gangs_as_trials_and_a_custom_searcher(folder: Path) -> None:
    roles = "[{command: python train.py, replicas: 2}, {name: chief, command: python train.py}]"
    text = edited(
        TRIALS,
        script=None,
        arguments=None,
        replicas=None,
        resources=None,
        pool=None,
        roles=roles,
        searcher='{name: "mine.py:Mine", redraw: 0.5}',
    )
    (folder / "mine.py").write_text("class Mine:\n    pass\n")
    requested = read(folder, text)
    assert requested.trial is not None and [role.replicas for role in requested.trial.roles] == [2, 1]
    assert requested.study.searcher == SearcherSpec("mine.py:Mine", {"redraw": 0.5})
    nested = read(folder, edited(TRIALS, searcher="{name: median, of: tpe, options: {grace: 2}}"))
    assert nested.study.searcher == SearcherSpec("median", {"of": "tpe", "grace": 2})


def test_trials_run_in_containers_of_an_image(folder: Path) -> None:
    request = read(folder, TRIALS + "image: python:3.12\n")
    assert request.trial is not None
    assert [role.image for role in request.trial.roles] == ["python:3.12"]
    assert not any(role.image for role in request.run.roles)
    with pytest.raises(SpecError, match="image: it is of `parallel: trials`, and this study is"):
        read(folder, MOP + "image: python:3.12\n")


def test_search_from_a_python_mapping(folder: Path) -> None:
    requested = search_from_mapping(
        {"metric": "loss", "trials": 3, "space": {"x": range(1, 4)}, "script": "train.py"},
        folder,
        path="hop.search",
        name="mine",
    )
    assert (requested.study.name, requested.study.goal) == ("mine", Goal.MIN)
    with pytest.raises(SpecError, match=r"^hop\.search: there is no key `trails`") as refused:
        search_from_mapping({"metric": "loss", "trails": 3}, folder, path="hop.search")
    assert refused.value.hints[0] == "did you mean `trials`?"


BAD: list[tuple[str, dict[str, str | None], str, str]] = [
    (TRIALS, {"metrics": "x"}, "search.yaml: there is no key `metrics`", "did you mean `metric`?"),
    (TRIALS, {"metric": None}, "metric: missing", "val_acc"),
    (TRIALS, {"metric": "quality"}, "goal: missing, and `quality` does not imply", "goal: max"),
    (TRIALS, {"goal": "maximum"}, "goal: `maximum` is neither max nor min", "did you mean `max`?"),
    (TRIALS, {"goal": "max", "mode": "min"}, "mode: `goal` has the same meaning", ""),
    (TRIALS, {"space": None, "  lr": None, "  batch_size": None}, "space: missing", "space: {lr"),
    (
        TRIALS,
        {"space": "{}", "  lr": None, "  batch_size": None},
        "space: there is no parameter",
        "name: range",
    ),
    (
        TRIALS,
        {"space": "{rounds: [1, 2]}", "  lr": None, "  batch_size": None},
        "space.rounds: the study tells trials their `rounds` itself",
        "budget_param",
    ),
    (TRIALS, {"params": "{lr: 1}"}, "params.lr: `lr` is searched, and fixed as well", ""),
    (TRIALS, {"trials": None}, "trials: missing", "`asha` proposes trials without end"),
    (
        TRIALS,
        {"trials": "1", "points": "[{lr: 0.1}, {lr: 0.01}]"},
        "points: 2 points, but `trials: 1`",
        "raise `trials`",
    ),
    (TRIALS, {"trials": "0"}, "trials: `0` is not a whole number from 1", ""),
    (TRIALS, {"concurrent": "0"}, "concurrent: `0` is not a whole number from 1", "leave it out"),
    (TRIALS, {"trials": "10.0"}, "trials: `10.0` is not a whole number", "without a point"),
    (TRIALS, {"epochs": "2.5"}, "epochs: `2.5` is not a whole number", ""),
    (TRIALS, {"max_epochs": "3"}, "max_epochs: it means the same as `epochs`", ""),
    (TRIALS, {"seed": "-1"}, "seed: `-1` is not a whole number from 0", ""),
    (TRIALS, {"searcher": "tpa"}, "searcher.name: unknown searcher `tpa`", "did you mean `tpe`?"),
    (TRIALS, {"searcher": "{eta: 3}"}, "searcher: it has no name", "{name: asha, eta: 4}"),
    (
        TRIALS,
        {"searcher": "{name: asha, etaa: 3}"},
        "searcher.etaa: `asha` has no such option",
        "did you mean `eta`?",
    ),
    (TRIALS, {"searcher": "{name: asha, eta: 1}"}, "searcher.eta: `1` is out of range", "at least 2"),
    (TRIALS, {"searcher": "{name: asha, eta: [3]}"}, "searcher.eta: `[3]` is not a single value", ""),
    (
        TRIALS,
        {"searcher": "trian.py:Mine"},
        "searcher: `trian.py` does not exist",
        "did you mean `train.py`?",
    ),
    (
        MOP,
        {"trainable": "examples/train.py:Digits"},
        "trainable: `examples/train.py` does not exist",
        "did you mean `train.py`? Paths count from the current folder",
    ),
    (TRIALS, {"searcher": "train.py:Mien"}, "searcher: train.py has no `Mien`", "names there"),
    (
        TRIALS,
        {"searcher": "{name: median, of: '../x.py:Mine'}"},
        "searcher: `../x.py` is not inside the folder of the code",
        "",
    ),
    (
        TRIALS,
        {"epochs": "1"},
        "search.yaml: epochs: with 1 and a lowest rung of 1",
        "set epochs to at least 4",
    ),
    (TRIALS, {"metric": "[acc]"}, "metric: `['acc']` is not a text", "it is one text"),
    (TRIALS, {"parallel": "hop"}, "parallel: `hop` is no way to train trials", "did you mean `mop`?"),
    (TRIALS, {"workers": "3"}, "workers: it is of `parallel: mop`", "parallel: mop"),
    (TRIALS, {"dataset": "mnist"}, "dataset: it is of `parallel: mop`", "datasets: [mnist]"),
    (TRIALS, {"script": None}, "script: missing", "script: train.py"),
    (TRIALS, {"script": "trian.py"}, "trian.py does not exist", "did you mean `train.py`?"),
    (TRIALS, {"command": "python x.py"}, "script: `command` says what a trial runs already", ""),
    (TRIALS, {"script": None, "command": "python x.py"}, "arguments: they belong to a script", ""),
    (TRIALS, {"arguments": "[[1]]"}, "arguments.0: `[1]` is not a word", ""),
    (
        TRIALS,
        {"script": None, "arguments": None, "roles": "[{command: a}]"},
        "resources: every role has its own",
        "in the role",
    ),
    (TRIALS, {"resources": "{cpu: 2}"}, "resources: there is no key `cpu`", "did you mean `cpus`?"),
    (TRIALS, {"budget_param": "a b"}, "budget_param: `a b` is not the name of a parameter", ""),
    (TRIALS, {"mlflow": "localhost"}, "mlflow: `localhost` is not the address", "http://"),
    (TRIALS, {"tensorboard": "1"}, "tensorboard: `1` is neither true nor false", ""),
    (
        MOP,
        {"space": "{epochs: [1, 2]}"},
        "space.epochs: a trainable's config has its own `epochs`",
        "my_epochs",
    ),
    (MOP, {"trainable": None, "parallel": "mop"}, "trainable: missing", "train.py:Digits"),
    (MOP, {"trainable": "train.py:Digit"}, "trainable: train.py has no `Digit`", "did you mean `Digits`?"),
    (
        MOP,
        {"trainable": "trian.py:Digits"},
        "trainable: `trian.py` does not exist",
        "did you mean `train.py`?",
    ),
    (MOP, {"trainable": "train.py"}, "trainable: train.py has no `init`", "train.py:Name"),
    (MOP, {"trainable": "../train.py:Digits"}, "trainable: `../train.py` is not inside", ""),
    (MOP, {"trainable": "a b"}, "trainable: `a b` names nothing", "file.py:Name"),
    (MOP, {"workers": None}, "workers: missing", "workers: 4"),
    (MOP, {"threads": "0"}, "threads: `0` is not a whole number from 1", "leave it out"),
    (MOP, {"workers": "0"}, "workers: `0` is not a whole number", ""),
    (MOP, {"unit_timeout": "0.5s"}, "unit_timeout: 0.5 seconds would end every unit", "unit_timeout: 10m"),
    (MOP, {"dataset": None}, "dataset: missing", "hop dataset push"),
    (MOP, {"dataset": "mnist:x"}, "dataset: `x` is not a version", ""),
    (MOP, {"datasets": "[mnist]"}, "datasets: `mnist` is the study's dataset already", ""),
    (MOP, {"script": "train.py"}, "script: it is of `parallel: trials`", "parallel: trials"),
    (MOP, {"partitions": "{parts: 3}"}, "partitions.parts: 3 partitions for 4 workers", "parts: 4"),
    (MOP, {"partitions": "{validation: 1}"}, "partitions.validation: `1` is not a share", "validation: 0.2"),
    (
        MOP,
        {"partitions": "{validation: 0.2, validation_from: held}"},
        "partitions.validation_from: a share of the rows",
        "",
    ),
    (
        MOP,
        {"partitions": "{validation: '0.2'}"},
        "partitions.validation: `0.2` is a text",
        "validation: 0.2`",
    ),
    (TRIALS, {"script": "../train.py"}, "script: `../train.py` is not inside the folder of the code", ""),
    (
        MOP,
        {"partitions": "{stratified: label}"},
        "partitions: there is no key `stratified`",
        "did you mean `stratify`?",
    ),
    (
        MOP,
        {"partitions": "{format: parket}"},
        "partitions.format: there is no format `parket`",
        "did you mean `parquet`?",
    ),
    (MOP, {"partitions": "{columns: [x, x]}"}, "partitions.columns.1: `x` is named twice", ""),
]


@pytest.mark.parametrize(("text", "changes", "problem", "hint"), BAD)
def test_invalid_search_is_refused_with_its_path(
    folder: Path, text: str, changes: dict[str, Any], problem: str, hint: str
) -> None:
    with pytest.raises(SpecError) as refused:
        read(folder, edited(text, **changes))
    assert "search.yaml: " in refused.value.message
    assert problem in refused.value.message
    assert hint in " | ".join(refused.value.hints), refused.value.hints


@pytest.mark.parametrize(
    ("text", "changes", "key"),
    [
        (TRIALS, {"script": "broken.py"}, "script"),
        (TRIALS, {"script": None, "arguments": None, "command": "python -u broken.py --fast"}, "command"),
        (
            TRIALS,
            {
                **dict.fromkeys(("script", "arguments", "replicas", "resources", "pool")),
                "roles": "[{command: torchrun broken.py}]",
            },
            "roles",
        ),
        (MOP, {"trainable": "broken.py:init"}, "trainable"),
        (MOP, {"trainable": "package.broken:init"}, "trainable"),
    ],
)
def test_syntax_error_is_found_without_running_the_code(
    folder: Path, text: str, changes: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    (folder / "package").mkdir()
    for name in ("broken.py", "package/broken.py"):
        (folder / name).write_text("raise SystemExit\ndef init(config)\n    return 1\n")
    with pytest.raises(
        SpecError, match=rf"{key}: (package/)?broken\.py is not Python \(line 2\): expected ':'"
    ) as refused:
        read(folder, edited(text, **changes))
    assert refused.value.hints == ("the line is: def init(config)",)


def test_code_outside_the_current_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "other.py").write_text("def init(config): ...\n")
    for text, key in (
        (edited(TRIALS, script="other.py"), "script"),
        (edited(MOP, trainable="other.py:init"), "trainable"),
    ):
        (folder / "search.yaml").write_text(text)
        with pytest.raises(
            SpecError, match=rf"{key}: `other\.py` does not exist in the current folder"
        ) as refused:
            read_search_file(folder / "search.yaml", tmp_path / "elsewhere")
        assert refused.value.hints == (f"it lies beside search.yaml: cd {folder}, and start the study there",)


def test_code_for_a_newer_python_is_not_checked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "newer.py").write_text("a new statement\n")
    assert read(folder, edited(TRIALS, script="newer.py", python='"3.99"')).trial
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "python3.99").write_text("")
    (tmp_path / "env/bin/python").symlink_to(tmp_path / "python3.99")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    assert read(folder, edited(TRIALS, script="newer.py")).trial


def test_trainable_is_found_by_parsing_its_file(folder: Path) -> None:
    (folder / "broken.py").write_text("def f(:\n")
    with pytest.raises(SpecError, match=r"trainable: broken\.py is not Python \(line 1\)"):
        read(folder, edited(MOP, trainable="broken.py:f"))
    (folder / "inner.py").write_text("def f():\n    init = 1\n    for g in range(3): train = g\n")
    with pytest.raises(SpecError, match=r"inner\.py has no `init`") as refused:
        read(folder, edited(MOP, trainable="inner.py"))
    assert "names there: f" in refused.value.hints, "local names of functions do not count"
    (folder / "stars.py").write_text("from train import *\n")
    assert read(folder, edited(MOP, trainable="stars.py:Digits")).study.mop
    assert read(folder, edited(MOP, trainable="package.module:Digits")).study.mop


@pytest.mark.parametrize(
    ("metric", "goal"),
    [
        ("val_acc", Goal.MAX),
        ("valAccuracy", Goal.MAX),
        ("f1", Goal.MAX),
        ("test/top5", Goal.MAX),
        ("mIoU", Goal.MAX),
        ("R2", Goal.MAX),
        ("eval.AUC", Goal.MAX),
        ("loss", Goal.MIN),
        ("train_loss", Goal.MIN),
        ("RMSE", Goal.MIN),
        ("val-perplexity", Goal.MIN),
        ("error_rate", Goal.MIN),
        ("crossEntropy", Goal.MIN),
        ("quality", None),
        ("neg_log_likelihood", None),
        ("neg_mean_squared_error", None),
        ("loss_accuracy", None),
        ("", None),
        ("glossy", None),
        ("accept", None),
    ],
)
def test_goal_is_inferred_from_the_metric_name(metric: str, goal: Goal | None) -> None:
    assert infer_goal(metric) is goal


def test_every_key_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "search-file.md").read_text()
    assert [key for key in SEARCH_KEYS if f"`{key}`" not in page and f"`{key}:" not in page] == []
