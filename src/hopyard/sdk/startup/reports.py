"""Records what other libraries log, through the SDK of the run."""

from __future__ import annotations

import json
import os
import time

from .import_hooks import call_guarded

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_MAX_PARAMS = 1000
_last_steps: dict[str, int] = {}


def is_active() -> bool:
    """Returns whether the metrics of other libraries count: not in a study, which mirrors its own curves to
    them."""
    return not os.environ.get("HOPYARD_STUDY")


def log_metrics(library: str, values: Mapping[Any, Any], step: Any = None) -> None:
    """Logs the numbers among the values; names of nested values are joined with dots."""
    call_guarded(library, _log, values, step)


def log_counted(library: str, values: Mapping[Any, Any], step: Any = None) -> None:
    """As `log_metrics` for a library with the default step 0: a repeated 0 is the next step."""
    for name, value in values.items():
        last = _last_steps.get(str(name))
        number = last + 1 if not step and last is not None else int(step or 0)
        _last_steps[str(name)] = number
        log_metrics(library, {name: value}, number)


def record_summary(library: str, values: Mapping[Any, Any]) -> None:
    call_guarded(library, _summarize, values)


def record_params(library: str, values: Mapping[Any, Any]) -> None:
    """Shows the values as parameters of the run."""
    call_guarded(library, _record_params, values)


def append_line(file: str, line: str) -> None:
    """Appends a line to a file in the folder of the replica."""
    from hopyard.private_files import open_file

    path = os.path.join(os.environ["HOPYARD_REPLICA_DIR"], file)
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def _log(values: Mapping[Any, Any], step: Any) -> None:
    import hopyard

    numbers = {name: value for name, value in _flat(values, "") if _is_number(value)}
    if numbers:
        hopyard.log(numbers, step=step)


def _summarize(values: Mapping[Any, Any]) -> None:
    import hopyard

    numbers = {name: value for name, value in _flat(values, "") if _is_number(value)}
    if numbers:
        hopyard.summary(numbers)


def _record_params(values: Mapping[Any, Any]) -> None:
    scalars = {
        name: value
        for name, value in _flat(values, "")
        if value is None or isinstance(value, (str, bool, int, float))
    }
    if scalars and os.environ.get("RANK", "0") == "0":
        event = {"t": time.time(), "kind": "params", "values": dict(list(scalars.items())[:_MAX_PARAMS])}
        append_line("streams/events", json.dumps(event))


def _flat(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _is_number(value: Any) -> bool:
    """Returns whether the value is one number: also a scalar of an array library, but no image or table."""
    if isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, (str, bytes)) or not callable(getattr(value, "item", None)):
        return False
    shape = getattr(value, "shape", None)
    return shape is not None and all(size == 1 for size in shape)
