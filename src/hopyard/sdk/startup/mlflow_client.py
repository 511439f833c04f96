"""Records what a script logs with MLflow, also by `autolog`."""

from __future__ import annotations

from .import_hooks import call_guarded
from .reports import is_active, log_counted, record_params, record_tags, run_prefix

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_RESERVED = "mlflow."  # what MLflow itself records begins with it
_NOTE = "mlflow.note.content"
_WORDS = {"True": True, "False": False, "None": None}


def install(module: ModuleType) -> None:
    """Extends the client, through which all functions of MLflow log."""
    if not is_active():
        return
    client = module.MlflowClient
    log_metric, log_param, log_batch = client.log_metric, client.log_param, client.log_batch
    set_tag, delete_tag, create_run = client.set_tag, client.delete_tag, client.create_run

    def create_run_with_prefix(
        self: Any,
        experiment_id: Any,
        start_time: Any = None,
        tags: Any = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        run = create_run(self, experiment_id, start_time, tags, *arguments, **options)
        call_guarded("mlflow", _name_run, run, options, tags or {})
        call_guarded("mlflow", _record_tags, run.info.run_id, dict(tags or {}))
        return run

    def set_tag_and_record(
        self: Any, run_id: Any, key: Any, value: Any, *arguments: Any, **options: Any
    ) -> Any:
        result = set_tag(self, run_id, key, value, *arguments, **options)
        call_guarded("mlflow", _record_tags, run_id, {key: value})
        return result

    def delete_tag_and_record(self: Any, run_id: Any, key: Any, *arguments: Any, **options: Any) -> Any:
        result = delete_tag(self, run_id, key, *arguments, **options)
        call_guarded("mlflow", _record_tags, run_id, {key: None})
        return result

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
        call_guarded("mlflow", _record_tags, run_id, {tag.key: tag.value for tag in tags})
        return result

    client.log_metric, client.log_param = log_metric_and_record, log_param_and_record
    client.log_batch, client.create_run = log_batch_and_record, create_run_with_prefix
    client.set_tag, client.delete_tag = set_tag_and_record, delete_tag_and_record


def _name_run(run: Any, options: Any, tags: Any) -> None:
    run_prefix("mlflow", run.info.run_id, options.get("run_name") or tags.get("mlflow.runName"))


def _record_tags(run_id: Any, tags: dict[Any, Any]) -> None:
    own = {key: value for key, value in tags.items() if not str(key).startswith(_RESERVED)}
    if own or tags.get(_NOTE):
        record_tags("mlflow", own, tags.get(_NOTE), run_prefix("mlflow", run_id))


def _read_text(value: Any) -> Any:
    """Returns what the script gave: `log_params` and `autolog` write all values as texts. A text that no
    number is written as, such as `007`, stays a text."""
    if not isinstance(value, str) or len(value) > 30:
        return value
    for number_type in (int, float):
        try:
            number = number_type(value)
        except ValueError:
            continue
        if str(number) == value and abs(number) < 2**63:
            return number
    return _WORDS.get(value, value)
