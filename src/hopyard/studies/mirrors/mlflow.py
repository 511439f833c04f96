"""Mirrors trials as runs of an MLflow experiment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.errors import SpecError

_MAX_BATCH_SIZE = 100  # MLflow's limit of params per request
# MLflow's defaults would block a study for minutes
_TIMEOUT_VARIABLES = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class MLflow:
    """uri: of the tracking server, or a folder. A trial that another driver resumes continues in its MLflow
    run, which is found by tags. Raises SpecError without the package mlflow."""

    def __init__(self, uri: str, *, experiment: str, study: str) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise SpecError(
                "mlflow: the study's environment has no package `mlflow`",
                hints=("pip install mlflow-skinny", "or remove `mlflow:`"),
            ) from None
        for name, value in _TIMEOUT_VARIABLES.items():
            os.environ.setdefault(name, value)
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._study = study
        existing = self._client.get_experiment_by_name(experiment)
        self._experiment = (
            existing.experiment_id if existing is not None else self._client.create_experiment(experiment)
        )
        self._runs: dict[TrialId, str] = {}

    def trial_started(self, trial: TrialId, params: Mapping[str, ParamValue]) -> None:
        from mlflow.entities import Param

        if trial not in self._runs:
            self._runs[trial] = self._find(trial) or self._create(trial)
        current_params = self._client.get_run(self._runs[trial]).data.params
        # params in MLflow are immutable
        new = [Param(name, str(value)) for name, value in params.items() if name not in current_params]
        for start in range(0, len(new), _MAX_BATCH_SIZE):
            self._client.log_batch(self._runs[trial], params=new[start : start + _MAX_BATCH_SIZE])
        for name, value in params.items():
            # a changed param (population based training)
            if name in current_params and current_params[name] != str(value):
                self._client.set_tag(self._runs[trial], f"param.{name}", str(value))

    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None:
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        finite = [Metric(name, value, now, step) for name, value in metrics.items() if math.isfinite(value)]
        if finite:
            self._client.log_batch(self._runs[trial], metrics=finite)

    def trial_ended(self, trial: TrialId, *, failed: bool) -> None:
        if trial in self._runs:
            self._client.set_terminated(self._runs[trial], status="FAILED" if failed else "FINISHED")

    def close(self) -> None:
        """Does nothing: every call was sent at once."""

    def _find(self, trial: TrialId) -> str | None:
        filter_string = f"tags.`hopyard.study` = '{self._study}' and tags.`hopyard.trial` = '{trial}'"
        runs = self._client.search_runs([self._experiment], filter_string=filter_string, max_results=1)
        return runs[0].info.run_id if runs else None

    def _create(self, trial: TrialId) -> str:
        tags = {"hopyard.study": self._study, "hopyard.trial": str(trial), "mlflow.runName": f"trial {trial}"}
        return str(self._client.create_run(self._experiment, tags=tags).info.run_id)
