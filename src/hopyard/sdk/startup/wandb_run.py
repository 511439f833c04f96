"""Records what a script logs with Weights & Biases. Without a key it works offline."""

from __future__ import annotations

import atexit
import os

from .import_hooks import call_guarded
from .reports import is_active, log_metrics, record_params, record_summary, record_tags, run_prefix
from .wandb_media import convert_media, copy_nested

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_KEY_FILES = ("~/.netrc", "~/_netrc")
_CORE_LOG = "debug-core.log"
_MAX_LOG_BYTES = 1024 * 1024


def install(module: ModuleType) -> None:
    """Extends `wandb`, `wandb.sdk.wandb_run` and `wandb.sdk.wandb_summary`."""
    if module.__name__ == "wandb":
        if "WANDB_MODE" not in os.environ and not _has_key():
            os.environ["WANDB_MODE"] = "offline"
            _work_online_with_key(module)
    elif is_active():
        if hasattr(module, "Run"):
            _extend_run(module.Run)
        if hasattr(module, "Summary"):
            _extend_summary(module.Summary)


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "").partition("://")[2].partition("/")[0].partition(":")[0]
    for path in (os.environ.get("NETRC", ""), *_KEY_FILES):
        text = _read(path)
        if "wandb" in text or (host and host in text):
            return True
    folder = os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    return "base_url" in _read(os.path.join(folder, "settings"))  # of `wandb login --host`


def _read(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _work_online_with_key(module: Any) -> None:
    """Takes `offline` back once the script itself gives a key."""
    login, init = module.login, module.init

    def login_with_key(key: Any = None, *arguments: Any, **options: Any) -> Any:
        _end_offline(key)
        return login(key, *arguments, **options)

    def init_with_key(*arguments: Any, **options: Any) -> Any:
        _end_offline(os.environ.get("WANDB_API_KEY"))
        return init(*arguments, **options)

    module.login, module.init = login_with_key, init_with_key


def _end_offline(key: Any) -> None:
    if key and os.environ.get("WANDB_MODE") == "offline":
        del os.environ["WANDB_MODE"]


def _extend_run(run_class: Any) -> None:
    create, log, finish = run_class.__init__, run_class.log, run_class.finish
    define_metric: Any = getattr(run_class, "define_metric", None)

    def define_and_remember(
        self: Any, name: Any, step_metric: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        result = define_metric(self, name, step_metric, *arguments, **options)
        if step_metric is not None:
            _step_metrics[str(name)] = str(getattr(step_metric, "name", step_metric))
        return result

    def log_and_record(self: Any, data: Any, step: Any = None, *arguments: Any, **options: Any) -> Any:
        number = self.step if step is None else step
        values = copy_nested(data) if isinstance(data, dict) else None
        result = log(self, data, step, *arguments, **options)
        if values is not None:
            _record_config(self)
            call_guarded("wandb", _record_metrics, self, values, number)
        return result

    def finish_and_record(self: Any, *arguments: Any, **options: Any) -> Any:
        _record_config(self)
        return finish(self, *arguments, **options)

    def create_and_remember(self: Any, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        call_guarded("the log of wandb", _remember_log, self)

    run_class.log, run_class.finish = log_and_record, finish_and_record
    run_class.__init__ = create_and_remember
    if define_metric is not None:
        run_class.define_metric = define_and_remember
    atexit.register(_copy_linked_logs)  # after the end of its runs, which wandb registers later


def _record_config(run: Any) -> None:
    call_guarded("wandb", _record_changed_config, run)


def _record_metrics(run: Any, values: dict[Any, Any], step: Any) -> None:
    """Logs the values. The step of a metric with a `step_metric` is the newest value of this one."""
    for name in _step_metrics.values():
        value = values.get(name)
        if isinstance(value, (int, float)) and float(value).is_integer():
            _newest_steps[run.id, name] = int(value)
    by_step: dict[Any, dict[Any, Any]] = {}
    for name, value in values.items():
        by_step.setdefault(_newest_steps.get((run.id, _step_metric(name)), step), {})[name] = value
    for own_step, group in by_step.items():
        log_metrics("wandb", convert_media(group), own_step, _prefix(run))


def _step_metric(name: Any) -> str:
    """Returns the metric that counts the steps of this one: as defined for its name, else for a pattern."""
    patterns = [key for key in _step_metrics if key.endswith("*") and str(name).startswith(key[:-1])]
    return _step_metrics.get(str(name)) or (_step_metrics[patterns[0]] if patterns else "")


def _record_changed_config(run: Any) -> None:
    if run.id not in _recorded:
        call_guarded("the log of wandb", _copy_log_of, run)
    call_guarded("wandb", _record_changed_tags, run)
    config = dict(run.config)
    if config != _recorded.get(run.id):
        _recorded[run.id] = config
        record_params("wandb", config, _prefix(run))


def _record_changed_tags(run: Any) -> None:
    """Records the tags, which are words there: the tag `baseline` is `baseline=true` here."""
    tags, note = tuple(getattr(run, "tags", None) or ()), getattr(run, "notes", None) or ""
    if (tags, note) != _recorded_tags.get(run.id, ((), "")):
        before, _ = _recorded_tags.get(run.id, ((), ""))
        _recorded_tags[run.id] = tags, note
        removed = {tag: None for tag in before if tag not in tags}
        record_tags("wandb", {**removed, **dict.fromkeys(tags, "true")}, note, _prefix(run))


def _prefix(run: Any) -> str:
    """Returns the prefix of a run's names. Online the server invents a name for a run without one."""
    return run_prefix("wandb", run.id, run.name if run.offline else "")


def _remember_log(run: Any) -> None:
    _log_folders.append(run.settings.log_dir)


def _copy_log_of(run: Any) -> None:
    _copy_linked_log(run.settings.log_dir)


def _copy_linked_logs() -> None:
    for folder in _log_folders:
        call_guarded("the log of wandb", _copy_linked_log, folder)


def _copy_linked_log(folder: str) -> None:
    """Replaces the link to a log in the user's cache by a copy, since the outputs of a run contain no file
    from outside of its folder."""
    from pathlib import Path

    from hopyard.private_files import write_atomically

    path = os.path.join(folder, _CORE_LOG)
    if not os.path.islink(path):
        return
    with open(path, "rb") as log:
        content = log.read(_MAX_LOG_BYTES)
    write_atomically(Path(path), content)


_recorded: dict[str, dict[str, object]] = {}
_step_metrics: dict[str, str] = {}  # of `define_metric`, by name or pattern
_newest_steps: dict[tuple[str, str], int] = {}  # by id of the run and name
_recorded_tags: dict[str, tuple[tuple[str, ...], str]] = {}  # with the note
_log_folders: list[str] = []


def _extend_summary(summary_class: Any) -> None:
    update = summary_class.update

    def update_and_record(self: Any, values: Any) -> Any:
        result = update(self, values)
        if isinstance(values, dict):
            call_guarded("wandb", _record_summary, self, values)
        return result

    summary_class.update = update_and_record


def _record_summary(summary: Any, values: dict[Any, Any]) -> None:
    run = summary._get_current_summary_callback.__self__
    record_summary("wandb", values, _prefix(run))
