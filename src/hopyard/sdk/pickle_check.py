"""Checks when an object is bound that a checkpoint can hold it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from hopyard.errors import SpecError
from hopyard.sdk.object_state import StateKind, state_kind
from hopyard.sdk.warn_once import warn_once

_MAX_CHECKED_BYTES = 2**24  # of one object, so that a large buffer costs no second
_MAX_DEPTH = 20


class _SizeLimitExceeded(Exception):
    pass


class _ByteCounter:
    """A file that stores nothing."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        if self.size > _MAX_CHECKED_BYTES:
            raise _SizeLimitExceeded
        return len(data)


def check_bound_object(name: str, value: object) -> None:
    """Raises SpecError with the part of `value` that cannot be pickled. Warns about a callable object with
    attributes, since functions are not saved."""
    kind = state_kind(value)
    if kind is StateKind.UNSAVED:
        if not hasattr(value, "__name__") and getattr(value, "__dict__", None) and not hasattr(value, "func"):
            warn_once(
                f"hop.bind: `{name}` is callable and has no state_dict: it is bound, but not saved",
                kind=f"callable-{name}",
            )
        return
    if kind is not StateKind.VALUE or (reason := _pickle_error(value)) is None:
        return
    path, reason = _find_part(value, name, reason, _MAX_DEPTH)
    hint = "leave it out, or bind its parts: objects with state_dict and load_state_dict, or plain values"
    raise SpecError(f"hop.bind: `{path}` cannot be saved: {reason}", hints=(hint,))


def _pickle_error(value: object) -> str | None:
    """Returns why the value does not pickle, or None. Tensors and arrays count as picklable."""
    import pickle

    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    data_types: tuple[Any, ...] = () if torch is None else (torch.Tensor,)
    if numpy is not None:
        data_types += (numpy.ndarray,)

    class PickleChecker(pickle.Pickler):
        def persistent_id(self, part: Any) -> Any:
            if isinstance(part, data_types) and getattr(getattr(part, "dtype", None), "kind", "") != "O":
                return "data"
            return None

    try:
        PickleChecker(_ByteCounter(), protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (_SizeLimitExceeded, RecursionError):
        return None  # the rest is found when it is saved
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _find_part(value: object, path: str, reason: str, depth: int) -> tuple[str, str]:
    """Returns the path of the innermost part that does not pickle, and the reason."""
    if depth:
        for part_path, part in _parts(value, path):
            part_reason = _pickle_error(part)
            if part_reason is not None:
                return _find_part(part, part_path, part_reason, depth - 1)
    return path, reason


def _parts(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from ((f"{path}.{name}", part) for name, part in attributes.items())
