"""Curves of trials in TensorBoard's files and in MLflow, read back by their own readers."""

from __future__ import annotations

import math
import socket
from pathlib import Path

import pytest

from hopyard.domain.ids import TrialId
from hopyard.domain.space import Space
from hopyard.domain.study import Goal, Parallel, StudySpec
from hopyard.replica.summary_values import Scalar
from hopyard.replica.tfevents import EventFiles
from hopyard.studies.mirrors.mirror import Mirrors, create_mirrors
from hopyard.studies.mirrors.mlflow import MLflow

ZERO, ONE = TrialId("0"), TrialId("1")


def _spec(*, tensorboard: bool = False, mlflow: str = "") -> StudySpec:
    return StudySpec(
        "digits", Space(()), "acc", Goal.MAX, Parallel.MOP, tensorboard=tensorboard, mlflow=mlflow
    )


def _play(mirrors: Mirrors) -> None:
    mirrors.trial_started(ZERO, {"lr": 0.1})
    mirrors.trial_started(ONE, {"lr": 0.2})
    mirrors.trial_reported(ZERO, 1, {"acc": 0.5, "loss": 2.0})
    mirrors.trial_reported(ONE, 1, {"acc": 0.25, "loss": float("nan")})
    mirrors.trial_reported(ZERO, 2, {"acc": 0.75, "loss": 1.0})
    mirrors.trial_ended(ZERO, failed=False)
    mirrors.trial_ended(ONE, failed=True)


def test_tensorboard_has_a_folder_for_each_trial(tmp_path: Path) -> None:
    messages: list[str] = []
    mirrors = create_mirrors(_spec(tensorboard=True), tmp_path, messages.append)
    _play(mirrors)
    mirrors.close()
    assert messages == []
    scalars = [
        value for values in EventFiles(tmp_path).poll() for value in values if isinstance(value, Scalar)
    ]
    read = {(scalar.tag, scalar.step): scalar.value for scalar in scalars}
    assert {at: value for at, value in read.items() if at[0] != "trial-1/loss"} == {
        ("trial-0/acc", 1): 0.5,
        ("trial-0/acc", 2): 0.75,
        ("trial-0/loss", 1): 2.0,
        ("trial-0/loss", 2): 1.0,
        ("trial-1/acc", 1): 0.25,
    }
    assert math.isnan(read["trial-1/loss", 1])


def test_mlflow_has_a_run_for_each_trial(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mirrors = create_mirrors(_spec(mlflow=uri), tmp_path, pytest.fail, study="alice/digits/1")
    _play(mirrors)
    client = mlflow.tracking.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits")
    runs = {run.data.tags["hopyard.trial"]: run for run in client.search_runs([experiment.experiment_id])}
    assert (runs["0"].data.params, runs["0"].data.metrics, runs["0"].info.status) == (
        {"lr": "0.1"},
        {"acc": 0.75, "loss": 1.0},
        "FINISHED",
    )
    assert (runs["1"].data.metrics, runs["1"].info.status) == ({"acc": 0.25}, "FAILED")
    assert [(m.step, m.value) for m in client.get_metric_history(runs["0"].info.run_id, "acc")] == [
        (1, 0.5),
        (2, 0.75),
    ]


def test_restarted_driver_continues_same_runs(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for step in (1, 2):
        mirror = MLflow(uri, experiment="digits", study="alice/digits/1")
        mirror.trial_started(ZERO, {"lr": 0.1 * step})
        mirror.trial_reported(ZERO, step, {"acc": 0.1 * step})
    client = mlflow.tracking.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert len(client.get_metric_history(run.info.run_id, "acc")) == 2
    assert (run.data.params["lr"], run.data.tags["param.lr"]) == ("0.1", "0.2")


class _Broken:
    """A library whose server is unreachable."""

    def __init__(self) -> None:
        self.asked = 0

    def trial_started(self, *_: object) -> None:
        self.asked += 1
        raise ConnectionError("refused")

    def trial_reported(self, *_: object) -> None:
        self.asked += 1

    def trial_ended(self, *_: object, failed: bool) -> None:
        self.asked += 1

    def close(self) -> None:
        self.asked += 1


def test_broken_mirror_is_reported_once_and_disabled() -> None:
    broken, messages = _Broken(), list[str]()
    mirrors = Mirrors({"MLflow": broken}, messages.append)
    _play(mirrors)
    mirrors.close()
    assert (broken.asked, messages) == (1, ["curves are no longer sent to MLflow: ConnectionError: refused"])


def test_unresponsive_mirror_server_is_reported_and_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and never listens
        messages: list[str] = []
        mirrors = create_mirrors(
            _spec(mlflow=f"http://127.0.0.1:{closed.getsockname()[1]}"), tmp_path, messages.append
        )
    _play(mirrors)
    mirrors.close()
    (line,) = messages
    assert (
        line.startswith("curves are not sent to MLflow: http://127.0.0.1:")
        and "\n" not in line
        and len(line) < 300
    )
