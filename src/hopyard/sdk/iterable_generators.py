"""The random number generators that an iterable draws from, such as the `generator` of a loader or of its
dataset.

A checkpoint holds their states, since the global generators do not determine such an order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from hopyard.sdk.object_state import StateKind, capture_state, restore_state, state_kind

# of a loader and of its parts, such as a `Subset` or a `ChainDataset`
_PARTS = ("sampler", "batch_sampler", "dataset", "datasets")
_MAX_DEPTH, _MAX_ITEMS = 6, 64  # of nested parts, and of a list or dict
_PLAIN_TYPES = (str, bytes, int, float, type(None))
_GENERATOR_KINDS = frozenset({StateKind.STATE, StateKind.PYTHON_STATE, StateKind.BIT_GENERATOR})


def find_generators(iterable: object) -> dict[str, Any]:
    """Returns the generators in the attributes of the iterable, its samplers and its dataset, by path.

    Those in lists and dicts count, too.
    """
    found: dict[str, Any] = {}
    _search(iterable, "", found, _MAX_DEPTH)
    return found


def capture_generators(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state of each generator in a form that pickles without PyTorch."""
    return {path: _to_plain(capture_state(generator)) for path, generator in generators.items()}


def restore_generators(generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Sets the generators to states that `capture_generators` returned; those without a state stay."""
    for path, generator in generators.items():
        if path in states:
            state = states[path]
            if isinstance(state, bytes):
                torch = sys.modules["torch"]
                state = torch.frombuffer(bytearray(state), dtype=torch.uint8)
            restore_state(path, generator, state)


def has_started_workers(iterable: object) -> bool:
    """Returns whether a loader has persistent workers that run already."""
    return bool(getattr(iterable, "persistent_workers", False)) and (
        getattr(iterable, "_iterator", None) is not None
    )


def start_workers(iterable: Any) -> None:
    """Starts persistent workers. Their first start draws a seed; later passes over the loader draw none."""
    if getattr(iterable, "persistent_workers", False) and not has_started_workers(iterable):
        iter(iterable)


def _search(value: object, prefix: str, found: dict[str, Any], depth: int) -> None:
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict):
        return
    for name, part in list(attributes.items()):  # a thread of a dataset may add some
        is_part = name in _PARTS and depth > 0
        for key, item in _items(part):
            path = f"{prefix}{name}{key}"
            if _is_generator(item) and all(item is not known for known in found.values()):
                found[path] = item
            elif is_part:
                _search(item, f"{path}.", found, depth - 1)


def _is_generator(value: Any) -> bool:
    """Returns whether the value has the state of a generator. Other objects of a dataset may have methods of
    these names that take arguments, or answer each name with an error of their own."""
    try:
        return state_kind(value) in _GENERATOR_KINDS and capture_state(value) is not None
    except Exception:
        return False


def _items(value: object) -> Iterable[tuple[str, object]]:
    """Returns the value itself, or those in a short list or dict, each with the end of its path."""
    if isinstance(value, _PLAIN_TYPES):
        return ()
    if isinstance(value, list | tuple | dict):
        if len(value) > _MAX_ITEMS:
            return ()
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [(f"[{key!r}]", item) for key, item in pairs if not isinstance(item, _PLAIN_TYPES)]
    return (("", value),)


def _to_plain(state: Any) -> Any:
    torch = sys.modules.get("torch")
    return bytes(state.tolist()) if torch is not None and isinstance(state, torch.Tensor) else state
