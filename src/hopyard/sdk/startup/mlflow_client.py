"""Records what a script logs with MLflow, also by `autolog`."""

from __future__ import annotations

from .reports import is_active, log_counted, record_params

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def install(module: ModuleType) -> None:
    """Extends the client, through which all functions of MLflow log."""
    if not is_active():
        return
    client = module.MlflowClient
    log_metric, log_param, log_batch = client.log_metric, client.log_param, client.log_batch

    def log_metric_and_record(
        self: Any,
        run_id: Any,
        key: Any,
        value: Any,
        timestamp: Any = None,
        step: Any = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        result = log_metric(self, run_id, key, value, timestamp, step, *arguments, **options)
        log_counted("mlflow", {key: value}, step)
        return result

    def log_param_and_record(
        self: Any, run_id: Any, key: Any, value: Any, *arguments: Any, **options: Any
    ) -> Any:
        result = log_param(self, run_id, key, value, *arguments, **options)
        record_params("mlflow", {key: value})
        return result

    def log_batch_and_record(
        self: Any,
        run_id: Any,
        metrics: Any = (),
        params: Any = (),
        tags: Any = (),
        *arguments: Any,
        **options: Any,
    ) -> Any:
        result = log_batch(self, run_id, metrics, params, tags, *arguments, **options)
        for metric in metrics:
            log_counted("mlflow", {metric.key: metric.value}, metric.step)
        record_params("mlflow", {param.key: param.value for param in params})
        return result

    client.log_metric, client.log_param = log_metric_and_record, log_param_and_record
    client.log_batch = log_batch_and_record
