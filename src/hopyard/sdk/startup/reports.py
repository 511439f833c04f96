"""Records what other libraries log, through the SDK of the run."""

from __future__ import annotations

import json
import math
import os
import sys
import time

from .import_hooks import call_guarded

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_MAX_PARAMS = 1000
_last_steps: dict[str, int] = {}
_libraries: dict[str, str] = {}  # the one that logs a metric, by name
_prefixes: dict[tuple[str, str], str] = {}  # by library and id of a run of this library


def is_active() -> bool:
    """Returns whether the metrics of other libraries count: not in a study, which mirrors its own curves to
    them."""
    return not os.environ.get("HOPYARD_STUDY")


def is_first_process() -> bool:
    """Returns whether this process reports for its replica. Others of rank 1, 2 … that a launcher such as
    torchrun started in the replica log the same names."""
    environ = os.environ
    rank, local_rank = environ.get("RANK"), environ.get("LOCAL_RANK")
    if "TORCHELASTIC_RUN_ID" not in environ and rank == os.path.basename(environ["HOPYARD_REPLICA_DIR"]):
        return True  # the replica itself set these variables
    distributed = sys.modules.get("torch.distributed")
    if rank is None and distributed is not None and distributed.is_available():
        rank = str(distributed.get_rank()) if distributed.is_initialized() else None
    return (local_rank or rank or "0") in ("0", "-1")  # -1 usually means no launcher


def run_prefix(library: str, run: Any, name: Any = "") -> str:
    """Returns the prefix of the names in a run of this library. The first run of a process has none; others
    have their name, or else their number.

    run: its id. name: as the script gave it.
    """
    key = library, str(run)
    if key not in _prefixes:
        used = [prefix for known, prefix in _prefixes.items() if known[0] == library]
        named = f"{name}/" if isinstance(name, str) and name else ""
        is_free = named and named not in used
        _prefixes[key] = "" if not used else named if is_free else f"{len(used) + 1}/"
    return _prefixes[key]


def log_metrics(library: str, values: Mapping[Any, Any], step: Any = None, prefix: str = "") -> None:
    """Logs the numbers and media among the values; names of nested values are joined with dots."""
    call_guarded(library, _log, library, values, step, prefix)


def log_counted(library: str, values: Mapping[Any, Any], step: Any = None, prefix: str = "") -> None:
    """As `log_metrics` for a library with the default step 0: a repeated 0 is the next step."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        last = _last_steps.get(name)
        number = last + 1 if not step and last is not None else int(step or 0)
        _last_steps[name] = number
        log_metrics(library, {name: value}, number)


def is_claimed(library: str, name: str) -> bool:
    """Returns whether the metric belongs to this library: it is the first one that logs this name."""
    return _libraries.setdefault(name, library) == library


def record_summary(library: str, values: Mapping[Any, Any], prefix: str = "") -> None:
    call_guarded(library, _summarize, values, prefix)


def record_params(library: str, values: Mapping[Any, Any], prefix: str = "") -> None:
    """Shows the values as parameters of the run."""
    call_guarded(library, _record_params, values, prefix)


def record_tags(library: str, values: Mapping[Any, Any], note: Any = None, prefix: str = "") -> None:
    """Sets tags of the run; None removes one. note: the note of the run."""
    call_guarded(library, _record_tags, values, note, prefix)


def append_line(file: str, line: str) -> None:
    """Appends a line to a file in the folder of the replica."""
    from hopyard.private_files import open_file

    path = os.path.join(os.environ["HOPYARD_REPLICA_DIR"], file)
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def _log(library: str, values: Mapping[Any, Any], step: Any, prefix: str) -> None:
    """Two libraries often log the same values, with other steps: the first one counts for each name."""
    if not is_first_process():
        return
    import hopyard

    logged = {
        name: value
        for name, value in _flat(values, prefix)
        if (_is_number(value) or _is_media(value)) and is_claimed(library, name)
    }
    if logged:
        hopyard.log(logged, step=step)


def _summarize(values: Mapping[Any, Any], prefix: str) -> None:
    if not is_first_process():
        return
    import hopyard

    numbers = {name: value for name, value in _flat(values, prefix) if _is_number(value)}
    if numbers:
        hopyard.summary(numbers)


def _record_params(values: Mapping[Any, Any], prefix: str) -> None:
    scalars = {
        name: str(value) if value in (math.inf, -math.inf) or value != value else value  # JSON has no NaN
        for name, value in _flat(values, prefix)
        if value is None or isinstance(value, (str, bool, int, float))
    }
    if scalars and os.environ.get("RANK", "0") == "0":
        event = {"t": time.time(), "kind": "params", "values": dict(list(scalars.items())[:_MAX_PARAMS])}
        append_line("streams/events", json.dumps(event))


def _record_tags(values: Mapping[Any, Any], note: Any, prefix: str) -> None:
    from hopyard.domain.tag_limits import MAX_NOTE, MAX_TAG_TEXT, is_tag
    from hopyard.sdk.warn_once import warn_once

    if os.environ.get("RANK", "0") != "0":
        return
    tags = {f"{prefix}{key}": None if value is None else str(value) for key, value in values.items()}
    for key in [key for key, value in tags.items() if not is_tag(key, value or "")]:
        del tags[key]
        limit = f"one line of at most {MAX_TAG_TEXT} characters"
        warn_once(f"tag {key[:100]!r} is not recorded: a tag is {limit}", kind=f"tag {key}")
    if tags or note:
        event = {"t": time.time(), "kind": "tags", "values": tags}
        if note:
            event["note"] = f"{prefix and f'{prefix} '}{note}"[:MAX_NOTE]
        append_line("streams/events", json.dumps(event))


def _flat(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _is_media(value: Any) -> bool:
    """Returns whether the value is media of `hop.log`. Without their module, it is not."""
    module = sys.modules.get("hopyard.sdk.media")
    return module is not None and module.to_media_list(value) is not None


def _is_number(value: Any) -> bool:
    """Returns whether the value is one number: also a scalar of an array library, but no image or table."""
    if isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, (str, bytes)) or not callable(getattr(value, "item", None)):
        return False
    shape = getattr(value, "shape", None)
    return shape is not None and all(size == 1 for size in shape)
