"""Records what the trainers of Hugging Face and the CSV logger of Lightning log. A trainer of Lightning
without a logger counts, too."""

from __future__ import annotations

from .import_hooks import call_guarded
from .reports import is_active, log_metrics

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def install(module: ModuleType) -> None:
    if not is_active():
        return
    if hasattr(module, "_LoggerConnector"):
        _extend_connector(module._LoggerConnector)
    elif hasattr(module, "CSVLogger"):
        _extend_logger(module.CSVLogger)
    elif hasattr(module, "Trainer"):
        _extend_trainer(module.Trainer)


def _extend_trainer(trainer: Any) -> None:
    log = trainer.log

    def log_and_record(self: Any, logs: Any, *arguments: Any, **options: Any) -> Any:
        values = dict(logs) if isinstance(logs, dict) else {}
        result = log(self, logs, *arguments, **options)
        if self.is_world_process_zero():
            log_metrics("transformers", values, self.state.global_step)
        return result

    trainer.log = log_and_record


def _extend_logger(logger: Any) -> None:
    log = logger.log_metrics

    def log_and_record(self: Any, metrics: Any, step: Any = None, *arguments: Any, **options: Any) -> Any:
        result = log(self, metrics, step, *arguments, **options)
        log_metrics("lightning", metrics, step)
        return result

    logger.log_metrics = log_and_record


def _extend_connector(connector: Any) -> None:
    log = connector.log_metrics

    def log_and_record(self: Any, metrics: Any, step: Any = None, *arguments: Any, **options: Any) -> Any:
        result = log(self, metrics, step, *arguments, **options)
        if metrics:
            call_guarded("lightning", _record_unlogged, self, metrics, step)
        return result

    connector.log_metrics = log_and_record


def _record_unlogged(connector: Any, logged: Any, step: Any) -> None:
    """Records metrics that no logger gets, with the step that a logger would get."""
    trainer, metrics = connector.trainer, dict(logged)
    if trainer.loggers or not trainer.is_global_zero:
        return
    given = metrics.pop("step", None) if step is None else step
    if given is None:
        metrics.setdefault("epoch", trainer.current_epoch)
        given = trainer.fit_loop.epoch_loop._batches_that_stepped
    log_metrics("lightning", metrics, int(given))
