"""Records what the trainers of Hugging Face and the CSV logger of Lightning log."""

from __future__ import annotations

from .reports import is_active, log_metrics

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def install(module: ModuleType) -> None:
    if not is_active():
        return
    if hasattr(module, "Trainer"):
        _extend_trainer(module.Trainer)
    if hasattr(module, "CSVLogger"):
        _extend_logger(module.CSVLogger)


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
