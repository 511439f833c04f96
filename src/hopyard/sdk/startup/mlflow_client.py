"""Records what a script logs with MLflow, also by `autolog`."""

from __future__ import annotations

import re

from .import_hooks import call_guarded
from .reports import is_active, log_counted, record_params, run_prefix

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS = {"True": True, "False": False, "None": None}


def install(module: ModuleType) -> None:
    """Extends the client, through which all functions of MLflow log."""
    if not is_active():
        return
    client = module.MlflowClient
    log_metric, log_param, log_batch = client.log_metric, client.log_param, client.log_batch
    create_run = client.create_run

    def create_run_with_prefix(self: Any, *arguments: Any, **options: Any) -> Any:
        run = create_run(self, *arguments, **options)
        call_guarded("mlflow", _name_run, run, options)
        return run

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
        log_counted("mlflow", {key: value}, step, run_prefix("mlflow", run_id))
        return result

    def log_param_and_record(
        self: Any, run_id: Any, key: Any, value: Any, *arguments: Any, **options: Any
    ) -> Any:
        result = log_param(self, run_id, key, value, *arguments, **options)
        record_params("mlflow", {key: value}, run_prefix("mlflow", run_id))
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
        prefix = run_prefix("mlflow", run_id)
        for metric in metrics:
            log_counted("mlflow", {metric.key: metric.value}, metric.step, prefix)
        record_params("mlflow", {param.key: _read_text(param.value) for param in params}, prefix)
        return result

    client.log_metric, client.log_param = log_metric_and_record, log_param_and_record
    client.log_batch, client.create_run = log_batch_and_record, create_run_with_prefix


def _name_run(run: Any, options: Any) -> None:
    name = options.get("run_name") or (options.get("tags") or {}).get("mlflow.runName")
    run_prefix("mlflow", run.info.run_id, name)


def _read_text(value: Any) -> Any:
    """Returns what the script gave: `log_params` and `autolog` write all values as texts."""
    if not isinstance(value, str) or len(value) > 100:
        return value
    if _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    return _WORDS.get(value, value)
