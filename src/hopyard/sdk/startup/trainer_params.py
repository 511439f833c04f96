"""Records the hyperparameters that Lightning gives to its loggers."""

from __future__ import annotations

from .import_hooks import call_guarded
from .reports import is_active, record_params

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def install(module: ModuleType) -> None:
    """Extends the loggers that write CSV files and event files."""
    for name in ("CSVLogger", "TensorBoardLogger") if is_active() else ():
        if hasattr(module, name):
            _extend(getattr(module, name))


def _extend(logger: Any) -> None:
    log = logger.log_hyperparams

    def log_and_record(self: Any, params: Any = None, *arguments: Any, **options: Any) -> Any:
        result = log(self, params, *arguments, **options)
        call_guarded("lightning", _record, params)
        return result

    logger.log_hyperparams = log_and_record


def _record(params: Any) -> None:
    record_params("lightning", params if isinstance(params, dict) else vars(params) if params else {})
