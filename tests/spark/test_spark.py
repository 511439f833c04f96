"""Studies on Spark, end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.errors import SpecError, StudyFailed
from hopyard.spark import MopBackend, Study
from tests.spark.lines import Lines
from tests.spark.test_frames import frame_of

WEIGHTS = np.array([2.0, -3.0])


def _study(spark: Any, tmp_path: Path, **settings: Any) -> Study:
    known = {"space": {"lr": [0.0, 0.001, 0.2, 9.0]}, "metric": "mse", "goal": "min", "searcher": "grid", "epochs": 2} | settings
    return Study(MopBackend(spark, workers=2, store=(tmp_path / "store").as_uri()), Lines, folder=tmp_path / "study", **known)


def test_a_study_finds_the_best_and_a_failed_trial_ends_alone(spark: Any, tmp_path: Path) -> None:
    summary = _study(spark, tmp_path).fit(frame_of(spark), features=["a", "b"], labels="target", validation=0.2)
    assert summary.best.params == {"lr": 0.2}
    assert np.allclose(summary.best_state()["w"], WEIGHTS, atol=1e-3)
    states = {trial.params["lr"]: (trial.state.value, trial.error) for trial in summary.trials}
    assert states[9.0] == ("failed", "ValueError: lr is too large")
    assert {states[lr][0] for lr in (0.0, 0.001, 0.2)} == {"completed"}
    visits = {(bar.trial, bar.epoch, bar.partition) for row in summary.gantt().rows for bar in row.bars if bar.kind == "train"}
    assert len([one for one in visits if one[0] == summary.best.id]) == 4, "each of two partitions once in each of two epochs"
    assert len(summary.table()) == 4
    # It is over, and its folder says so: asked again, nothing is trained a second time.
    again = _study(spark, tmp_path).fit(frame_of(spark), features=["a", "b"], labels="target", validation=0.2)
    assert again.view.hops == summary.view.hops


def test_a_study_of_which_all_trials_fail_says_why(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyFailed, match="lr is too large"):
        _study(spark, tmp_path, space={"lr": [7.0, 8.0, 9.0]}).fit(frame_of(spark), features=["a", "b"], labels="target")


def test_more_workers_than_slots_are_refused(spark: Any) -> None:
    with pytest.raises(SpecError, match="9 tasks have to run at once"):
        MopBackend(spark, workers=9, wait_s=0)


ALONE = """
import sys
from pathlib import Path
from tests.spark.conftest import session
from tests.spark.test_spark import _study
from tests.spark.test_frames import frame_of

with session(sys.argv[1], Path(sys.argv[2]), **{"spark.cores.max": "2", "spark.executor.cores": "1"}) as spark:
    folder = Path(sys.argv[2])
    summary = _study(spark, folder, space={"lr": [0.001, 0.2]}).fit(frame_of(spark), features=["a", "b"], labels="target")
    print("best", summary.best.params["lr"], *sorted({bar.worker for row in summary.gantt().rows for bar in row.bars}), spark.sparkContext.master)
"""


def test_on_a_standalone_master_with_two_workers(standalone: str, tmp_path: Path) -> None:
    """In a process of its own: there is one Spark in a process."""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    command = [sys.executable, "-c", ALONE, standalone, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == f"best 0.2 worker-0 worker-1 {standalone}"
