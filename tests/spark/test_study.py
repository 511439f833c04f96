"""Studies on Spark, end to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hopyard.errors import SpecError, StudyFailed
from hopyard.spark import MopBackend, Study, mop_trainer
from hopyard.spark.barrier import BarrierStage
from hopyard.spark.mop_trainer import SparkMopTrainer
from tests.spark.linear_models import GatedModel, LinearModel
from tests.spark.test_partition_writer import frame_of

WEIGHTS = np.array([2.0, -3.0])


def _study(
    spark: Any,
    tmp_path: Path,
    trainable: Any = LinearModel,
    workers: int = 2,
    store: str = "",
    storage: Any = None,
    **settings: Any,
) -> Study:
    known = {
        "space": {"lr": [0.0, 0.001, 0.2, 9.0]},
        "metric": "mse",
        "goal": "min",
        "searcher": "grid",
        "epochs": 2,
    } | settings
    backend = MopBackend(
        spark,
        workers=workers,
        wait_s=60 if workers == 2 else 0,
        store=store or (tmp_path / "store").as_uri(),
        storage=storage,
    )
    return Study(backend, trainable, folder=tmp_path / "study", **known)


def test_study_finds_best_trial_and_failed_trial_ends_alone(spark: Any, tmp_path: Path) -> None:
    summary = _study(spark, tmp_path).fit(
        frame_of(spark), features=["a", "b"], labels="target", validation=0.2
    )
    assert summary.best.params == {"lr": 0.2}
    assert np.allclose(summary.best_state()["w"], WEIGHTS, atol=1e-3)
    states = {trial.params["lr"]: (trial.state.value, trial.error) for trial in summary.trials}
    assert states[9.0] == ("failed", "ValueError: lr is too large")
    assert {states[lr][0] for lr in (0.0, 0.001, 0.2)} == {"completed"}
    for trial in summary.trials:
        if trial.metrics:  # the means of partitions of different sizes would be another number
            assert trial.metrics["rmse"] == pytest.approx(np.sqrt(trial.metrics["mse"]))
            assert trial.metrics["rows"] > 50
    visits = {
        (bar.trial, bar.epoch, bar.partition)
        for row in summary.gantt().rows
        for bar in row.bars
        if bar.kind == "train"
    }
    assert len([visit for visit in visits if visit[0] == summary.best.id]) == 4, (
        "each of two partitions once in each of two epochs"
    )
    assert len(summary.table()) == 4
    assert not list((tmp_path / "store").rglob("*.parquet")), "the data is needed no more"
    assert not list((tmp_path / "store" / "owners").iterdir())
    predictions = summary.best_model().transform(frame_of(spark, 50).drop("target"), raw="all").collect()
    assert np.allclose(
        [row["prediction"] for row in predictions],
        [2.0 * row["a"] - 3.0 * row["b"] for row in predictions],
        atol=0.01,
    )
    assert predictions[0]["all"] == [predictions[0]["prediction"]]
    with pytest.raises(SpecError, match="the frame has no column `b`"):
        summary.best_model().transform(frame_of(spark, 5).drop("b"))
    # The study is finished, and its folder says so: a second run trains nothing.
    second = _study(spark, tmp_path).fit(
        frame_of(spark), features=["a", "b"], labels="target", validation=0.2
    )
    assert second.view.hops == summary.view.hops


def test_study_with_only_failed_trials_names_reason(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyFailed, match="lr is too large"):
        _study(spark, tmp_path, space={"lr": [7.0, 8.0, 9.0]}).fit(
            frame_of(spark), features=["a", "b"], labels="target"
        )


def test_more_workers_than_slots_are_refused(spark: Any) -> None:
    with pytest.raises(SpecError, match="9 tasks must run at once"):
        MopBackend(spark, workers=9, wait_s=0)


def test_killed_executor_costs_no_trial(spark: Any, s3: dict[str, str], tmp_path: Path) -> None:
    """The partitions are stored on S3. The stage restarts when Spark has another executor, and trials resume
    from their remaining states."""
    go, journal = tmp_path / "go", tmp_path / "study" / "journal"
    victim = (
        spark.sparkContext.parallelize([0], 1).map(lambda _: psutil.Process().parent().parent().pid).first()
    )
    assert psutil.Process(victim).name() == "java"

    def kill() -> None:
        _wait_until(lambda: journal.exists() and journal.read_bytes().count(b'"kind":"hop"') >= 3)
        os.kill(victim, signal.SIGKILL)
        _wait_until(lambda: journal.read_bytes().count(b'"event":"joined"') >= 4)
        go.touch()

    with ThreadPoolExecutor() as beside:
        killed = beside.submit(kill)
        study = _study(
            spark,
            tmp_path,
            GatedModel(go),
            store="s3://hop/studies",
            storage=s3,
            space={"lr": [0.001, 0.2]},
            epochs=3,
        )
        summary = study.fit(frame_of(spark), features=["a", "b"], labels="target")
        killed.result()
    assert {(trial.state.value, trial.epoch) for trial in summary.trials} == {("completed", 3)}
    assert np.allclose(summary.best_state()["w"], WEIGHTS, atol=1e-3)


@pytest.mark.slow
def test_stage_waiting_for_slots_is_reported(
    spark: Any, lake: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions are stored where only Spark's own client can read them."""
    monkeypatch.setattr(mop_trainer, "_IDLE_WARNING_S", 0.5)
    running, leave = tmp_path / "running", tmp_path / "leave"

    def occupy(_: int) -> None:
        running.touch()
        while not leave.exists():
            time.sleep(0.01)

    lines: list[str] = []

    def is_said() -> bool:
        lines.append(capsys.readouterr().err)
        return "no worker runs: they need 2 free slots at once, and other jobs use some of them" in "".join(
            lines
        )

    with ThreadPoolExecutor() as beside:
        blocking_job = beside.submit(lambda: spark.sparkContext.parallelize([0], 1).foreach(occupy))
        _wait_until(running.exists)
        study = _study(spark, tmp_path, store="viewfs://lake/data/studies", space={"lr": [0.2]}, hybrid=False)
        fitted = beside.submit(study.fit, frame_of(spark), features=["a", "b"], labels="target")
        try:
            _wait_until(is_said)
        finally:
            leave.touch()
        blocking_job.result()
        assert fitted.result().best.params == {"lr": 0.2}
    assert list(lake.glob("studies")), "it was there"


