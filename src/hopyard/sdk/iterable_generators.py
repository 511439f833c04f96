"""The random number generators that an iterable draws from, such as the `generator` of a loader or of its
dataset.

A checkpoint holds their states, since the global generators do not determine such an order.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from types import GeneratorType, ModuleType
from typing import Any

from hopyard.sdk.object_state import StateKind, capture_state, restore_state, state_kind

# of a loader and of its parts, such as a `Subset` or a `ChainDataset`
_PART_NAMES = ("sampler", "batch_sampler", "dataset", "datasets")
_MAX_DEPTH, _MAX_ITEMS, _MAX_OBJECTS = 8, 64, 500  # of nested parts, of a list or dict, and altogether
_PLAIN_TYPES = (str, bytes, int, float, type(None))
_ITERATOR_MODULES = ("builtins", "itertools")  # of `enumerate`, `zip`, `islice` and the like
_GENERATOR_KINDS = frozenset({StateKind.STATE, StateKind.PYTHON_STATE, StateKind.BIT_GENERATOR})


def find_generators(iterable: object) -> dict[str, Any]:
    """Returns the generators in the attributes of the iterable and of the iterables in it, by path.

    These are samplers and datasets of a loader, and loaders in an object of the script, in `enumerate`,
    `zip` and the like, or in the variables of a generator function. Those in lists and dicts count, too.
    """
    found: dict[str, Any] = {}
    _search(iterable, "", found, {id(iterable): iterable}, _MAX_DEPTH)
    return found


def find_started_loaders(iterable: object) -> list[Any]:
    """Returns the iterators of PyTorch loaders in the iterable, such as that in `enumerate(loader)`. They
    have drawn from the loader's generator, and those with workers have drawn their first items."""
    seen: dict[int, object] = {}
    _search(iterable, "", {}, seen, _MAX_DEPTH)
    return [
        value
        for value in seen.values()
        if any(base.__name__ == "_BaseDataLoaderIter" for base in type(value).__mro__)
    ]


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


def _search(value: object, prefix: str, found: dict[str, Any], seen: dict[int, object], depth: int) -> None:
    for name, part in _parts(value):
        for key, item in _items(part):
            if id(item) in seen or len(seen) > _MAX_OBJECTS:
                continue
            seen[id(item)] = item
            path = f"{prefix}{name}{key}"
            if _is_generator(item):
                found[path] = item
            elif depth > 0 and (name in _PART_NAMES or _is_iterable(item)):
                _search(item, f"{path}.", found, seen, depth - 1)


def _parts(value: object) -> Iterable[tuple[str, object]]:
    """Returns what an object refers to, by name: its attributes, the variables of a generator function, or
    the arguments of an iterator such as `enumerate`."""
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        if frame is None:
            return ()  # it has ended
        shared = frame.f_globals
        used = [(name, shared[name]) for name in value.gi_code.co_names if name in shared]
        return [*frame.f_locals.items(), *used]
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        return list(attributes.items())  # a thread of a dataset may add some
    if type(value).__module__ in _ITERATOR_MODULES and hasattr(value, "__next__"):
        return [(f"({index})", part) for index, part in enumerate(gc.get_referents(value))]
    return ()


def _is_iterable(value: object) -> bool:
    """Returns whether items can be drawn from the value, by its type: parts of a dataset may answer each name
    with an error of their own."""
    return any(hasattr(type(value), name) for name in ("__iter__", "__getitem__", "__next__"))


def _is_generator(value: Any) -> bool:
    """Returns whether the value has the state of a generator. Other objects of a dataset may have methods of
    these names that take arguments, or answer each name with an error of their own."""
    if isinstance(value, ModuleType):
        return False  # `random` itself is global
    try:
        return state_kind(value) in _GENERATOR_KINDS and capture_state(value) is not None
    except Exception:
        return False


def _items(value: object) -> Iterable[tuple[str, object]]:
    """Returns the value itself, or those in a short list or dict, each with the end of its path."""
    if isinstance(value, _PLAIN_TYPES):
        return ()
    if isinstance(value, (list, tuple, dict)):
        if len(value) > _MAX_ITEMS:
            return ()
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [(f"[{key!r}]", item) for key, item in pairs if not isinstance(item, _PLAIN_TYPES)]
    return (("", value),)


def _to_plain(state: Any) -> Any:
    torch = sys.modules.get("torch")
    return bytes(state.tolist()) if torch is not None and isinstance(state, torch.Tensor) else state