def test_study_without_slots_fails_and_names_needed_slots(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a machine was lost for good."""
    monkeypatch.setattr(mop_trainer, "_IDLE_WARNING_S", 0.1)
    monkeypatch.setattr(mop_trainer, "_POLL_INTERVAL_S", 0.1)

    class Silent:
        def wait(self, timeout_s: float) -> list[Any]:
            time.sleep(timeout_s)
            return []

    stage = BarrierStage(spark, None, workers=5)  # type: ignore[arg-type]
    trainer = SparkMopTrainer(Silent(), stage, spark, print, no_worker_timeout_s=0.5)  # type: ignore[arg-type]
    try:
        with pytest.raises(
            StudyFailed, match=r"no worker has run for \d s: they need 5 free slots at once, and Spark has 2"
        ) as ended:
            while True:
                trainer.wait(0.1)
        assert any("spark.task.cpus=1" in hint for hint in ended.value.hints)
    finally:
        stage.wait_for_exit(0.1)


ALONE = """
import sys
from pathlib import Path
from tests.spark.conftest import session
from tests.spark.linear_models import GpuRecordingModel
from tests.spark.test_partition_writer import frame_of
from tests.spark.test_study import _study

gpus = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1",
        "spark.cores.max": "4", "spark.executor.cores": "2"}
folder = Path(sys.argv[2])
with session(sys.argv[1], folder, **gpus) as spark:
    study = _study(spark, folder, GpuRecordingModel, space={"lr": [0.001, 0.2]})
    summary = study.fit(frame_of(spark), features=["a", "b"], labels="target")
    workers = sorted({bar.worker for row in summary.gantt().rows for bar in row.bars})
    print("best", summary.best.params["lr"], *workers, spark.sparkContext.master)
    print(*sorted(set(summary.best_state()["seen"])), sep=", ")
    try:
        _study(spark, folder / "more", GpuRecordingModel, workers=3)
    except Exception as refused:
        print(refused, *refused.hints)
"""


@pytest.mark.slow
def test_workers_on_standalone_master_see_their_assigned_gpu(standalone: str, tmp_path: Path) -> None:
    """Runs in a separate process, since a process can hold one Spark only."""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    command = [sys.executable, "-c", ALONE, standalone, str(tmp_path)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    best, lines, refused = result.stdout.splitlines()[-3:]
    assert best == f"best 0.2 worker-0 worker-1 {standalone}"
    assert lines == "3 False, 5 False"
    assert refused.startswith("workers: 3 tasks must run at once, but Spark has only 2 slots now")
    assert "spark.task.resource.gpu.amount=1, the GPUs that each task needs" in refused
    assert "spark.executor.resource.gpu.amount=1, the GPUs of each executor" in refused


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)
